"""The release decision: a policy says what risk is accepted, and an audit's report.json is judged by it.

The decision depends on the policy and the report alone, so anybody who has both can repeat it. Nothing that chance
could give decides: between what is shown to be too much and what is shown to be little enough lies "not enough
evidence", with what would settle it. docs/guides/policy.md says how every rule is judged.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from engram.auditing.comparison import LIKELY, SURE
from engram.auditing.record import AuditRecord, Evidence
from engram.auditing.verdict import LIKELY_ENOUGH, SIGNIFICANT, chance_of
from engram.core import files
from engram.core.errors import CheckpointError, ConfigError, require
from engram.render.html import DECISION_FILE
from engram.scoring.curves import Interval, chance_of_more, largest_epsilon, rate_bounds

Outcome = Literal["pass", "fail", "not enough evidence"]
DECISION_VERSION = 1

LARGEST_FILE = 2**16
"""Of a policy, in bytes: ours have less than 3,000."""
MOST = 10**9
TESTS = ("reconstruction", "membership", "model inversion")
NEARLY, SURE_OF_IT = 0.95, 0.95
"""An attack that plans its steps to fit into a budget ends a little before it."""
ALL = "all rules"
UNDECIDED: Outcome = "not enough evidence"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class RuleResult:
    """One rule of the policy, judged."""

    rule: str
    limit: str
    """In words: `at most 0 beyond the control`."""
    value: str
    """In words: what was measured, or `not measured`."""
    outcome: Outcome
    reason: str
    """One sentence: why, and where evidence lacks, what would give it."""


@dataclass(frozen=True)
class Decision:
    """Whether a model may be released, and the rule that decided."""

    outcome: Outcome
    sentence: str
    """One sentence that begins with `Pass: `, `Fail: ` or `Not enough evidence: `."""
    decided_by: str
    """The name of a rule; `all rules` for a pass."""
    rules: tuple[RuleResult, ...]
    policy: Mapping[str, Any] = field(default_factory=dict)
    """The thresholds as given, and the `sha256` of their file (null from Python)."""
    audited: Mapping[str, Any] = field(default_factory=dict)
    """What was judged: model and digests of weights and records, seeds, versions, the command that repeats it."""

    def to_json(self) -> dict[str, Any]:
        """The content of decision.json."""
        content = {**asdict(self), "rules": [asdict(one) for one in self.rules]}
        return {"schema_version": DECISION_VERSION, "kind": "decision", **content}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Decision:
        """A decision from the content of decision.json."""
        try:
            rules = tuple(RuleResult(**one) for one in stored["rules"])
            names = ("outcome", "sentence", "decided_by", "policy", "audited")
            return cls(**{name: stored[name] for name in names}, rules=rules)
        except (KeyError, TypeError) as error:
            cure = "write it again with `engram policy check RUN --policy FILE --save`"
            raise CheckpointError(f"{DECISION_FILE} is no decision of this version ({error}); {cure}") from error

    def save(self, directory: Path) -> None:
        files.write_json(directory / DECISION_FILE, self.to_json())


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What risk is accepted, and what evidence a pass needs. A rule that is None is not asked."""

    name: str | None = None
    images_recovered: int | None = None
    """At most so many training images come back beyond what the control gives."""
    confident_candidates: int | None = None
    """Blind: at most so many candidates show a training image at 90 % confidence."""
    members_at_0_fpr: float | None = None
    """At most this share of the members is identified without a false alarm."""
    members_at_1_fpr: float | None = None
    """The same at a false-positive rate of 1 %."""
    epsilon: float | None = None
    """The lower bound of epsilon is at most this."""
    data: bool | None = None
    """The audit must have had the training records."""
    tests: tuple[str, ...] | None = None
    """These must have run: reconstruction, membership, model inversion."""
    smallest_control: int | None = None
    """Held-out records, at least."""
    smallest_budget: float | None = None
    """Seconds of the attack, at least."""
    smallest_accuracy: float | None = None
    """Of the model on the records: those of another model would show no leak."""
    sha256: str | None = field(default=None, repr=False)
    """Of the file that it was read from."""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            if (value := getattr(self, name)) is not None:
                check(name, value)
        require(
            any(getattr(self, name) is not None for name in _LIMITS),
            "a policy",
            f"must limit something ({', '.join(_LIMITS)}): else every model passes",
            "no limit",
            "write one with `engram policy init`",
        )

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """A policy from a TOML file."""
        path = Path(path)
        try:
            if path.exists() and not path.is_file():
                raise ConfigError(f"{path} is not a file; give a policy, or write one with `engram policy init`")
            with path.open("rb") as stream:
                content = stream.read(LARGEST_FILE + 1)
            if len(content) > LARGEST_FILE:
                raise ConfigError(f"{path} has more than {LARGEST_FILE:,} bytes: it is not a policy")
            stored = tomllib.loads(content.decode())
        except (OSError, ValueError, RecursionError) as error:
            cure = "give a TOML file, or write one with `engram policy init`"
            reason = "nested too deeply" if isinstance(error, RecursionError) else error
            raise ConfigError(f"{path} is not a readable policy ({reason}); {cure}") from error
        try:
            return cls.from_dict(stored, sha256=hashlib.sha256(content).hexdigest())
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], *, sha256: str | None = None) -> Policy:
        """A policy from the names and values of a file; an unknown name is refused."""
        known = [one.name for one in fields(cls) if one.name != "sha256"]
        for name in stored:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            cure = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            require(name in known, "a policy", "must have known rules only", _short(name), cure)
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
        }
        return cls(**values, sha256=sha256)

    @property
    def thresholds(self) -> dict[str, Any]:
        """What is asked, as given."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("name", "sha256")}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in given.items()
            if value is not None and value is not False
        }

    def decide(self, report: AuditRecord | Mapping[str, Any]) -> Decision:
        """Judge an audit: the content of its report.json (or membership.json), or the record itself."""
        content = report if isinstance(report, Mapping) else report.to_json()
        try:  # as JSON, so that a record and its file give the same decision, and NaN is refused
            facts = Evidence.of(json.loads(json.dumps(content, allow_nan=False)))
            asked = self.thresholds
            results = [rule(getattr(self, name), facts) for name, rule in _RULES.items() if name in asked]
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            IndexError,
            OverflowError,
            RecursionError,
        ) as error:
            raise CheckpointError(
                f"the report is damaged, or of another version ({type(error).__name__}: {error}); audit again"
            ) from error
        policy = {"name": self.name, "sha256": self.sha256, "thresholds": self.thresholds}
        return _decision(tuple(results), policy, facts.audited)


def _decision(rules: tuple[RuleResult, ...], policy: Mapping[str, Any], audited: Mapping[str, Any]) -> Decision:
    """A fail outweighs missing evidence, which outweighs a pass; the first rule of that kind decides."""
    for outcome in ("fail", "not enough evidence"):
        if found := [one for one in rules if one.outcome == outcome]:
            first = found[0]
            said = f"{outcome.capitalize()}: {first.rule} ({first.limit}): {first.reason}"
            return Decision(first.outcome, said, first.rule, rules, policy, audited)
    held = {1: "the only rule holds", 2: "both rules hold"}.get(len(rules), f"all {len(rules)} rules hold")
    proof = "which is no proof of safety: a better attack may find more"
    return Decision("pass", f"Pass: {held}, {proof}.", ALL, rules, policy, audited)


def _done(rule: str, limit: str, value: str, said: str, cure: str | None) -> RuleResult:
    """Of a rule about what an audit must have done: where there is a cure, a pass would mean little without it."""
    if cure is None:
        return RuleResult(rule, limit, value, "pass", f"{said}.")
    return RuleResult(rule, limit, value, UNDECIDED, f"{said}; {cure}.")


def _data(_: bool, found: Evidence) -> RuleResult:
    rule, limit = "data", "the audit must have the training records"
    if found.mode == "blind":
        return _done(rule, limit, "blind", "Blind, nobody counts what leaks", "give --data and --held-out")
    value = f"{found.records:,} training records"
    return _done(rule, limit, value, f"The audit had {value}", None)


def _tests(asked: tuple[str, ...], found: Evidence) -> RuleResult:
    cures = {
        "reconstruction": f"reconstruction was not tried ({found.not_tried})",
        "membership": "membership needs --data and --held-out",
        "model inversion": "model inversion needs --baselines quick or full",
    }
    ran, missing = ", ".join(sorted(found.ran)), [cures[name] for name in asked if name not in found.ran]
    return _done("tests", f"{', '.join(asked)} must run", ran, f"Run: {ran}", "; ".join(missing) or None)


def _control(least: int, found: Evidence) -> RuleResult:
    have = found.controls or 0
    cure = None if have >= least else f"give {least - have:,} more with --held-out"
    said = f"The control has {have:,} held-out records"
    return _done("control", f"at least {least:,} held-out records", f"{have:,}", said, cure)


def _budget(least: float, found: Evidence) -> RuleResult:
    limit = f"at least {least:g} s of attack"
    if found.seconds is None:
        return _done("budget", limit, NOT_MEASURED, "Reconstruction was not tried", str(found.not_tried))
    cure = None if found.seconds >= NEARLY * least else f"give --budget {math.ceil(least)}s"
    return _done("budget", limit, f"{found.seconds:.0f} s", f"The attack had {found.seconds:.0f} s", cure)


def _accuracy(least: float, found: Evidence) -> RuleResult:
    limit = f"at least {least:.1%} of the training records classified right"
    if found.accuracy is None:
        return _unmeasured("accuracy", limit, found)
    cure = "the records may not be what it was trained on, or the labels or the preprocessing are wrong"
    said = f"The model gets {found.accuracy:.1%} of the training records right"
    return _done("accuracy", limit, f"{found.accuracy:.1%}", said, None if found.accuracy >= least else cure)


def _unmeasured(rule: str, limit: str, found: Evidence) -> RuleResult:
    cure = "give the training records with --data, and others that training never saw with --held-out"
    if found.mode == "with data":
        cure = "it needs a control; give records that training never saw with --held-out"
    return RuleResult(rule, limit, NOT_MEASURED, UNDECIDED, f"It was not measured: {cure}.")


def _images(most: int, found: Evidence, rule: str = "images recovered") -> RuleResult:
    """By the test of the verdict, once the images that are accepted are taken off."""
    limit = f"at most {most} beyond the control"
    if found.mode == "membership only":
        reason = f"Reconstruction was not tried ({found.not_tried}); leave this rule out for such models."
        return RuleResult(rule, limit, NOT_MEASURED, UNDECIDED, reason)
    if found.hits is None or found.records is None:
        return _unmeasured(rule, limit, found)
    n, hits, k, others = found.records, found.hits, found.controls, found.control_hits
    value = f"{hits} of {n:,}" + ("" if k is None else f", control {others} of {k:,}")
    result = partial(RuleResult, rule, limit, value)
    if hits <= most:
        return _doubted(result("pass", f"The attack recovered {hits} of {n:,} training records."), found)
    if k is None or others is None:
        reason = f"Without a control, {hits} may be chance; give records that training never saw with --held-out."
        return result(UNDECIDED, reason)
    chance = chance_of(hits - most, n - most, others, k)
    if chance < SIGNIFICANT:
        beyond = f", even with {most} of them accepted" if most else ""
        reason = (
            f"{hits} of {n:,} training records came back, against {others} of {k:,} held-out ones{beyond}; the "
            f"probability of that by chance is {chance:.1g}."
        )
        return _trusted(result("fail", reason), found)
    if hits * k <= others * n + most * k and k >= n:
        reason = f"Held-out records, {k:,} of them, are matched as often as training records."
        return _trusted(result("pass", reason), found)
    need = f"at least {n:,} held-out records" if k < n else "more held-out records or a longer attack"
    return result(UNDECIDED, f"{hits} are more than {most}, but chance can give them; {need} would tell.")


def _candidates(most: int, found: Evidence) -> RuleResult:
    """With data the images are counted; blind, by the confidence, which says how likely each candidate is real."""
    rule, limit = "confident candidates", f"at most {most} at 90 % confidence"
    if found.mode != "blind":
        return _images(most, found, rule)
    result = partial(RuleResult, rule, limit)
    if found.nothing_learnt:
        return result("none", "pass", "The layer that is read holds no image.")
    if found.confidence is None or found.unjudged is not None:
        why = found.unjudged or "The candidates have no confidence; give more time, or the training records."
        return result(NOT_MEASURED, UNDECIDED, why)
    sure = [one for one in found.confidence if one > SURE]
    likely = sum(one > LIKELY for one in found.confidence)
    value = f"{len(sure)} ({likely} at 50 %)"
    chance = chance_of_more(most, sure)
    if chance >= SURE_OF_IT:
        return result(value, "fail", f"More than {most} show a training image with a probability of {chance:.1%}.")
    if len(sure) <= most and likely < most + LIKELY_ENOUGH:
        return result(value, "pass", f"No more than {most} candidates are confident.")
    return result(value, UNDECIDED, "Some may show a training image; give the training records to measure it.")


def _members(most: float, found: Evidence, *, rate: float) -> RuleResult:
    """Fail by the lower bound, pass by the upper bound, both with what the control leaves open."""
    rule, limit = f"members identified at {rate:.0%} FPR", f"at most {most:.1%}"
    if found.curve is None or found.records is None or found.controls is None:
        return _unmeasured(rule, limit, found)
    n, k = found.records, found.controls
    bounds = rate_bounds(n, k, rate, *found.curve)
    low, high, outcome = bounds.low, bounds.high, _side(bounds, most)
    value = f"{bounds.rate:.1%} ({low:.1%} to {high:.1%})"
    result = partial(RuleResult, rule, limit, value)
    if outcome != UNDECIDED:
        bound = f"least {low:.1%}" if outcome == "fail" else f"most {high:.1%}"
        sure = f"at 95 % confidence with {k:,} held-out records"
        reason = f"At {bound} of the members stand out beyond what false alarms explain, {sure}."
        return _trusted(result(outcome, reason), found)
    enough = (
        factor
        for factor in (2**i for i in range(1, 9))
        if _side(rate_bounds(factor * n, factor * k, rate, *found.curve), most) != UNDECIDED
    )
    factor = next(enough, None)
    cure = "the rate is too near the limit for any number of records"
    if factor is not None:
        cure = f"about {factor * n:,} training and {factor * k:,} held-out records would tell, if there are any"
    reason = f"{low:.1%} to {high:.1%} of the members may stand out; {cure}."
    return _trusted(result(UNDECIDED, reason), found)


def _side(bounds: Interval, most: float) -> Outcome:
    return "fail" if bounds.low > most else "pass" if bounds.high <= most else UNDECIDED


def _epsilon(most: float, found: Evidence) -> RuleResult:
    """A bound from below: a pass needs records that could have shown more than the limit."""
    rule, limit = "epsilon", f"at most {most:g}, as far as can be shown"
    if found.epsilon is None or found.records is None or found.controls is None:
        return _unmeasured(rule, limit, found)
    value, largest = f"at least {found.epsilon:.2f}", largest_epsilon(found.records, found.controls)
    result = partial(RuleResult, rule, limit, value)
    if found.epsilon > most:
        reason = f"Training has an epsilon of at least {found.epsilon:.2f}, at 95 % confidence."
        return _trusted(result("fail", reason), found)
    if largest <= most:
        need = next((m for m in (2**i for i in range(1, 40)) if largest_epsilon(m, m) > most), None)
        cure = "no number of records can show so much" if need is None else f"about {need:,} of each would do"
        reason = f"So few records and held-out ones could show {largest:.2f} at most; {cure}."
        return _trusted(result(UNDECIDED, reason), found)
    reason = f"The records show an epsilon of {found.epsilon:.2f}, where they could have shown {largest:.2f}."
    return _trusted(result("pass", reason), found)


def _doubted(result: RuleResult, found: Evidence) -> RuleResult:
    """A model that was read wrongly hides what it leaks; what it shows all the same stands."""
    if result.outcome != "pass" or not found.doubts:
        return result
    return replace(result, outcome=UNDECIDED, reason=f"The model was probably read wrongly: {found.doubts[0]}.")


def _trusted(result: RuleResult, found: Evidence) -> RuleResult:
    """The same of what rests on the control: if that is of another kind, it says nothing."""
    if not found.control_doubts:
        return _doubted(result, found)
    return replace(result, outcome=UNDECIDED, reason=found.control_doubts[0])


def _short(value: Any) -> Any:
    """A value that fits into a message; Python refuses to write integers of many digits."""
    if isinstance(value, int) and abs(value) > MOST:
        return "a huge number"
    return value if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."


def _is_text(name: str, value: Any) -> None:
    require(
        isinstance(value, str) and 0 < len(value) <= 100,
        name,
        "must be a text of 1 to 100 characters",
        _short(value),
    )


def _is_flag(name: str, value: Any) -> None:
    require(isinstance(value, bool), name, "must be true or false", _short(value))


def _is_number(name: str, value: Any, *, whole: bool = False, least: float = 0, most: float = MOST) -> None:
    kind = "a whole number" if whole else "a number"
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    require(right and least <= value <= most, name, f"must be {kind} from {least:g} to {most:g}", _short(value))


def _is_share(name: str, value: Any, *, above: float) -> None:
    _is_number(name, value, most=1)
    cure = "no number of records can show a smaller share; 0 of 368 records show 0.01"
    require(value > above, name, f"must be above {above:g}", value, cure)


def _is_tests(name: str, value: Any) -> None:
    known = isinstance(value, tuple) and len(value) > 0 and all(one in TESTS for one in value)
    require(known, name, f"must list some of {', '.join(TESTS)}", _short(value))


_count = partial(_is_number, whole=True)
_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    "name": _is_text,
    "images_recovered": _count,
    "confident_candidates": _count,
    "members_at_0_fpr": partial(_is_share, above=0),
    "members_at_1_fpr": partial(_is_share, above=0.01),
    "epsilon": _is_number,
    "data": _is_flag,
    "tests": _is_tests,
    "smallest_control": partial(_count, least=1),
    "smallest_budget": _is_number,
    "smallest_accuracy": partial(_is_number, most=1),
}
_LIMITS = ("images_recovered", "confident_candidates", "members_at_0_fpr", "members_at_1_fpr", "epsilon")
_RULES: Mapping[str, Callable[[Any, Evidence], RuleResult]] = {
    "data": _data,
    "tests": _tests,
    "smallest_control": _control,
    "smallest_budget": _budget,
    "smallest_accuracy": _accuracy,
    "images_recovered": _images,
    "confident_candidates": _candidates,
    "members_at_0_fpr": partial(_members, rate=0.0),
    "members_at_1_fpr": partial(_members, rate=0.01),
    "epsilon": _epsilon,
}
"""In this order: what is missing first, then what leaks."""
