"""The published scheme and the engine side by side, and what a step of the engine costs.

clock      an attack under a clock that stands still while it is scored
moments    counts, moments, and the trace of an attack made of them
ratio      from two curves of counts over time to how much sooner the engine has the same count
race       both schemes on one target in one run
twins      the same photographs at two sizes, and a target trained on each
steps      seconds a step over candidates, image sizes and the prior
memory     peak memory of an attack in a process of its own
machine    what a measurement was made on
"""
