"""What an audit compares: the given records, the candidates judged blind, and the two with each other; and what
model inversion and the raw weights recover, scored like the attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from engram.attacks.inversion import InversionSettings, first_layer_images, invert
from engram.attacks.reconstruction import Reconstruction
from engram.auditing.inspect import Examination, examine
from engram.core.errors import require
from engram.core.files import aligned
from engram.core.loop import Progress, by_steps, silent
from engram.data.sets import ImageSet, Split
from engram.members.kkt import DensePart, Membership, membership_tests
from engram.members.membership import margin_of, right_about
from engram.members.pool import Control, Pool
from engram.members.scores import score_layers
from engram.models.networks import Network
from engram.models.open.modules import as_module
from engram.models.row_space import RowSpace
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.pipeline import compare, default_protocol
from engram.scoring.curves import LineUp, Reliability, Roc, line_up, reliability, roc
from engram.scoring.match import HIGHER_IS_BETTER, Threshold
from engram.scoring.report import Count, ScoreReport

Samples = ImageSet | Sequence[Tensor]
"""An ImageSet, or (images [n, *shape] in [0, 1], labels [n])."""
NULL_POINTS = 2000
BEYOND = 2
"""A candidate on more than twice as many boundaries as any random point is not a random point."""
ON_BOUNDARIES = 0.99
"""The confidence of such a candidate: no held-out image is on that many (docs/audit.md)."""
SURE, LIKELY = 0.9, 0.5
LEARNT = 0.9
"""A model that was trained on the records gets at least this share of them right."""


def audit_data(
    view: AttackerView[Network], train: Samples, held_out: Samples | None, mean: Tensor | None = None
) -> Split:
    """Both sets, disjoint, with the model's shape and labels; `mean` None is the training mean, as in the papers.

    Without held-out records there is no control, and that part of the split is empty.
    """
    records = image_set(view, train, "train")
    others = records.take(torch.zeros(0, dtype=torch.int64))
    if held_out is not None:
        others = image_set(view, held_out, "held_out")
        shared = len(row_bytes(records.images) & row_bytes(others.images))
        require(
            shared == 0,
            "held_out",
            "must contain no training record: it is the control",
            f"{shared} that are also in train",
            "give records that training never saw",
        )
    if view.normalization is not None:
        require(mean is None, "mean", "is part of the normalisation", "both", "leave mean out")
        mean = view.normalization.mean_of(view.input_shape)
    centre = records.images.mean(0) if mean is None else mean.to(torch.float32)
    require(
        tuple(centre.shape) == tuple(view.input_shape),
        "mean",
        f"must have the model's input shape {_shape(view.input_shape)}",
        _shape(centre.shape),
    )
    return Split(records, others, centre)


def image_set(view: AttackerView[Network], samples: Samples, name: str) -> ImageSet:
    """Samples as records of the model's shape and labels."""
    if not isinstance(samples, ImageSet):
        require(len(samples) == 2, name, "must be (images, labels)", f"{len(samples)} parts")
        images, labels = (torch.as_tensor(part) for part in samples)
        classes = tuple(map(str, range(view.task.label_count)))
        require(labels.ndim == 1, name, "must have labels [n]", tuple(labels.shape))
        samples = ImageSet(aligned(images.detach().cpu().float()), labels.detach().cpu().long(), name, classes)
    require(len(samples) > 0, name, "must contain at least one record", 0, "choose other data")
    require(
        samples.shape == tuple(view.input_shape),
        name,
        f"must have the model's input shape {_shape(view.input_shape)}",
        _shape(samples.shape),
        "choose the data that the model was trained on, or another input shape",
    )
    require(
        int(samples.labels.max()) < view.task.label_count,
        name,
        f"must have labels below {view.task.label_count} for a {view.task.name} task",
        int(samples.labels.max()),
        "choose another label map with --labels",
    )
    require(bool(samples.images.isfinite().all()), name, "must contain only finite numbers", "NaN or infinity")
    return samples


def row_bytes(images: Tensor) -> set[bytes]:
    """Records [n, ...] as bytes, to compare sets of them."""
    return {row.numpy().tobytes() for row in images.flatten(1)}


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


@dataclass(frozen=True, eq=False)
class BlindView:
    """Candidates with their confidence in `scores`, the number of boundaries each lies on [m], and the most that
    chance gives: the largest number for random points in the row space with the candidates' norms."""

    found: Reconstruction
    boundaries: Tensor
    by_chance: int
    calibrated: bool = True
    """The confidence was fitted to networks whose activation has a kink. With others it is far too high."""

    @property
    def sure(self) -> int:
        return self.found.count_above(SURE)

    @property
    def likely(self) -> int:
        return self.found.count_above(LIKELY)


def blind_view(part: DensePart, found: Reconstruction, basis: Tensor, *, seed: int = 0) -> BlindView:
    """Judge candidates without any data; `basis` [r, d] spans the row space of the part's first layer.

    Where candidates are near their image but not on it, agreement alone decides. A candidate that lies exactly on
    many boundaries, where only training moves points, is raised to `ON_BOUNDARIES`. Sorted by confidence.
    """
    entering = part.entering(found.images)
    counts = part.boundaries(entering)
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(NULL_POINTS, len(basis), generator=generator, dtype=torch.float64) @ basis.double()
    sizes = entering.norm(dim=1)[torch.randint(len(entering), (NULL_POINTS,), generator=generator)]
    points *= (sizes / points.norm(dim=1).clamp(min=1e-12))[:, None]
    by_chance = int(part.boundaries(points).max())
    scores = found.scores
    if scores is not None:
        on_many = counts > BEYOND * max(by_chance, 1)
        raised = scores.nan_to_num(nan=0.0).clamp(min=ON_BOUNDARIES)
        scores = torch.where(on_many, raised.to(scores), scores)
        order = scores.nan_to_num(nan=-1.0).argsort(descending=True, stable=True)
        found, counts = replace(found, scores=scores).take(order), counts[order]
    return BlindView(found, counts, by_chance, calibrated=part.whole.activation.has_kink)


@dataclass(frozen=True)
class Risk:
    """What leaks about one record; None where undefined. `index` is its position in the given data."""

    index: int
    label: int
    recovered: bool
    member_identified: bool | None
    """Its membership score is above that of every held-out record."""
    ssim: float | None
    ncc: float | None
    relative_l2: float | None
    margin: float | None
    dual: float | None
    ceiling_ssim: float | None
    ceiling_ncc: float | None
    boundaries: int | None
    membership: float | None
    line_up_rank: int | None
    """Among decoys; 1 if the record is picked out."""
    candidate: int
    confidence: float | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """All that needs data. What needs held-out records is None without them, `examination` unless binary."""

    data: Split
    score: ScoreReport
    threshold: Threshold
    """What counts as recovered: NCC > 0.8, or relative L2 < 0.3 where there is no NCC."""
    roc: Roc | None
    """Best match of each training record against that of each held-out one."""
    examination: Examination | None
    membership: Membership | None
    reliability: Reliability | None
    risks: tuple[Risk, ...]
    accuracy: float
    """Share of the training records that the model classifies as labelled."""
    line_up: LineUp | None
    """Whether a candidate picks its record out among decoys; None without held-out records."""
    control: Control | None
    """How well the two sets can be told apart without the model; None without held-out records."""
    doubts: tuple[str, ...] = ()
    """What is probably wrong about how the model was read."""

    @property
    def count(self) -> Count:
        """How many records pass that threshold."""
        return self.score.counts[self.threshold.text]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the numbers doubtful."""
        known = (*(() if self.control is None else self.control.warnings), *self.score.warnings)
        if self.accuracy >= LEARNT or self.doubts:
            return (*self.doubts, *known)
        doubt = (
            f"the model gets only {self.accuracy:.0%} of the training records right: they may not be what it was "
            "trained on, or the labels or the preprocessing (--normalize, --mean) are wrong"
        )
        return (doubt, *known)

    def to_json(self) -> dict[str, Any]:
        return {
            "train": _described(self.data.train),
            "held_out": _described(self.data.held_out),
            "accuracy": self.accuracy,
            "warnings": list(self.warnings),
            "doubts": list(self.doubts),
            "control": None if self.control is None else self.control.to_json(),
            "threshold": self.threshold.text,
            "scores": self.score.to_json(),
            "reconstruction_roc": None if self.roc is None else self.roc.to_json(),
            "membership": None if self.membership is None else self.membership.to_json(),
            "line_up": None if self.line_up is None else self.line_up.to_json(),
            "confidence": None if self.reliability is None else self.reliability.to_json(),
            "risks": [asdict(risk) for risk in self.risks],
        }


def compare_with(
    view: AttackerView[Network],
    part: DensePart,
    blind: BlindView,
    data: Split,
    space: RowSpace,
    doubts: tuple[str, ...] = (),
) -> Comparison:
    """Everything that the data show about the candidates and the weights; `space` is the part's row space."""
    score = compare(blind.found, data, network=view.network)
    threshold = deciding_threshold(score)
    inputs = data.train.images - data.mean
    unseen = data.held_out.images - data.mean if len(data.held_out) else None
    examination = None
    if isinstance(view.task, Binary):
        examination = examine(
            part, space, data.train.images, data.train.labels, data.mean, held_out=data.held_out.images
        )
    membership = control_kind = lined = None
    if unseen is not None:
        membership, pool = members_tested(view, part, data)
        control_kind, lined = pool.control, line_up(blind.found.images, inputs, unseen)
    return Comparison(
        data=data,
        score=score,
        threshold=threshold,
        roc=_match_roc(score, threshold.metric),
        examination=examination,
        membership=membership,
        reliability=reliability(blind.found, inputs, unseen),
        risks=_risks(score, threshold, examination, membership, lined, blind.found.scores),
        accuracy=float(
            view.task.correct(view.network(inputs.to(view.network.weights[0])), data.train.labels).double().mean()
        ),
        line_up=lined,
        control=control_kind,
        doubts=doubts,
    )


def members_tested(
    view: AttackerView[Network], part: DensePart, data: Split, module: nn.Module | None = None
) -> tuple[Membership, Pool]:
    """Every test of who was in training, and the pool of records; `module` is the network, if it is at hand."""
    inputs, unseen = data.train.images - data.mean, data.held_out.images - data.mean
    pool = Pool.of((inputs, data.train.labels), (unseen, data.held_out.labels))
    layers = score_layers(as_module(view.network) if module is None else module, pool, margin_of(view.task))
    found = membership_tests(
        part.view,
        (part.entering(inputs), data.train.labels),
        (part.entering(unseen), data.held_out.labels),
        list(layers.scores.values()),
        right=right_about(view.task, layers.margins),
        width=part.width,
    )
    return found, pool


def deciding_threshold(score: ScoreReport) -> Threshold:
    """NCC, which the training mean does not raise; relative L2 for inputs of fewer than three values."""
    return Threshold("relative_l2", 0.3) if score.train.ncc is None else Threshold("ncc", 0.8)


def _match_roc(score: ScoreReport, metric: str) -> Roc | None:
    if score.held_out is None:
        return None
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    own, other = (sign * getattr(table, metric) for table in (score.train, score.held_out))
    return roc(own, other)


def _risks(
    score: ScoreReport,
    threshold: Threshold,
    examination: Examination | None,
    membership: Membership | None,
    lined: LineUp | None,
    confidence: Tensor | None,
) -> tuple[Risk, ...]:
    table, combined = score.train, None if membership is None else membership["combined"]
    ceiling = None if examination is None else examination.ceiling
    own = None if confidence is None else confidence[table.candidate.clamp(min=0)]
    columns: dict[str, Tensor | None] = {
        "label": table.label,
        "recovered": table.passing(threshold.metric, threshold.value),
        "member_identified": None if combined is None else combined.train > combined.held_out.max(),
        "ssim": table.ssim,
        "ncc": table.ncc,
        "relative_l2": table.relative_l2,
        "margin": None if examination is None else examination.margins,
        "dual": None if examination is None else examination.kkt.duals,
        "ceiling_ssim": None if ceiling is None else ceiling.ssim,
        "ceiling_ncc": None if ceiling is None else ceiling.ncc,
        "boundaries": None if examination is None else examination.boundaries,
        "membership": None if combined is None else combined.train,
        "line_up_rank": None if lined is None else lined.train,
        "candidate": table.candidate,
        "confidence": own,
    }
    lists = {name: None if column is None else column.tolist() for name, column in columns.items()}
    return tuple(Risk(index=row, **_row(lists, row)) for row in range(len(table)))


def _row(lists: dict[str, Any], row: int) -> dict[str, Any]:
    return {name: None if column is None else _plain(column[row]) for name, column in lists.items()}


def _described(data: ImageSet) -> dict[str, Any] | None:
    return {"name": data.name, "records": len(data), "sha256": data.digest()} if len(data) else None


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Scale = Literal["none", "quick", "full"]
SCALES: dict[str, InversionSettings | None] = {
    "none": None,
    "quick": InversionSettings(),
    "full": InversionSettings(images=40_000, steps=1000),
}


def inversion_settings(
    scale: str, images: int | None = None, view: AttackerView[Network] | None = None
) -> InversionSettings | None:
    """The model inversion at a scale, None for no baselines; `images` overrides the number of starts, which must
    fit in memory for a view."""
    require(scale in SCALES, "baselines", f"must be one of {', '.join(SCALES)}", scale)
    chosen = SCALES[scale]
    if images is None or chosen is None:
        require(images is None, "images", "has no effect without baselines", images, "choose quick or full")
        return chosen
    chosen = replace(chosen, images=images)
    if view is not None:
        chosen.require_room(view)
    return chosen


@dataclass(frozen=True, eq=False)
class Baseline:
    """Images [m, *shape] in network coordinates, outputs [m] where defined, and the score if there are data.

    Kernels [m, C, k, k] of a convolution are shown but not scored: they are smaller than an image.
    """

    name: Literal["model inversion", "first-layer weights", "first-layer kernels"]
    images: Tensor
    outputs: Tensor | None
    score: ScoreReport | None
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        score = None if self.score is None else self.score.to_json()
        return {"name": self.name, "images": len(self.images), "settings": self.settings, "scores": score}


def run_baselines(
    view: AttackerView[Network],
    settings: InversionSettings | None,
    data: Split | None,
    *,
    progress: Progress = silent,
) -> tuple[Baseline, ...]:
    """Both baselines, or none."""
    if settings is None:
        return ()
    found = invert(view, settings, observers=[by_steps(progress, "inverting", settings.steps)])
    score = _scored(found.images, data, view.network)
    return Baseline("model inversion", found.images, found.outputs, score, asdict(settings)), _weights(view, data)


def _weights(view: AttackerView[Network], data: Split | None) -> Baseline:
    if (dense := view.dense) is None:
        return Baseline("first-layer kernels", view.network.weights[0], None, None, {})
    images = first_layer_images(dense)
    return Baseline("first-layer weights", images, None, _scored(images, data, view.network), {})


def _scored(images: Tensor, data: Split | None, network: Network) -> ScoreReport | None:
    if data is None:
        return None
    nothing = images.new_zeros(len(images))
    found = Reconstruction(images.cpu().float(), nothing, nothing.long())
    return compare(found, data, protocol=default_protocol(data.train.images, network))
