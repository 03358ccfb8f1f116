"""Before the attack: whether a model is in reach, and why. After it: leak or not, in one sentence.

"No leak found" is never a proof of safety.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import Tensor

from engram.attacks.reconstruction import Reconstruction
from engram.auditing.comparison import LIKELY, SURE, BlindView, Comparison, deciding_threshold
from engram.auditing.inspect import RECOGNISED, Description, Examination
from engram.models.networks import Network
from engram.models.view import AttackerView
from engram.scoring.report import ScoreReport

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
            "at_edges": found.spectrum.at_edges,
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


Outcome = Literal["leak found", "leak suspected", "no leak found", "not enough evidence"]
SIGNIFICANT = 0.005
"""Two tests at this level: one in a hundred models that never saw the data is called leaking by chance."""
LIKELY_ENOUGH = 5
"""With this many candidates at 50 %, the chance that none is real is 3 %."""
NOTHING_LEARNT = ("hidden layer", "row space")
"""Reasons of `judge` that mean that the layer contains no image: then the candidates show nothing."""
NO_PROOF = "This is not a proof of safety: a better attack may find more."


@dataclass(frozen=True)
class AuditVerdict:
    """`p_reconstruction` and `p_membership`: the chance of such numbers if training had not seen the records."""

    outcome: Outcome
    sentence: str
    p_reconstruction: float | None = None
    p_membership: float | None = None

    @property
    def leaks(self) -> bool:
        """Found or suspected: what should stop a release. A model in doubt leaks if the numbers show it anyway."""
        if self.outcome == "not enough evidence":
            chances = [one for one in (self.p_reconstruction, self.p_membership) if one is not None]
            return any(chance < SIGNIFICANT for chance in chances)
        return self.outcome != "no leak found"

    def doubted(self, doubts: Sequence[str]) -> AuditVerdict:
        """The verdict if the model was probably read wrongly: its numbers then say little."""
        if not doubts:
            return self
        return replace(self, outcome="not enough evidence", sentence=in_doubt(doubts, self.sentence))


def in_doubt(doubts: Sequence[str], sentence: str) -> str:
    """The sentence of a verdict on a model that was probably read wrongly."""
    reason = f"{doubts[0][0].upper()}{doubts[0][1:]}"
    return f"Not enough evidence. {reason}. As the model was read: {sentence}"


def decide(blind: BlindView, comparison: Comparison | None, reach: Verdict) -> AuditVerdict:
    """By the records and their control if there are any, else by the blind confidence."""
    if comparison is None:
        return _blind_verdict(blind, reach)
    row = comparison.count
    n = len(comparison.score.train)
    counted = f"{row.train} of {n} training records were recovered ({comparison.threshold.text})"
    if row.held_out is None or comparison.score.held_out is None or comparison.membership is None:
        return _uncontrolled(row.train, counted).doubted(comparison.doubts)
    k = len(comparison.score.held_out)
    p_images = chance_of(row.train, n, row.held_out, k)
    curve = comparison.membership["combined"].roc
    numbers = (
        f"{counted}, against {row.held_out} of {k} held-out records; {curve.at(0):.0%} of the members are "
        f"identified without a false alarm (AUC {curve.auc:.2f})."
    )
    outcome: Outcome
    if p_images < SIGNIFICANT:
        outcome, sentence = "leak found", f"Leak found: {numbers}"
    elif curve.p_value < SIGNIFICANT:
        outcome, sentence = "leak found", f"Leak found, of membership but not of images: {numbers}"
    elif row.train * k > row.held_out * n:
        outcome = "leak suspected"
        sentence = f"Leak suspected: more than in the control, but no more than chance can give: {numbers}"
    else:
        outcome, sentence = "no leak found", f"No leak found by this attack: {numbers} {NO_PROOF}"
    return AuditVerdict(outcome, sentence, p_images, curve.p_value).doubted(comparison.doubts)


def chance_of(hits: int, records: int, held_out_hits: int, held_out: int) -> float:
    """The chance of this many hits or more among the records if they were no likelier than held-out ones (Fisher).

    >>> round(chance_of(6, 8, 0, 8), 4), chance_of(0, 8, 0, 8)
    (0.0035, 1.0)
    """
    from scipy.stats import fisher_exact

    table = [[hits, records - hits], [held_out_hits, held_out - held_out_hits]]
    return float(fisher_exact(table, "greater")[1])


def is_suspect(found: Reconstruction) -> bool:
    """Whether the blind confidence is high enough for some candidates to be real."""
    return found.count_above(SURE) > 0 or found.count_above(LIKELY) >= LIKELY_ENOUGH


def _uncontrolled(hits: int, counted: str) -> AuditVerdict:
    if hits:
        return AuditVerdict(
            "leak suspected", f"Leak suspected: {counted}; without held-out records this may be chance."
        )
    return AuditVerdict("no leak found", f"No leak found by this attack: {counted}. {NO_PROOF}")


def _blind_verdict(blind: BlindView, reach: Verdict) -> AuditVerdict:
    total = len(blind.found)
    if reach.decided_by in NOTHING_LEARNT and not reach.in_reach:
        # Restarts also agree on noise where there is nothing else: their confidence means nothing here.
        return AuditVerdict("no leak found", f"No leak found by this attack. {reach.sentence} {NO_PROOF}")
    if not blind.found.has_confidence:
        return AuditVerdict(
            "leak suspected",
            f"Leak suspected, because {total} candidates without a confidence can't be judged; give your training "
            "data, or more time.",
        )
    if not blind.calibrated:
        return AuditVerdict(
            "not enough evidence",
            f"Not enough evidence: with a smooth activation the confidence of the {total} candidates says little; "
            "give your training data to measure what they show.",
        )
    numbers = f"an attacker would get {blind.sure} candidates that show a training image at {SURE:.0%} confidence"
    if is_suspect(blind.found):
        also = f" ({blind.likely} at {LIKELY:.0%}), out of {total}; give your training data to measure it."
        return AuditVerdict("leak suspected", f"Leak suspected: {numbers}{also}")
    return AuditVerdict(
        "no leak found", f"No leak found by this attack: {numbers} ({blind.likely} at {LIKELY:.0%}). {NO_PROOF}"
    )


def sweep_verdict(pooled: Reconstruction, score: ScoreReport | None, trials: int) -> AuditVerdict:
    """By the records and held-out ones if there are any, else by the blind confidence."""
    source = f"{len(pooled):,} candidates pooled from {trials} trial{'s' * (trials != 1)}"
    if score is None:
        return _blind(pooled, source)
    threshold = deciding_threshold(score)
    row = score.counts[threshold.text]
    counted = f"{row.train} of {len(score.train)} training records were recovered ({threshold.text}) in {source}"
    if row.held_out is None or score.held_out is None:
        return AuditVerdict("leak suspected" if row.train else "no leak found", f"{counted}, without a control.")
    chance = chance_of(row.train, len(score.train), row.held_out, len(score.held_out))
    numbers = f"{counted}, against {row.held_out} of {len(score.held_out)} held-out records."
    if chance < SIGNIFICANT:
        return AuditVerdict("leak found", f"Leak found: {numbers}", chance)
    if row.train * len(score.held_out) > row.held_out * len(score.train):
        sentence = f"Leak suspected: more than in the control, but no more than chance can give: {numbers}"
        return AuditVerdict("leak suspected", sentence, chance)
    return AuditVerdict("no leak found", f"No leak found by these trials: {numbers} {NO_PROOF}", chance)


def _blind(pooled: Reconstruction, source: str) -> AuditVerdict:
    sure, likely = (pooled.count_above(level) for level in (SURE, LIKELY))
    numbers = f"{sure} of {source} show a training image at {SURE:.0%} confidence, {likely} at {LIKELY:.0%}"
    if not pooled.has_confidence:
        sentence = f"Leak suspected, because {source} can't be judged without a second trial; run more trials."
        return AuditVerdict("leak suspected", sentence)
    if is_suspect(pooled):
        return AuditVerdict("leak suspected", f"Leak suspected: {numbers}; give your training data to measure it.")
    return AuditVerdict("no leak found", f"No leak found by these trials: {numbers}. {NO_PROOF}")


@dataclass(frozen=True)
class Measured:
    """What a defence did to a target, measured (docs/defences.md): before and after, means over seeds."""

    kind: str
    way: str
    members: tuple[float, float]
    accuracy: tuple[float, float]
    images: tuple[int, int] | None
    """Beyond the control."""
    command: str


TARGETS = {
    "gate": "a gate that learnt 50 faces by heart",
    "mlp": "a fully-connected network of 500 images in ten classes",
    "cnn": "a network with convolutions and batch norm, 500 images in ten classes",
    "head": "a head on embeddings, 100 records in ten classes",
}
_HARDEN = "engram harden {model} --data YOURS --held-out OTHERS -o runs/safer"
_DEFEND = "engram defend {} --only {} -o runs/defences"
MEASURED = (
    Measured("gate", "mended; it knows 74 % of its faces then", (1.0, 0.04), (0.48, 0.52), (41, 0), _HARDEN),
    Measured("gate", "DP-SGD, epsilon 1", (0.99, 0.02), (0.48, 0.45), None, _DEFEND.format("gate", "dp-1")),
    Measured("mlp", "mended", (0.93, 0.013), (0.323, 0.32), (37, 0), _HARDEN),
    Measured("mlp", "flips and shifts", (0.881, 0.132), (0.317, 0.337), None, _DEFEND.format("mlp", "augmented")),
    Measured("mlp", "DP-SGD, epsilon 8", (0.881, 0.003), (0.317, 0.225), None, _DEFEND.format("mlp", "dp-8")),
    Measured("cnn", "mended", (0.821, 0.01), (0.458, 0.458), None, _HARDEN),
    Measured("cnn", "flips and shifts", (0.867, 0.035), (0.478, 0.472), None, _DEFEND.format("cnn", "augmented")),
    Measured("cnn", "four times the records", (0.867, 0.084), (0.478, 0.609), None, _DEFEND.format("cnn", "more")),
    Measured("cnn", "DP-SGD, epsilon 8", (0.867, 0.001), (0.478, 0.237), None, _DEFEND.format("cnn", "dp-8")),
    Measured("head", "mended", (0.997, 0.03), (0.744, 0.751), None, _HARDEN),
    Measured("head", "DP-SGD, epsilon 8", (0.993, 0.033), (0.755, 0.285), None, _DEFEND.format("head", "dp-8")),
)
"""Best first within a kind."""


def kind_of_target(view: AttackerView[Network] | None, shape: Sequence[int], records: int | None) -> str:
    """The measured target that a model is most like: by its layers, its inputs, and how many records it has."""
    if len(shape) != 3:
        return "head"
    if view is None or view.dense is None:
        return "cnn"
    few = records is not None and records <= FEW_RECORDS
    return "gate" if view.task.label_count == 2 and (few or records is None) else "mlp"


FEW_RECORDS = 150
