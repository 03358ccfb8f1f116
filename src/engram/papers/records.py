"""What is stored for a case: a record of plain numbers, and the images that its figures are drawn from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from engram.core import files
from engram.core.errors import CheckpointError, EngramError
from engram.scoring.report import Count

RECORD_FILE, TENSORS_FILE, FIGURE_FILE = "case.json", "tensors.safetensors", "figure.png"
GOOD = "ssim>0.4"
"""What the papers call a good reconstruction."""
NEAR = "relative_l2<0.1"
"""The same for points in the plane."""
CURE = "delete it and it will be computed again"


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the target turned out; test numbers are None if the data has no test images."""

    loss: float
    accuracy: float
    smallest_margin: float
    test_loss: float | None
    test_accuracy: float | None
    epochs: int
    stopped: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CaseRecord:
    """One target and one attack on it.

    `samples` has one column for each of ssim, ncc, relative_l2, output and margin that is defined, in the order of
    the training images.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    key: str
    preset: str
    attack: str
    scale: str
    seed: int
    network: str
    task: str
    data: str
    n: int
    n_held_out: int
    cuts: tuple[str, ...]
    training: Training
    settings: dict[str, Any]
    candidates: int
    counts: dict[str, Count]
    top10: float | None
    samples: dict[str, list[float]]
    steps: int
    attack_seconds: float
    resumed: bool
    """Whether the attack was resumed after a kill; its seconds are then those of the last process only."""
    message: str
    commit: str | None
    versions: dict[str, str]
    schema_version: int = 1

    @property
    def good(self) -> Count:
        """The count that the papers report."""
        return self.counts[GOOD if GOOD in self.counts else NEAR]

    def median_margin(self, *, good: bool) -> float | None:
        """Median margin of the samples that came back well, or of the others; None without any or without SSIM."""
        scores, margins = self.samples.get("ssim"), self.samples.get("margin")
        if scores is None or margins is None:
            return None
        chosen = [margin for margin, score in zip(margins, scores, strict=True) if (score > 0.4) is good]
        return median(chosen) if chosen else None

    def row(self) -> dict[str, Any]:
        """Everything except the columns per sample, of which only the median margins are kept."""
        plain = asdict(self)
        del plain["samples"]
        margins = {name: self.median_margin(good=good) for name, good in (("good", True), ("others", False))}
        return {**plain, "median_margin": margins}


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished case: its record and tensors, and its figure if it draws its own.

    Tensors: `original` and `reconstruction` [n, *shape] as bytes for images; `points` and `point_labels` for
    vectors; `candidates` [m, *shape]; `outputs` [m] for an inversion; `kernels` of the first convolution.
    """

    record: CaseRecord
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    figure: bytes | None = None

    def contents(self) -> dict[str, bytes]:
        """The files of its directory, by name."""
        from safetensors.torch import save

        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        made = {RECORD_FILE: files.json_bytes(asdict(self.record)), TENSORS_FILE: save(stored)}
        return made if self.figure is None else {**made, FIGURE_FILE: self.figure}


def read_finished(place: Path) -> Finished | None:
    """The case in a directory, None if there is none."""
    if not place.is_dir():
        return None
    figure = place / FIGURE_FILE
    try:
        # as JSON, so that lists become tuples
        text = json.dumps(files.read_json(place / RECORD_FILE))
        record = TypeAdapter(CaseRecord).validate_json(text)
        tensors = files.read_tensors(place / TENSORS_FILE)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise CheckpointError(f"{place} is damaged ({problem}); {CURE}") from error
    except EngramError as error:
        raise CheckpointError(f"{place} is damaged ({error}); {CURE}") from error
    return Finished(record, tensors, figure.read_bytes() if figure.exists() else None)
