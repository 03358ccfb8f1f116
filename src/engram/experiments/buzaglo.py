"""Deconstructing Data Reconstruction (Buzaglo et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from engram.experiments.ablations import (
    around_threshold,
    decay_scatters,
    first_kernels,
    over_classes,
    over_decay,
    over_kernels,
)
from engram.experiments.drawings import galleries, scatters, together
from engram.experiments.experiment import AS_PUBLISHED, Claim, Experiment, Judge, cases, count_at, recovered
from engram.experiments.records import CaseRecord
from engram.experiments.zoo import CHANNELS, DECAYS, KERNELS


def _ratio(at_least: float) -> Judge:
    """Of the counts with the most classes and with two; the paper has `at_least` that."""

    def judge(records: Sequence[CaseRecord]) -> tuple[str, str]:
        two, ten = (recovered(records[place]) for place in (0, -1))
        holds = ten > at_least * max(two, 0)
        times = f": {ten / two:.1f} times" if two > 0 else ""
        return f"{ten:g} to {two:g} beyond held-out{times}", AS_PUBLISHED if holds else "less than published"

    return judge


def _best_decay(records: Sequence[CaseRecord]) -> tuple[str, str]:
    """The best count among decays beside that of the small start."""
    none = next(recovered(record) for record in records if record.preset == "cifar100-init1e-3")
    decayed = [record for record in records if record.preset.startswith("decay-") and record.preset != "decay-0"]
    best = max(decayed, key=recovered)
    said = f"{recovered(best):g} ({best.preset}) to {none:g}, beyond held-out"
    return said, AS_PUBLISHED if recovered(best) > none else "not so here"


def _by_kernel(records: Sequence[CaseRecord]) -> tuple[str, str]:
    """With 32 channels."""
    counts = {record.preset: recovered(record) for record in records if record.preset.endswith("x32")}
    first, *middle, last = counts.values()
    holds = min(middle) < min(first, last)
    said = ", ".join(f"{preset}: {count:g}" for preset, count in counts.items())
    return said, AS_PUBLISHED if holds else "not so here"


_COUNTS = (2, 3, 4, 5)
_PER_CLASS = cases(*(f"classes{count}x50" for count in _COUNTS), "classes10")
_FIXED = cases(*(f"classes{count}" for count in (*_COUNTS, 10)))
_LOSSES = ("l2", "l2.5", "huber")
_DECAYED = cases(*(f"decay-{value}" for value in DECAYS))
_KERNELS = cases(*(f"conv{k}x{c}" for k in KERNELS for c in CHANNELS))
_FEW_KERNELS = cases(*(f"conv{k}x{c}" for k in KERNELS for c in (8, 32)))

BUZAGLO: tuple[Experiment, ...] = (
    Experiment(
        "buzaglo/fig3",
        "Numbers of classes, 50 images each",
        _PER_CLASS,
        over_classes,
        (Claim("good of 10 classes to good of 2", "rises with the classes", _ratio(1)),),
    ),
    Experiment(
        "buzaglo/fig4",
        "Regression losses: the ten best of each",
        cases(*(f"cifar300-{loss}" for loss in _LOSSES)),
        galleries(best=10, columns=10),
    ),
    Experiment(
        "buzaglo/fig5",
        "Weight decay, 2 classes of 50",
        (*_DECAYED, *cases("cifar100-init1e-3", "decay-0")),
        over_decay({"cifar100-init1e-3": "no decay, start 1e-3", "decay-0": "no decay, standard start"}),
        (Claim("the best decay to none with start 1e-3", "well above for some values", _best_decay),),
    ),
    Experiment("buzaglo/fig6", "A convolutional network: conv(3, 32)", cases("conv3x32"), galleries()),
    Experiment("buzaglo/fig8", "Pairs around SSIM 0.4", cases("cifar500"), around_threshold),
    Experiment(
        "buzaglo/fig9",
        "Weight decay with the start of the first paper for a baseline",
        (*_DECAYED, *cases("cifar100", "cifar100-init1e-3")),
        over_decay({"cifar100": "no decay, start 1e-4", "cifar100-init1e-3": "no decay, start 1e-3"}),
    ),
    Experiment(
        "buzaglo/fig10",
        "Numbers of classes, 500 images in all",
        _FIXED,
        over_classes,
        (Claim("good of 10 classes to good of 2", "more than 6 times", _ratio(6)),),
    ),
    *(
        Experiment(f"buzaglo/fig{11 + place}", f"Regression: {loss}", cases(f"cifar300-{loss}"), galleries())
        for place, loss in enumerate(_LOSSES)
    ),
    Experiment("buzaglo/fig14", "Weight decay: SSIM against output, and errors", _DECAYED, decay_scatters),
    Experiment(
        "buzaglo/fig15",
        "Kernel sizes and channels",
        _KERNELS,
        over_kernels,
        (Claim("good ones over the kernel sizes", "falls for middle ones, rises again at 32", _by_kernel),),
        few_cases=_FEW_KERNELS,
    ),
    Experiment("buzaglo/fig16", "The kernels of conv(3, 32)", cases("conv3x32"), first_kernels),
    Experiment(
        "buzaglo/fig17",
        "CIFAR-100, 5,000 images, 10000-10000",
        cases("cifar100-large"),
        together(galleries(), scatters(part="scatter")),
        (Claim("good reconstructions", "a few dozen", count_at(0, low=24)),),
        few_cases=cases("cifar100-large", "cifar100-hour"),
    ),
)
