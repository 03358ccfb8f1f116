"""Sweeps: many attacks on one model or on many, from a laptop to a cluster.

space      what is varied: the papers' search spaces, or a file
recipes    from values to an attack
blind      how well candidates explain the weights: the objective, without any data
trial      one attack, as a worker runs it
pruning    which trials are hopeless, by a rule that does not depend on the order of events
storage    where Optuna keeps the study: a journal that survives kills, or a shared database
presence   which sweeps are alive, so that the trials of a dead one are taken again
ledger     claims and results in the study
driver     one sweep; and the loop that feeds an executor
executors/ where trials run: this process, local processes, Ray
pool       the candidates of all trials as one reconstruction
budget     from a time to the steps of a trial
growth     what more trials give
record     the end: pooled, scored, sweep.json
verdict    its sentence
graphs     its charts
page       sweep.html
fleet      many models, one table
"""
