"""In reach or not, in one sentence that says what decides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engram.inspection.ceiling import RECOGNISED
from engram.inspection.describe import Description
from engram.inspection.examine import Examination

Decider = Literal["hidden layer", "row space", "noise", "equations", "stationarity", "ceiling"]
MOST = 0.5
"""A first layer whose signal is mostly unexplained by its samples gives the attack nothing to hold."""


@dataclass(frozen=True)
class Verdict:
    """Whether this attack has anything to work with; never a proof that nothing can be read out."""

    in_reach: bool
    decided_by: Decider
    sentence: str


def judge(description: Description, examination: Examination | None = None) -> Verdict:
    """The first obstacle on the attack's way, or what speaks for its success."""
    return (
        _obstacle_in_weights(description)
        or (None if examination is None else _obstacle_in_samples(examination, noise_share(description)))
        or _way_open(description, examination)
    )


def explained_share(examination: Examination) -> float:
    """1 - gap²: the share of the first layer's energy that the samples' gradients explain."""
    return 1 - examination.kkt.layers[0].gap ** 2


def noise_share(description: Description) -> float:
    """Of the first layer's energy; 0 where it is unknown.

    Noise is no obstacle to what stands above it: from a standard start 98 % are noise, and ten images come back
    all the same.
    """
    noise = description.layers[0].noise
    return 0.0 if noise is None else noise.share


def _obstacle_in_weights(description: Description) -> Verdict | None:
    counts = description.equations
    if len(description.layers) < 2:
        return _no("hidden layer", "without a hidden layer the weights are a single sum over all samples")
    if description.spectrum.rank == 0:
        return _no("row space", "no direction of the first layer stands above the noise of its initialisation")
    if counts.samples is not None and counts.samples > counts.row_space_most_samples:
        return _no(
            "equations",
            f"{counts.samples:,} samples are {counts.row_space_unknowns:,} unknowns in the row space, "
            f"but the first layer has only {counts.row_space_equations:,} equations",
        )
    return None


def _obstacle_in_samples(examination: Examination, noise: float) -> Verdict | None:
    explained, ceiling = explained_share(examination), examination.ceiling
    if explained < MOST * (1 - noise):
        beside = f", of which {noise:.0%} are noise" if noise > MOST else ""
        return _no(
            "stationarity",
            f"the samples' gradients explain only {explained:.0%} of the first layer's energy{beside}",
        )
    # The mean counts some samples without any weights: only more than that is in them.
    by_mean = ceiling.recognisable_by_mean
    if ceiling.recognisable is not None and by_mean is not None and ceiling.recognisable <= by_mean:
        return _no(
            "ceiling",
            f"{ceiling.recognisable} of {len(examination.margins)} samples have a ceiling above SSIM {RECOGNISED},"
            f" no more than by the mean image alone ({by_mean})",
        )
    return None


def _way_open(description: Description, examination: Examination | None) -> Verdict:
    rank, noise = description.spectrum.rank, noise_share(description)
    directions = "1 direction" if rank == 1 else f"{rank} directions"
    mostly_noise = f"; {noise:.0%} of its energy is noise, so expect few images, or blurred ones"
    mostly_noise = mostly_noise if noise > MOST else ""
    if examination is None:
        most = description.equations.row_space_most_samples
        known = description.spectrum.edge is not None
        above = "above the noise of its initialisation" if known else "(it is too small to tell its noise)"
        return _yes(
            "row space",
            f"the first layer has {directions} {above}, and equations for up to {most:,} samples{mostly_noise}",
        )
    explained = f"the samples' gradients explain {explained_share(examination):.0%} of the first layer's energy"
    if (count := examination.ceiling.recognisable) is None:
        return _yes("stationarity", f"{explained}{mostly_noise}")
    return _yes(
        "ceiling",
        f"{count} of {len(examination.margins)} samples have a ceiling above SSIM {RECOGNISED} in the row space "
        f"of {directions} (by the mean image alone {examination.ceiling.recognisable_by_mean}), and {explained}"
        f"{mostly_noise}",
    )


def _no(decider: Decider, reason: str) -> Verdict:
    return Verdict(False, decider, f"Out of reach of this attack: {reason}.")


def _yes(decider: Decider, reason: str) -> Verdict:
    return Verdict(True, decider, f"In reach: {reason}.")
