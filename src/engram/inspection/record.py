"""An inspection as plain numbers for other programs; the keys are documented in docs/inspect.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from engram.attacker import AttackerView
from engram.inspection.describe import Description
from engram.inspection.examine import Examination
from engram.inspection.verdict import Verdict

SCHEMA_VERSION = 1


def inspection_record(
    view: AttackerView, description: Description, verdict: Verdict, examination: Examination | None = None
) -> dict[str, Any]:
    """One JSON object; what is not known is null, and `samples` is null without data."""
    spectrum = description.spectrum
    return {
        "schema_version": SCHEMA_VERSION,
        "input_shape": list(view.input_shape),
        "task": view.task.name,
        "name": description.name,
        "parameters": description.parameters,
        "dtype": description.dtype,
        "homogeneous": description.homogeneous,
        "layers": [asdict(layer) for layer in description.layers],
        "row_space": {
            "rank": spectrum.rank,
            "noise_std": spectrum.noise_std,
            "edge": spectrum.edge,
            "threshold": spectrum.threshold,
            "singular_values": spectrum.values.tolist(),
        },
        "equations": asdict(description.equations),
        "margin": None if description.margin is None else asdict(description.margin),
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
