"""Leak or not, in one sentence with the numbers behind it. "No leak found" is never a proof of safety."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scipy.stats import fisher_exact

from engram.attacks.reconstruction import Reconstruction
from engram.auditing.comparison import LIKELY, SURE, BlindView, Comparison, deciding_threshold
from engram.auditing.reach import Verdict
from engram.scoring.report import ScoreReport

Outcome = Literal["leak found", "leak suspected", "no leak found"]
SIGNIFICANT = 0.005
"""Two tests at this level: one model in a hundred that never saw the data is called leaking by chance."""
LIKELY_ENOUGH = 5
"""Of so many candidates at 50 % that none is real has a chance of 3 %."""
NOTHING_LEARNT = ("hidden layer", "row space")
"""What a first layer lacks that holds no image: then candidates are not images of anything."""
NO_PROOF = "This is not a proof of safety: a better attack may find more."


@dataclass(frozen=True)
class AuditVerdict:
    """`p_reconstruction` and `p_membership`: chances of numbers like these, had training not seen the records."""

    outcome: Outcome
    sentence: str
    p_reconstruction: float | None = None
    p_membership: float | None = None

    @property
    def leaks(self) -> bool:
        """Found or suspected: what a release should stop for."""
        return self.outcome != "no leak found"


def decide(blind: BlindView, comparison: Comparison | None, reach: Verdict) -> AuditVerdict:
    """By the records against their control if there are any, else by the blind confidence."""
    if comparison is None:
        return _blind_verdict(blind, reach)
    row = comparison.count
    n = len(comparison.score.train)
    counted = f"{row.train} of {n} training records came back ({comparison.threshold.text})"
    if row.held_out is None or comparison.score.held_out is None or comparison.membership is None:
        return _uncontrolled(row.train, counted)
    k = len(comparison.score.held_out)
    p_images = chance_of(row.train, n, row.held_out, k)
    curve = comparison.membership["combined"].roc
    numbers = (
        f"{counted}, of {k} held-out ones {row.held_out}; {curve.at(0):.0%} of the members are identified "
        f"without a false alarm (AUC {curve.auc:.2f})."
    )
    outcome: Outcome
    if p_images < SIGNIFICANT:
        outcome, sentence = "leak found", f"Leak found: {numbers}"
    elif curve.p_value < SIGNIFICANT:
        outcome, sentence = "leak found", f"Leak found, of membership though not of images: {numbers}"
    elif row.train * k > row.held_out * n:
        outcome = "leak suspected"
        sentence = f"Leak suspected: more than in the control, yet within what chance may give: {numbers}"
    else:
        outcome, sentence = "no leak found", f"No leak found by this attack: {numbers} {NO_PROOF}"
    return AuditVerdict(outcome, sentence, p_images, curve.p_value)


def chance_of(hits: int, records: int, held_out_hits: int, held_out: int) -> float:
    """The chance of so many hits, or more, among the records, were they no likelier than held-out ones (Fisher).

    >>> round(chance_of(6, 8, 0, 8), 4), chance_of(0, 8, 0, 8)
    (0.0035, 1.0)
    """
    table = [[hits, records - hits], [held_out_hits, held_out - held_out_hits]]
    return float(fisher_exact(table, "greater")[1])


def is_suspect(found: Reconstruction) -> bool:
    """Whether candidates are confident enough, judged blind, for some to be real."""
    return found.count_above(SURE) > 0 or found.count_above(LIKELY) >= LIKELY_ENOUGH


def _uncontrolled(hits: int, counted: str) -> AuditVerdict:
    if hits:
        return AuditVerdict(
            "leak suspected", f"Leak suspected: {counted}; without held-out records that may be chance."
        )
    return AuditVerdict("no leak found", f"No leak found by this attack: {counted}. {NO_PROOF}")


def _blind_verdict(blind: BlindView, reach: Verdict) -> AuditVerdict:
    total = len(blind.found)
    if reach.decided_by in NOTHING_LEARNT and not reach.in_reach:
        # Restarts agree on noise too where there is nothing else: their confidence says nothing here.
        return AuditVerdict("no leak found", f"No leak found by this attack. {reach.sentence} {NO_PROOF}")
    if not blind.found.has_confidence:
        return AuditVerdict(
            "leak suspected",
            f"Leak suspected, for want of a judgement: {total} candidates without a confidence; give your "
            "training data, or more time.",
        )
    numbers = f"a stranger would hold {blind.sure} candidates that show a training image at {SURE:.0%} confidence"
    if is_suspect(blind.found):
        also = f" ({blind.likely} at {LIKELY:.0%}), out of {total}; with your data this can be measured."
        return AuditVerdict("leak suspected", f"Leak suspected: {numbers}{also}")
    return AuditVerdict(
        "no leak found", f"No leak found by this attack: {numbers} ({blind.likely} at {LIKELY:.0%}). {NO_PROOF}"
    )


def sweep_verdict(pooled: Reconstruction, score: ScoreReport | None, trials: int) -> AuditVerdict:
    """By the records against held-out ones if there are any, else by the blind confidence."""
    source = f"{len(pooled):,} candidates pooled from {trials} trial{'s' * (trials != 1)}"
    if score is None:
        return _blind(pooled, source)
    threshold = deciding_threshold(score)
    row = score.counts[threshold.text]
    counted = f"{row.train} of {len(score.train)} training records came back ({threshold.text}) in {source}"
    if row.held_out is None or score.held_out is None:
        return AuditVerdict("leak suspected" if row.train else "no leak found", f"{counted}, without a control.")
    chance = chance_of(row.train, len(score.train), row.held_out, len(score.held_out))
    numbers = f"{counted}, of {len(score.held_out)} held-out ones {row.held_out}."
    if chance < SIGNIFICANT:
        return AuditVerdict("leak found", f"Leak found: {numbers}", chance)
    if row.train * len(score.held_out) > row.held_out * len(score.train):
        sentence = f"Leak suspected: more than in the control, yet within what chance may give: {numbers}"
        return AuditVerdict("leak suspected", sentence, chance)
    return AuditVerdict("no leak found", f"No leak found by these trials: {numbers} {NO_PROOF}", chance)


def _blind(pooled: Reconstruction, source: str) -> AuditVerdict:
    sure, likely = (pooled.count_above(level) for level in (SURE, LIKELY))
    numbers = f"{sure} of {source} show a training image at {SURE:.0%} confidence, {likely} at {LIKELY:.0%}"
    if not pooled.has_confidence:
        sentence = f"Leak suspected, for want of a judgement: {source} and nothing to agree with; run more trials."
        return AuditVerdict("leak suspected", sentence)
    if is_suspect(pooled):
        return AuditVerdict("leak suspected", f"Leak suspected: {numbers}; with your data this can be measured.")
    return AuditVerdict("no leak found", f"No leak found by these trials: {numbers}. {NO_PROOF}")
