"""Task: what the network's outputs mean. It defines the labels, the margin, and the sign and shape of the duals.

kinds    what every task provides; binary, multiclass (runner-up or all pairs of classes), regression

Nothing outside this package asks how many outputs a network has.
"""

from __future__ import annotations

from engram.core.errors import ConfigError
from engram.models.tasks.kinds import Binary, Multiclass, MulticlassPairs, Regression, Task

__all__ = [
    "TASK_NAMES",
    "Binary",
    "Multiclass",
    "MulticlassPairs",
    "Regression",
    "Task",
    "infer_task",
    "own_classes",
    "task_named",
]
TASK_NAMES = ("binary", "multiclass", "multiclass:pairs", "regression:l2", "regression:l2.5", "regression:huber")


def task_named(name: str, classes: int = 1) -> Task:
    """The task of that name; `classes` is the number of outputs or labels, used by multiclass tasks.

    >>> task_named("multiclass", 10), task_named("regression:l2.5", 1)
    (Multiclass(classes=10), Regression(kind='l2.5'))
    """
    kind, _, rest = name.partition(":")
    if name == "binary":
        return Binary()
    if name == "multiclass":
        return Multiclass(classes)
    if name == "multiclass:pairs":
        return MulticlassPairs(classes)
    if kind == "regression" and rest:
        return Regression(rest)
    raise ConfigError(f"task must be one of {', '.join(TASK_NAMES)}, got {name!r}")


def infer_task(outputs: int) -> Task:
    """The most likely task of a network: one output is binary, several are classes.

    >>> infer_task(1), infer_task(3)
    (Binary(name='binary'), Multiclass(classes=3))
    """
    return Binary() if outputs == 1 else Multiclass(outputs)


def own_classes(name: str) -> bool:
    """Whether a task takes a data set's classes as they are, rather than two groups of them.

    >>> own_classes("multiclass:pairs"), own_classes("regression:l2")
    (True, False)
    """
    return name.partition(":")[0] == "multiclass"
