"""Task: what the network's outputs mean. It owns the label convention, the margin, and sign and shape of the
duals.

base     what every task answers
kinds    binary, multiclass (runner-up or all pairs of classes), regression
names    as the command line and the cards spell them

Nothing outside this package asks how many outputs a network has.
"""

from __future__ import annotations

from engram.models.tasks.base import Task
from engram.models.tasks.kinds import Binary, Multiclass, MulticlassPairs, Regression
from engram.models.tasks.names import infer_task, own_classes, task_named

__all__ = [
    "Binary",
    "Multiclass",
    "MulticlassPairs",
    "Regression",
    "Task",
    "infer_task",
    "own_classes",
    "task_named",
]
