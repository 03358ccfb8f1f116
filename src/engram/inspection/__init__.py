"""Inspection: is a model in reach, before any attack?

    AttackerView -> describe -> Description       what a stranger sees: layers, noise, row space, equations, margin
    Description + samples -> examine -> Examination   the owner's side: margins, KKT gap, ceiling, boundaries
    both -> judge -> Verdict                      one sentence that says what decides it

Names with `either` take networks with convolutions too; of these `DensePart` is read, over features.

`examine` reads training samples, so it is *oracle*; no attack imports this package.
"""

from engram.inspection.ceiling import Ceiling, boundaries, ceiling
from engram.inspection.convolutional import (
    ConvDescription,
    convolutional_record,
    describe_convolutional,
    judge_convolutional,
)
from engram.inspection.dense_part import DensePart, dense_part
from engram.inspection.describe import Description, describe
from engram.inspection.either import (
    AnyDescription,
    describe_either,
    examine_either,
    judge_either,
    record_of_either,
)
from engram.inspection.equations import Equations, count_equations
from engram.inspection.examine import Examination, examine
from engram.inspection.kkt import KKT, kkt
from engram.inspection.record import inspection_record
from engram.inspection.spectrum import Noise, Spectrum, remaining_noise, spectrum
from engram.inspection.verdict import Verdict, judge

__all__ = [
    "KKT",
    "AnyDescription",
    "Ceiling",
    "ConvDescription",
    "DensePart",
    "Description",
    "Equations",
    "Examination",
    "Noise",
    "Spectrum",
    "Verdict",
    "boundaries",
    "ceiling",
    "convolutional_record",
    "count_equations",
    "dense_part",
    "describe",
    "describe_convolutional",
    "describe_either",
    "examine",
    "examine_either",
    "inspection_record",
    "judge",
    "judge_convolutional",
    "judge_either",
    "kkt",
    "record_of_either",
    "remaining_noise",
    "spectrum",
]
