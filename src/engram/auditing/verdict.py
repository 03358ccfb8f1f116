"""Leak or not, in one sentence with the numbers behind it. "No leak found" is never a proof of safety."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scipy.stats import fisher_exact

from engram.attacks.reconstruction import Reconstruction
from engram.auditing.comparison import LIKELY, SURE, BlindView, Comparison, deciding_threshold
from engram.auditing.reach import Verdict
from engram.scoring.report import ScoreReport

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
