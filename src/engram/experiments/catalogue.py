"""Every figure and table of the papers by its name: what it needs, how it is drawn, what the paper says.

haim      Reconstructing Training Data from Trained Neural Networks, NeurIPS 2022
buzaglo   Deconstructing Data Reconstruction, NeurIPS 2023
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engram.errors import ConfigError
from engram.experiments.case import Case
from engram.experiments.drawings import Draw, galleries, no_figure, own_figures, scatters
from engram.experiments.records import CaseRecord


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in short, and the same of ours made from the records of the cases."""

    what: str
    paper: str
    here: Callable[[Sequence[CaseRecord]], str]


@dataclass(frozen=True)
class Experiment:
    """One figure or table."""

    id: str
    title: str
    cases: tuple[Case, ...]
    draw: Draw = no_figure
    claims: tuple[Claim, ...] = ()

    @property
    def stem(self) -> str:
        """The name of its files."""
        return self.id.replace("/", "-")


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


def _cases(*presets: str) -> tuple[Case, ...]:
    return tuple(Case(preset) for preset in presets)


def _near(records: Sequence[CaseRecord]) -> str:
    """How many points lie within 0.1 of a reconstructed one."""
    record = records[0]
    return f"{record.good.train} of {record.n} within 0.1, of {record.candidates} reconstructed ones"


_SIZES = ("cifar50", "cifar100", "cifar500", "cifar1000")
_DEPTHS = ("cifar500-100-100", "cifar500-1000-500-100", "cifar500-1000-500-100-50", "cifar500-biases")
_FIG4 = _cases(*_SIZES, *_DEPTHS)

_ALL: tuple[Experiment, ...] = (
    Experiment("haim/fig1", "CIFAR-10, 50 images", _cases("cifar50"), galleries()),
    Experiment(
        "haim/fig2",
        "Two dimensions: 20 points on the circle",
        (Case("circle", "circle"),),
        own_figures,
        (Claim("points recovered", "all 20", _near),),
    ),
    Experiment("haim/fig3", "CIFAR-10 and MNIST, 500 images", _cases("cifar500", "mnist500"), galleries()),
    Experiment("haim/fig4", "SSIM against output: numbers of images, architectures", _FIG4, scatters()),
    Experiment("haim/table1", "Losses and test accuracy of the targets of Figure 4", _FIG4),
)

CATALOGUE: dict[str, Experiment] = {experiment.id: experiment for experiment in _ALL}


def experiment_named(name: str) -> Experiment:
    """The experiment of that id."""
    if name not in CATALOGUE:
        close = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"there is no experiment {name!r}; {hint}see them with `engram reproduce --list`")
    return CATALOGUE[name]
