"""Task: what the network's outputs mean. Owns label convention, margin, and the sign and shape of the duals.

protocol      what every task answers
binary        one output, logistic loss
multiclass    one output a class, cross-entropy; stationarity by runner-up or by all pairs
regression    one output, targets -1 and +1, duals of either sign
names         as the command line and the cards spell them

Nothing outside this package asks how many outputs a network has.
"""

from engram.task.binary import Binary
from engram.task.multiclass import Multiclass, MulticlassPairs
from engram.task.names import infer_task, own_classes, task_named
from engram.task.protocol import Task
from engram.task.regression import Regression

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
