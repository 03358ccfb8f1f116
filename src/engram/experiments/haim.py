"""Reconstructing Training Data from Trained Neural Networks (Haim et al., NeurIPS 2022)."""

from __future__ import annotations

from engram.experiments.attacks import RECIPES
from engram.experiments.case import Case
from engram.experiments.drawings import (
    baselines,
    galleries,
    inverted_images,
    own_figures,
    scatters,
    weight_images,
)
from engram.experiments.experiment import Claim, Experiment, cases, count_at

_DEPTHS = ("cifar500-100-100", "cifar500-1000-500-100", "cifar500-1000-500-100-50", "cifar500-biases")
_FIG4 = cases("cifar50", "cifar100", "cifar500", "cifar1000", *_DEPTHS)
_TABLE2 = cases("cifar10-standard", "cifar50-standard", "cifar500-sgd", "cifar500-early", "mnist500-early")
_BASELINES = tuple(
    Case(preset, attack) for attack in ("inversion", "weights") for preset in ("circle", "cifar500", "mnist500")
)


def _both_ways(preset: str) -> tuple[Case, ...]:
    """Engine and published scheme, whatever the recipe: the standard start is the papers' open problem."""
    return tuple(Case(preset, attack) for attack in RECIPES)


HAIM: tuple[Experiment, ...] = (
    Experiment("haim/fig1", "CIFAR-10, 50 images", cases("cifar50"), galleries()),
    Experiment(
        "haim/fig2",
        "Two dimensions: 20 points on the circle",
        (Case("circle", "circle"),),
        own_figures,
        (Claim("points recovered", "all 20", count_at(0, low=20)),),
    ),
    Experiment("haim/fig3", "CIFAR-10 and MNIST, 500 images", cases("cifar500", "mnist500"), galleries()),
    Experiment("haim/fig4", "SSIM against output: numbers of images, architectures", _FIG4, scatters()),
    Experiment("haim/table1", "Losses and test accuracy of the targets of Figure 4", _FIG4),
    Experiment(
        "haim/fig5",
        "Other ways of looking: model inversion and first-layer weights",
        _BASELINES,
        baselines,
        (
            Claim("points that inversion finds", "7 of 20", count_at(0, low=7, high=7)),
            Claim("images of CIFAR-10 that inversion finds", "none: blurred classes", count_at(1, high=0)),
            Claim("images of MNIST that inversion finds", "none: blurred classes", count_at(2, high=0)),
            Claim("weights like images of CIFAR-10", "3 or 4 at the most", count_at(4, high=4)),
            Claim("weights like images of MNIST", "3 or 4 at the most", count_at(5, high=4)),
        ),
    ),
    *(
        Experiment(f"haim/fig{6 + place}", f"The 45 best of {preset}", cases(preset), galleries())
        for place, preset in enumerate(("cifar100", "cifar1000", *_DEPTHS))
    ),
    Experiment("haim/fig12", "Model inversion, CIFAR-10", (Case("cifar500", "inversion"),), inverted_images),
    Experiment("haim/fig13", "Model inversion, MNIST", (Case("mnist500", "inversion"),), inverted_images),
    Experiment("haim/fig14", "First-layer weights, CIFAR-10", (Case("cifar500", "weights"),), weight_images),
    Experiment("haim/fig15", "First-layer weights, MNIST", (Case("mnist500", "weights"),), weight_images),
    Experiment("haim/table2", "Beyond the theory: standard start, mini-batches, fewer epochs", _TABLE2),
    Experiment("haim/fig16", "SSIM against output for the targets of Table 2", _TABLE2, scatters(columns=5)),
    Experiment("haim/fig17", "Standard start, 10 images", _both_ways("cifar10-standard"), galleries(best=10)),
    Experiment("haim/fig18", "Standard start, 50 images", _both_ways("cifar50-standard"), galleries(best=10)),
    Experiment("haim/fig19", "10,000 epochs, CIFAR-10", cases("cifar500-early"), galleries()),
    Experiment("haim/fig20", "10,000 epochs, MNIST", cases("mnist500-early"), galleries()),
    Experiment("haim/fig21", "Mini-batches of 50, CIFAR-10", cases("cifar500-sgd"), galleries()),
)
