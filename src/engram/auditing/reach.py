"""Whether a model is in reach of the attack, in one sentence with the reason; an inspection as plain numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from engram.auditing.examine import RECOGNISED, Examination
from engram.auditing.inspect import Description
from engram.models.networks import Network
from engram.models.view import AttackerView

Decider = Literal["hidden layer", "row space", "noise", "equations", "stationarity", "ceiling"]
MOST = 0.5
"""A first layer whose signal is mostly unexplained by its samples gives the attack nothing to work with."""


@dataclass(frozen=True)
class Verdict:
    """Whether this attack has anything to work with; never a proof that nothing can be read out."""

    in_reach: bool
    decided_by: Decider
    sentence: str


def judge(description: Description, examination: Examination | None = None) -> Verdict:
    """The first obstacle in the attack's way, or what speaks for its success."""
    return (
        _obstacle_in_weights(description)
        or (None if examination is None else _obstacle_in_samples(description, examination))
        or _way_open(description, examination)
    )


def explained_share(examination: Examination) -> float:
    """1 - gap²: the share of the read layer's energy that the samples' gradients explain."""
    return 1 - examination.kkt.layers[0].gap ** 2


def noise_share(description: Description) -> float:
    """Of the read layer's energy; 0 where it is unknown.

    Noise does not hide what stands above it: from a standard initialisation 98 % is noise, and ten images still
    come back.
    """
    noise = description.read_layer.noise
    return 0.0 if noise is None else noise.share


def _read(description: Description) -> str:
    """The layer that is read, in words."""
    return description.read_layer.name if description.reads_features else "the first layer"


def _obstacle_in_weights(description: Description) -> Verdict | None:
    if description.read == len(description.layers) - 1:
        if description.reads_features:
            return Verdict(False, "hidden layer", "Out of reach of the engine: no hidden fully-connected layer.")
        return _no("hidden layer", "without a hidden layer the weights are a single sum over all samples")
    if description.spectrum.rank == 0:
        reason = f"no direction of {_read(description)} stands above the noise of its initialisation"
        return _no("row space", reason)
    noise, counts = noise_share(description), description.equations
    if counts is None:
        reason = f"{noise:.0%} of {_read(description)}'s energy is the noise of its initialisation"
        return _no("noise", reason) if noise > MOST else None
    if counts.samples is not None and counts.samples > counts.row_space_most_samples:
        return _no(
            "equations",
            f"{counts.samples:,} samples are {counts.row_space_unknowns:,} unknowns in the row space, "
            f"but the first layer has only {counts.row_space_equations:,} equations",
        )
    return None


def _obstacle_in_samples(description: Description, examination: Examination) -> Verdict | None:
    explained, ceiling = explained_share(examination), examination.ceiling
    noise = 0.0 if description.reads_features else noise_share(description)
    if explained < MOST * (1 - noise):
        noisy = f", of which {noise:.0%} is noise" if noise > MOST else ""
        reason = f"the samples' gradients explain only {explained:.0%} of {_read(description)}'s energy{noisy}"
        return _no("stationarity", reason)
    # The mean alone reaches some samples without any weights: only more than that comes from the weights.
    by_mean = ceiling.recognisable_by_mean
    if ceiling.recognisable is not None and by_mean is not None and ceiling.recognisable <= by_mean:
        return _no(
            "ceiling",
            f"{ceiling.recognisable} of {len(examination.margins)} samples have a ceiling above SSIM {RECOGNISED},"
            f" no more than the mean image alone reaches ({by_mean})",
        )
    return None


def _way_open(description: Description, examination: Examination | None) -> Verdict:
    rank, noise = description.spectrum.rank, noise_share(description)
    directions = "1 direction" if rank == 1 else f"{rank} directions"
    known = description.spectrum.edge is not None
    mostly_noise = f"; {noise:.0%} of its energy is noise, so expect few images, or blurred ones"
    mostly_noise = mostly_noise if noise > MOST else ""
    if description.equations is None:
        above = "above noise" if known else "(it is too small to estimate its noise)"
        way = f"{_read(description)} has {directions} of features {above}"
        if examination is None:
            return _yes("row space", way)
        share = explained_share(examination)
        return _yes("stationarity", f"{way}, and the samples' gradients explain {share:.0%} of its energy")
    if examination is None:
        most = description.equations.row_space_most_samples
        above = "above the noise of its initialisation" if known else "(it is too small to estimate its noise)"
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
        f"of {directions} (the mean image alone: {examination.ceiling.recognisable_by_mean}), and {explained}"
        f"{mostly_noise}",
    )


def _no(decider: Decider, reason: str) -> Verdict:
    return Verdict(False, decider, f"Out of reach of this attack: {reason}.")


def _yes(decider: Decider, reason: str) -> Verdict:
    return Verdict(True, decider, f"In reach: {reason}.")


SCHEMA_VERSION = 1


def inspection_record(
    view: AttackerView[Network],
    found: Description,
    verdict: Verdict,
    examination: Examination | None = None,
) -> dict[str, Any]:
    """One JSON object as in docs/inspect.md; what is unknown is null, and `samples` is null without data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "input_shape": list(view.input_shape),
        "task": view.task.name,
        "name": found.name,
        "architecture": found.architecture,
        "parameters": found.parameters,
        "dtype": found.dtype,
        "homogeneous": found.homogeneous,
        "activation": found.activation,
        "layers": [asdict(layer) for layer in found.layers],
        "row_space": {
            "layer": found.read_layer.name,
            "rank": found.spectrum.rank,
            "noise_std": found.spectrum.noise_std,
            "edge": found.spectrum.edge,
            "threshold": found.spectrum.threshold,
            "singular_values": found.spectrum.values.tolist(),
        },
        "equations": None if found.equations is None else asdict(found.equations),
        "margin": None if found.margin is None else asdict(found.margin),
        "samples": None if examination is None else samples_record(examination),
        "verdict": asdict(verdict),
    }


def samples_record(found: Examination) -> dict[str, Any]:
    """What an examination found, as plain numbers."""
    return {
        "count": len(found.margins),
        "loss": found.loss,
        "accuracy": found.accuracy,
        "margins": {**_spread(found.margins), "on_margin": found.on_margin},
        "kkt": {
            "layers": [asdict(layer) for layer in found.kkt.layers],
            "support_vectors": int(found.kkt.support.sum()),
            "margin": found.kkt.margin,
        },
        "ceiling": {
            "recognisable": found.ceiling.recognisable,
            "recognisable_by_mean": found.ceiling.recognisable_by_mean,
            "share": _spread(found.ceiling.share),
            "ssim": None if found.ceiling.ssim is None else _spread(found.ceiling.ssim),
            "ncc": None if found.ceiling.ncc is None else _spread(found.ceiling.ncc),
        },
        "boundaries": {
            "train": _spread(found.boundaries),
            "held_out": None if found.held_out_boundaries is None else _spread(found.held_out_boundaries),
            "beyond_held_out": found.beyond_held_out,
        },
        "each": _each(found),
        "each_held_out": None if found.held_out_boundaries is None else _boundary_rows(found.held_out_boundaries),
    }


def _each(found: Examination) -> list[dict[str, Any]]:
    columns: dict[str, Tensor | None] = {
        "label": found.labels,
        "margin": found.margins,
        "dual": found.kkt.duals,
        "support": found.kkt.support,
        "share": found.ceiling.share,
        "ssim": found.ceiling.ssim,
        "ncc": found.ceiling.ncc,
        "mean_ssim": found.ceiling.mean_ssim,
        "boundaries": found.boundaries,
    }
    n = len(found.margins)
    lists = [range(n), *(n * [None] if column is None else column.tolist() for column in columns.values())]
    return [dict(zip(("index", *columns), row, strict=True)) for row in zip(*lists, strict=True)]


def _boundary_rows(counts: Tensor) -> list[dict[str, Any]]:
    return [{"index": index, "boundaries": count} for index, count in enumerate(counts.tolist())]


def _spread(values: Tensor) -> dict[str, float]:
    values = values.double()
    return {
        "min": float(values.min()),
        "median": float(values.quantile(0.5)),
        "mean": float(values.mean()),
        "max": float(values.max()),
    }
