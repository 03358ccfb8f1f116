"""The release decision: every rule's three outcomes, its boundaries, and policies that are not policies."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch

import engram
from engram.auditing.policy import Decision, Policy
from engram.cli.report import DEFAULT
from engram.core.errors import CheckpointError, ConfigError
from engram.scoring.curves import clopper_pearson, epsilon_lower, largest_epsilon, rate_bounds, roc
from tests.auditing.cases import innocent, leaking
from tests.schemas import problems

EXAMPLES = Path(__file__).parents[2] / "examples" / "policies"
DIGEST = "0" * 64


def curve(members: int, n: int, k: int, at_one: int | None = None) -> dict[str, Any]:
    """A ROC: so many members above every control, so many at the false alarms of 1 %, then chance."""
    more = members if at_one is None else at_one
    few = max(1, k // 50)
    return {"fpr": [0.0, 0.0, few / k, 1.0], "tpr": [0.0, members / n, more / n, 1.0]}


def report(
    hits: int = 0,
    n: int = 500,
    others: int | None = 0,
    k: int = 500,
    *,
    members: int = 0,
    at_one: int | None = None,
    epsilon: float = 0.0,
    seconds: float = 60.0,
    **change: Any,
) -> dict[str, Any]:
    """The parts of report.json that a policy reads; without `others` there is no control."""
    controlled = others is not None
    comparison = {
        "train": {"name": "own", "records": n, "sha256": DIGEST},
        "held_out": {"name": "others", "records": k, "sha256": DIGEST} if controlled else None,
        "accuracy": change.get("accuracy", 1.0),
        "doubts": change.get("doubts", []),
        "control": {"warnings": change.get("control", [])} if controlled else None,
        "threshold": "ncc>0.8",
        "scores": {"counts": {"ncc>0.8": {"train": hits, "held_out": others}}},
        "membership": {"tests": {"combined": curve(members, n, k, at_one)}, "epsilon_lower": epsilon},
    }
    if not controlled:
        comparison["membership"] = None
    return {
        "mode": "with data",
        "verdict": {"outcome": "no leak found", "sentence": ""},
        "model": {"name": "made up", "weights_sha256": DIGEST},
        "inspection": {"verdict": {"in_reach": True, "decided_by": "ceiling"}},
        "attack": {
            "settings": {"seed": 7, "seconds": change.get("planned")},
            "seconds": seconds,
            "message": change.get("message", "used all its steps after 10 steps, loss 1"),
        },
        "candidates": {"confidence": change.get("confidence", [])},
        "comparison": comparison,
        "baselines": [{"name": "model inversion", "settings": {"seed": 3}}] if change.get("inverted") else [],
        "versions": {"python": "3", "engram": "0", "torch": "2"},
        "command": "engram audit model.pt -o run",
    }


def blind(*confidence: float, outcome: str = "leak suspected", **change: Any) -> dict[str, Any]:
    found = report(confidence=list(confidence), **change)
    found.update(mode="blind", comparison=None, verdict={"outcome": outcome, "sentence": "It can't be told."})
    return found


def members_only(members: int = 0, n: int = 500, k: int = 500, epsilon: float = 0.0) -> dict[str, Any]:
    found = {
        "model": "made up",
        "data": {"train": "own", "held_out": "others"},
        "records": n,
        "held_out": k,
        **curve(members, n, k),
        "epsilon_lower": epsilon,
        "layers": {},
        "accuracy": 1.0,
        "doubts": [],
        "control": {"warnings": []},
        "versions": {"python": "3", "engram": "0", "torch": "2"},
        "command": None,
    }
    return {"mode": "membership only", "not_tried": {"reconstruction": "it pools"}, "membership": found}


PASS, FAIL, OPEN = "pass", "fail", "not enough evidence"
READ_WRONGLY: dict[str, Any] = {"doubts": ["the scale is off"]}
OTHER_KIND: dict[str, Any] = {"control": ["THE CONTROL DIFFERS"]}
NOISE = {"in_reach": False, "decided_by": "row space"}
RULES: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    # images: the verdict's test, with the accepted ones taken off
    ({"images_recovered": 0}, report(0), PASS, "recovered 0 of 500"),
    ({"images_recovered": 0}, report(0, others=None), PASS, "recovered 0 of 500"),
    ({"images_recovered": 0}, report(1, others=None), OPEN, "--held-out"),
    ({"images_recovered": 0}, report(8, others=0), FAIL, "against 0 of 500"),
    ({"images_recovered": 0}, report(7, others=0), OPEN, "chance can give them"),
    ({"images_recovered": 0}, report(3, others=3), PASS, "matched as often"),
    ({"images_recovered": 0}, report(3, others=3, k=499), OPEN, "at least 500 held-out records"),
    ({"images_recovered": 5}, report(5), PASS, "recovered 5 of 500"),
    ({"images_recovered": 5}, report(8), OPEN, "chance can give them"),
    ({"images_recovered": 5}, report(13), FAIL, "even with 5 of them accepted"),
    ({"images_recovered": 0}, report(40, **READ_WRONGLY), FAIL, "against 0 of 500"),
    ({"images_recovered": 0}, report(0, **READ_WRONGLY), OPEN, "read wrongly: the scale is off"),
    ({"images_recovered": 0}, report(40, **OTHER_KIND), OPEN, "THE CONTROL DIFFERS"),
    ({"images_recovered": 0}, report(0, **OTHER_KIND), PASS, "recovered 0 of 500"),
    ({"images_recovered": 0}, blind(0.99), OPEN, "--data"),
    ({"images_recovered": 0}, members_only(), OPEN, "it pools"),
    # confident candidates
    ({"confident_candidates": 0}, blind(), PASS, "No more than 0"),
    ({"confident_candidates": 0}, blind(0.92), OPEN, "training records"),
    ({"confident_candidates": 0}, blind(0.92, 0.91), FAIL, "99.3%"),
    ({"confident_candidates": 1}, blind(0.92, 0.91), OPEN, "training records"),
    ({"confident_candidates": 2}, blind(0.92, 0.91), PASS, "No more than 2"),
    ({"confident_candidates": 0}, blind(*4 * [0.6]), PASS, "No more than 0"),
    ({"confident_candidates": 0}, blind(*5 * [0.6]), OPEN, "training records"),
    ({"confident_candidates": 0}, blind(0.99, outcome=OPEN), OPEN, "It can't be told."),
    ({"confident_candidates": 0}, {**blind(0.99), "inspection": {"verdict": NOISE}}, PASS, "holds no image"),
    ({"confident_candidates": 0}, {**blind(), "candidates": {"confidence": None}}, OPEN, "no confidence"),
    ({"confident_candidates": 0}, report(40), FAIL, "against 0 of 500"),
    # members
    ({"members_at_0_fpr": 0.05}, report(members=0), PASS, "At most 0.7%"),
    ({"members_at_0_fpr": 0.05}, report(members=15), PASS, "At most 4.9%"),
    ({"members_at_0_fpr": 0.05}, report(members=16), OPEN, "1,000 training and 1,000 held-out"),
    ({"members_at_0_fpr": 0.05}, report(members=25), OPEN, "too near the limit"),
    ({"members_at_0_fpr": 0.05}, report(members=50), FAIL, "At least"),
    ({"members_at_0_fpr": 0.05}, report(members=0, n=71), OPEN, "held-out records would tell"),
    ({"members_at_0_fpr": 0.05}, report(members=0, n=72), PASS, "At most 5.0%"),
    ({"members_at_0_fpr": 0.05}, report(members=100, k=10), OPEN, "would tell"),
    ({"members_at_0_fpr": 0.05}, report(members=450, k=20), FAIL, "with 20 held-out"),
    ({"members_at_0_fpr": 0.05}, report(members=450, **OTHER_KIND), OPEN, "THE CONTROL DIFFERS"),
    ({"members_at_0_fpr": 0.05}, report(members=450, **READ_WRONGLY), FAIL, "At least"),
    ({"members_at_0_fpr": 0.05}, report(members=0, **READ_WRONGLY), OPEN, "read wrongly"),
    ({"members_at_0_fpr": 0.05}, report(others=None), OPEN, "it needs a control"),
    ({"members_at_0_fpr": 0.05}, blind(), OPEN, "--data"),
    ({"members_at_0_fpr": 0.05}, members_only(450), FAIL, "At least"),
    ({"members_at_0_fpr": 0.05}, members_only(0)["membership"], PASS, "At most"),
    ({"members_at_1_fpr": 0.05}, report(members=1, at_one=10), PASS, "At most"),
    ({"members_at_1_fpr": 0.05}, report(members=1, at_one=30), OPEN, "may stand out"),
    ({"members_at_1_fpr": 0.05}, report(members=100, at_one=100), FAIL, "At least"),
    # epsilon: 48 records of each can show 1.8 at most
    ({"epsilon": 1.0}, report(epsilon=1.01), FAIL, "at least 1.01"),
    ({"epsilon": 1.0}, report(epsilon=1.0), PASS, "could have shown 4.2"),
    ({"epsilon": 2.0}, report(n=48, k=48, epsilon=0.0), OPEN, "about 64 of each"),
    ({"epsilon": 1.0}, report(others=None), OPEN, "it needs a control"),
    ({"epsilon": 1.0}, report(epsilon=3.0, **OTHER_KIND), OPEN, "THE CONTROL DIFFERS"),
]  # fmt: skip


@pytest.mark.parametrize(("thresholds", "content", "outcome", "words"), RULES)
def test_every_limit(thresholds: dict[str, Any], content: dict[str, Any], outcome: str, words: str) -> None:
    decision = Policy(**thresholds).decide(content)
    (rule,) = decision.rules
    assert (rule.outcome, decision.outcome) == (outcome, outcome), rule
    assert words in rule.reason
    assert decision.decided_by == ("all rules" if outcome == PASS else rule.rule)
    assert decision.sentence.startswith(f"{outcome.capitalize()}: ")


EVIDENCE: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"data": True}, report(), PASS, "500 training records"),
    ({"data": True}, members_only(), PASS, "500 training records"),
    ({"data": True}, blind(), OPEN, "give --data"),
    ({"smallest_control": 500}, report(), PASS, "500 held-out"),
    ({"smallest_control": 501}, report(), OPEN, "give 1 more"),
    ({"smallest_control": 1}, report(others=None), OPEN, "give 1 more"),
    ({"smallest_budget": 60}, report(seconds=58), PASS, "58 s"),
    ({"smallest_budget": 60}, report(seconds=56), OPEN, "--budget 60s"),
    ({"smallest_budget": 60}, report(seconds=5, planned=60), PASS, "60 s"),
    ({"smallest_budget": 60}, report(seconds=5, planned=60, message="used all its time"), OPEN, "5 s"),
    ({"smallest_budget": 60}, members_only(), OPEN, "it pools"),
    ({"smallest_accuracy": 0.9}, report(accuracy=0.9), PASS, "90.0%"),
    ({"smallest_accuracy": 0.9}, report(accuracy=0.5), OPEN, "may not be what it was trained on"),
    ({"smallest_accuracy": 0.9}, blind(), OPEN, "--data"),
    ({"tests": ("reconstruction", "membership")}, report(), PASS, "membership, reconstruction"),
    ({"tests": ("reconstruction", "membership")}, members_only(), OPEN, "it pools"),
    ({"tests": ("membership",)}, blind(), OPEN, "--held-out"),
    ({"tests": ("model inversion",)}, report(), OPEN, "--baselines"),
    ({"tests": ("model inversion",)}, report(inverted=True), PASS, "model inversion"),
]  # fmt: skip


@pytest.mark.parametrize(("thresholds", "content", "outcome", "words"), EVIDENCE)
def test_what_must_have_been_done(
    thresholds: dict[str, Any], content: dict[str, Any], outcome: str, words: str
) -> None:
    rule = Policy(**thresholds, epsilon=9).decide(content).rules[0]
    assert rule.outcome == outcome, rule
    assert words in rule.reason


def test_a_fail_outweighs_missing_evidence_which_outweighs_a_pass() -> None:
    policy = Policy(images_recovered=0, members_at_0_fpr=0.05, smallest_control=1000)
    assert policy.decide(report(40)).decided_by == "images recovered"
    assert policy.decide(report(0)).decided_by == "control"
    assert policy.decide(report(0, k=1000)).sentence.startswith("Pass: all 3 rules hold, which is no proof")


def test_chance_does_not_fail_a_model_that_never_saw_the_records() -> None:
    """Scores drawn alike for records and controls: of 60 audits, none fails, however small the control."""
    generator = torch.Generator().manual_seed(0)
    policy, outcomes = Policy(members_at_0_fpr=0.02, members_at_1_fpr=0.03), []
    for k in (10, 50, 200, 1000):
        for _ in range(15):
            drawn = [torch.rand(size, generator=generator) for size in (200, k)]
            content = report(n=200, k=k)
            content["comparison"]["membership"]["tests"]["combined"] = roc(*drawn).to_json()
            outcomes.append(policy.decide(content).outcome)
    assert FAIL not in outcomes


def test_the_bounds_hold_as_often_as_they_say() -> None:
    """400 audits of 100 members and 150 others whose distributions are known: each bound may miss one in twenty.

    The upper one bounds the members at 1 % false alarms. The lower one is of the threshold that the audit uses:
    the members above it, less the false alarms beyond 1 %.
    """
    generator = torch.Generator().manual_seed(1)
    shift = 1.5
    normal = NormalDist()
    true = 1 - normal.cdf(normal.inv_cdf(0.99) - shift)
    above = below = 0
    for _ in range(400):
        members, others = torch.randn(100, generator=generator) + shift, torch.randn(150, generator=generator)
        found = roc(members, others)
        bounds = rate_bounds(100, 150, 0.01, found.false_positive.tolist(), found.true_positive.tolist())
        threshold = float(others.sort().values[-2])  # one false alarm of 150 is allowed
        alarms, hits = (1 - normal.cdf(threshold - centre) for centre in (0.0, shift))
        above += bounds.low > hits - max(0.0, alarms - 0.01)
        below += bounds.high < true
    assert above <= 0.05 * 400
    assert below <= 0.05 * 400
    assert above + below < 0.05 * 400, "together they are cautious"


def test_the_largest_epsilon_is_what_perfect_scores_give() -> None:
    for n, k in ((20, 20), (101, 60)):
        found = epsilon_lower(torch.ones(n), torch.zeros(k))
        assert found == pytest.approx(max(0.0, largest_epsilon(n, k)))
    assert clopper_pearson(0, 368).high < 0.01 < clopper_pearson(0, 367).high, "what the message says"


def test_real_audits_give_schema_and_round_trip() -> None:
    strict = engram.Policy.load(EXAMPLES / "publish.toml")
    for record, outcome in ((leaking(), FAIL), (innocent(), OPEN)):
        decision = strict.decide(record)
        assert decision.outcome == outcome
        assert problems("decision", decision.to_json()) == []
        stored = json.loads(json.dumps(decision.to_json()))
        assert Decision.from_json(stored) == decision
        assert strict.decide(json.loads(json.dumps(record.to_json()))) == decision, "a pure function of the report"
        assert decision.audited["weights_sha256"] == record.view.network.digest()
        assert decision.audited["seeds"]["attack"] == 0
    assert leaking().comparison is not None
    assert decision.audited["train"]["sha256"] == leaking().comparison.data.train.digest()  # type: ignore[union-attr]
    assert decision.policy["thresholds"]["tests"] == ["reconstruction", "membership"]
    passed = Policy(images_recovered=0).decide(innocent())
    assert passed.outcome == PASS
    assert problems("decision", passed.to_json()) == []


def test_the_schema_would_find_a_wrong_decision() -> None:
    right = Policy(images_recovered=0).decide(innocent()).to_json()
    for change in ({"outcome": "fail"}, {"decided_by": "control"}, {"sentence": "Fine."}, {"more": 1}):
        assert problems("decision", {**right, **change}), change


@pytest.mark.parametrize("name", ["publish", "internal", "blind"])
def test_examples_load(name: str) -> None:
    policy = Policy.load(EXAMPLES / f"{name}.toml")
    assert policy.name == name
    assert policy.sha256 is not None


def test_the_default_is_the_example_for_publishing() -> None:
    assert (EXAMPLES / "publish.toml").read_text() == DEFAULT


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must limit something"),
        (b"data = true", "must limit something"),
        (b"\xff\xfe\x00\x01", "is not a readable policy"),
        (b"images_recovered = ", "is not a readable policy"),
        (b"images_recovered = 0\n" + b"# long\n" * 10_000, "more than 65,536 bytes"),
        (b"images_recovered = " + b"[" * 30_000, "is not a readable policy"),
        (b"x = " + b"{a=" * 20_000, "is not a readable policy"),
        (b"image_recovered = 0", "did you mean images_recovered?"),
        (b"wholly_different = 0", "known are name, images_recovered"),
        (b"sha256 = 'x'\nepsilon = 1", "must have known rules only"),
        (b"images_recovered = -1", "images_recovered must be a whole number from 0"),
        (b"images_recovered = 0.5", "images_recovered must be a whole number"),
        (b"images_recovered = true", "images_recovered must be a whole number"),
        (b"images_recovered = '0'", "images_recovered must be a whole number"),
        (b"images_recovered = [0]", "images_recovered must be a whole number"),
        (b"images_recovered = 0x" + b"f" * 9000, "a huge number"),
        (b"[images_recovered]\nmost = 0", "images_recovered must be a whole number"),
        (b"epsilon = nan", "epsilon must be a number"),
        (b"epsilon = inf", "epsilon must be a number"),
        (b"epsilon = -0.1", "epsilon must be a number from 0"),
        (b"members_at_0_fpr = 0", "must be above 0, got 0; no number of records"),
        (b"members_at_1_fpr = 0.01", "must be above 0.01"),
        (b"members_at_0_fpr = 1.1", "must be a number from 0 to 1"),
        (b"members_at_0_fpr = nan", "must be a number from 0 to 1"),
        (b"epsilon = 1\nsmallest_control = 0", "smallest_control must be a whole number from 1"),
        (b"epsilon = 1\nsmallest_budget = -5", "smallest_budget must be a number"),
        (b"epsilon = 1\ntests = []", "tests must list some of"),
        (b"epsilon = 1\ntests = ['everything']", "tests must list some of"),
        (b"epsilon = 1\ntests = [['membership']]", "tests must list some of"),
        (b"epsilon = 1\ntests = 'membership'", "tests must list some of"),
        (b"epsilon = 1\ndata = 1", "data must be true or false"),
        (b"epsilon = 1\nname = 3", "name must be a text"),
        (b"epsilon = 1\nepsilon = 2", "is not a readable policy"),
    ],
)
def test_what_is_no_policy_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Policy.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_policy_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(ConfigError, match="engram policy init"):
            Policy.load(path)


@pytest.mark.parametrize(
    "damage",
    [
        {"comparison": 3},
        {"attack": {}},
        {"baselines": [1]},
        {"candidates": {"confidence": 3}},
        {"mode": "membership only"},
    ],
)
def test_a_damaged_report_is_an_error_not_a_pass(damage: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="audit again"):
        Policy(images_recovered=0, epsilon=1.0).decide({**copy.deepcopy(report()), **damage})
    with pytest.raises(CheckpointError, match="audit again"):
        Policy(epsilon=1.0).decide(report(epsilon=float("nan")))
