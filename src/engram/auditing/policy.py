"""The release decision: a policy says what risk is accepted, and an audit's report.json is judged by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["pass", "fail", "not enough evidence"]
DECISION_VERSION = 1
DECISION_FILE = "decision.json"


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
    """The thresholds as given, `name` and `sha256` of the file (null from Python)."""
    audited: Mapping[str, Any] = field(default_factory=dict)
    """What was judged: model and digests of weights and records, seeds, versions, the command that repeats it."""

    def to_json(self) -> dict[str, Any]:
        """The content of decision.json."""
        return {"schema_version": DECISION_VERSION, "kind": "decision", **asdict(self)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Decision:
        """A decision from the content of decision.json."""
        rules = tuple(RuleResult(**one) for one in stored["rules"])
        names = ("outcome", "sentence", "decided_by", "policy", "audited")
        return cls(**{name: stored[name] for name in names}, rules=rules)
