"""What a sweep says of its model, in one sentence: the audit's rules, for the pooled candidates."""

from __future__ import annotations

from engram.auditing.blind import LIKELY, SURE
from engram.auditing.comparison import deciding_threshold
from engram.auditing.verdict import NO_PROOF, SIGNIFICANT, AuditVerdict, chance_of, is_suspect
from engram.matching import ScoreReport
from engram.reconstruct.candidates import Reconstruction


def sweep_verdict(pooled: Reconstruction, score: ScoreReport | None, trials: int) -> AuditVerdict:
    """By the records against held-out ones if there are any, else by the blind confidence."""
    source = f"{len(pooled):,} candidates pooled from {trials} trial{'s' * (trials != 1)}"
    if score is None:
        return _blind(pooled, source)
    threshold = deciding_threshold(score)
    row = next(row for row in score.counts if row.threshold == threshold)
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
