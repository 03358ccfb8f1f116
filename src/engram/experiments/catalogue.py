"""Every figure and table of the papers by its name, and what the papers print of their targets."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from engram.errors import ConfigError
from engram.experiments.buzaglo import BUZAGLO
from engram.experiments.experiment import Experiment
from engram.experiments.haim import HAIM

CATALOGUE: dict[str, Experiment] = {experiment.id: experiment for experiment in (*HAIM, *BUZAGLO)}


@dataclass(frozen=True)
class Published:
    """What the papers print of a target: training loss, test accuracy, test loss."""

    loss: float | None = None
    accuracy: float | None = None
    test_loss: float | None = None


PUBLISHED: dict[str, Published] = {
    "cifar50": Published(1.5e-6, 0.72, 2.14),
    "cifar100": Published(2.0e-6, 0.74, 2.41),
    "cifar500": Published(4.0e-6, 0.78, 2.09),
    "cifar1000": Published(5.5e-6, 0.79, 1.96),
    "cifar500-100-100": Published(3.0e-7, 0.77, 2.72),
    "cifar500-1000-500-100": Published(1.2e-7, 0.78, 3.14),
    "cifar500-1000-500-100-50": Published(8.4e-7, 0.77, 2.57),
    "cifar500-biases": Published(4.3e-6, 0.77, 2.12),
    "mnist500": Published(accuracy=0.88),
    "cifar10-standard": Published(8.3e-7, 0.71, 1.68),
    "cifar50-standard": Published(1.5e-6, 0.74, 1.72),
    "cifar500-sgd": Published(4.0e-6, 0.77, 2.21),
    "cifar500-early": Published(0.0039, 0.77, 1.22),
    "mnist500-early": Published(0.014, 0.87, 0.55),
}


def experiment_named(name: str) -> Experiment:
    """The experiment of that id."""
    if name not in CATALOGUE:
        close = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"there is no experiment {name!r}; {hint}see them with `engram reproduce --list`")
    return CATALOGUE[name]
