"""Two audits side by side: what differs, and whether chance explains it; from the files of their runs alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engram.core.errors import CheckpointError, ConfigError
from engram.core.files import read_bounded
from engram.render.html import (
    DAMAGED,
    DECISION_FILE,
    MOST_BYTES,
    Page,
    Section,
    ShownDecision,
    Table,
    Tile,
    read_decision,
)
from engram.scoring.curves import CONFIDENCE, clopper_pearson

LEVEL = 0.05
"""All tests together call chance a difference this often."""
LIMITS = (
    "Chance here is which records came back; it does not cover another seed of the attack or of training. Audits "
    "with several seeds show that.",
    "No difference found is not a proof that there is none: few records show only large differences.",
    "Members are identified against the highest held-out record of their own run; other held-out records move "
    "that threshold.",
)


@dataclass(frozen=True)
class RecordSet:
    """A set of records, as a report describes it; `sha256` is None in reports of older versions."""

    name: str
    count: int
    sha256: str | None

    @property
    def text(self) -> str:
        return f"{self.count:,} of {self.name}"


@dataclass(frozen=True)
class Hits:
    """How many of the records, and which of them where the report lists them."""

    count: int
    records: int
    each: tuple[bool, ...] | None = None

    @property
    def text(self) -> str:
        bounds = clopper_pearson(self.count, self.records)
        return f"{self.count} of {self.records} ({bounds.low:.0%} to {bounds.high:.0%})"


@dataclass(frozen=True)
class Side:
    """What the files of one run say; None where it was not measured."""

    run: str
    mode: str
    model: str
    outcome: str
    sentence: str
    weights: str | None
    input_shape: tuple[int, ...] | None
    train: RecordSet | None
    held_out: RecordSet | None
    threshold: str | None
    recovered: Hits | None
    control_recovered: Hits | None
    identified: Hits | None
    identified_at_1: Hits | None
    auc: float | None
    epsilon: float | None
    accuracy: float | None
    sure: int | None
    """Candidates at 90 % confidence."""
    attack: str
    settings: Mapping[str, Any]
    decision: ShownDecision | None

    @property
    def sentences(self) -> tuple[str, ...]:
        return (self.sentence,) if self.decision is None else (self.decision.sentence, self.sentence)

    def rows(self) -> dict[str, str]:
        """What a table says about it, by name."""
        return {
            "decision": "none" if self.decision is None else self.decision.outcome,
            "verdict": self.outcome,
            "model": self.model,
            "weights (SHA-256)": "unknown" if self.weights is None else self.weights[:16],
            "records": "none: blind" if self.train is None else self.train.text,
            "control": "none" if self.held_out is None else self.held_out.text,
            "records recovered": _text(self.recovered),
            "the same of the control": _text(self.control_recovered),
            "members identified, no false alarm": _text(self.identified),
            "members identified, 1 % false alarms": _text(self.identified_at_1),
            "AUC of membership": _number(self.auc, ".3f"),
            "epsilon, at least": _number(self.epsilon, ".2f"),
            "training records classified right": _number(self.accuracy, ".1%"),
            "confident candidates": "not tried" if self.sure is None else str(self.sure),
            "attack and budget": self.attack,
        }


def _text(hits: Hits | None) -> str:
    return "not tried" if hits is None else hits.text


def _number(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)


def read_side(directory: Path) -> Side:
    """A run of `engram audit` or `engram membership`, which a stranger may have sent."""
    report, decision = directory / "report.json", directory / DECISION_FILE
    path = report if report.exists() else directory / "membership.json"
    if not path.exists():
        raise ConfigError(
            f"{directory} has neither report.json nor membership.json; give a directory that `engram audit` or "
            "`engram membership` has finished"
        )
    content = read_bounded(path, MOST_BYTES, cure=DAMAGED)
    decided = read_decision(decision) if decision.exists() else None
    try:
        stored = json.loads(content)
        if path == report and stored["mode"] != "membership only":
            return _audit_side(str(directory), stored, decided)
        verdict = stored["verdict"] if path == report else stored
        found = stored["membership"] if path == report else stored
        return _membership_side(str(directory), found, verdict, decided)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, ArithmeticError) as error:
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}: {error}); {DAMAGED}") from error


def _audit_side(run: str, stored: Mapping[str, Any], decision: ShownDecision | None) -> Side:
    found, attack, model = stored["comparison"], stored["attack"], stored["model"]
    recovered = control = identified = at_1 = auc = epsilon = train = held_out = None
    if found is not None:
        train, held_out = _records(found["train"]), _records(found["held_out"])
        assert train is not None
        row = found["scores"]["counts"][found["threshold"]]
        came_back, members = (
            [risk[name] for risk in found["risks"]] for name in ("recovered", "member_identified")
        )
        recovered = _hits(row["train"], train, came_back)
        control = None if held_out is None else _hits(row["held_out"], held_out)
        if found["membership"] is not None:
            curve = found["membership"]["tests"]["combined"]
            identified = _hits(round(curve["tpr_at_fpr"]["0"] * train.count), train, members)
            at_1 = _hits(round(curve["tpr_at_fpr"]["0.01"] * train.count), train)
            auc, epsilon = _finite(curve["auc"]), found["membership"].get("epsilon_lower")
    settings = {
        "recipe": attack["recipe"],
        **attack["settings"],
        **{name: model[name] for name in ("task", "activation", "normalization", "head", "base")},
        "columns": model.get("columns"),
        "baselines": ", ".join(str(one["name"]) for one in stored["baselines"]) or "none",
        **_versions(stored),
    }
    return Side(
        run=run,
        mode=str(stored["mode"]),
        model=str(model["name"]),
        outcome=str(stored["verdict"]["outcome"]),
        sentence=str(stored["verdict"]["sentence"]),
        weights=str(model["weights_sha256"]),
        input_shape=tuple(int(side) for side in model["input_shape"]),
        train=train,
        held_out=held_out,
        threshold=None if found is None else str(found["threshold"]),
        recovered=recovered,
        control_recovered=control,
        identified=identified,
        identified_at_1=at_1,
        auc=auc,
        epsilon=None if epsilon is None else _finite(epsilon),
        accuracy=None if found is None else _finite(found["accuracy"]),
        sure=int(stored["candidates"]["sure"]),
        attack=f"{attack['recipe']}, {int(attack['steps']):,} steps in {_finite(attack['seconds']):.0f} s",
        settings={str(name): value for name, value in settings.items()},
        decision=decision,
    )


def _membership_side(
    run: str, found: Mapping[str, Any], verdict: Mapping[str, Any], decision: ShownDecision | None
) -> Side:
    data = found["data"]
    train = RecordSet(str(data["train"]), int(found["records"]), data.get("train_sha256"))
    held_out = RecordSet(str(data["held_out"]), int(found["held_out"]), data.get("held_out_sha256"))
    rates, weights = found["tpr_at_fpr"], found.get("weights_sha256")
    return Side(
        run=run,
        mode="membership only",
        model=str(found["model"]),
        outcome=str(verdict["outcome"]),
        sentence=str(verdict["sentence"]),
        weights=None if weights is None else str(weights),
        input_shape=None,
        train=train,
        held_out=held_out,
        threshold=None,
        recovered=None,
        control_recovered=None,
        identified=_hits(round(rates["0"] * train.count), train),
        identified_at_1=_hits(round(rates["0.01"] * train.count), train),
        auc=_finite(found["auc"]),
        epsilon=_finite(found["epsilon_lower"]),
        accuracy=_finite(found["accuracy"]),
        sure=None,
        attack=f"membership, {_finite(found['seconds']):.0f} s",
        settings={"mean": data["mean"], **_versions(found)},
        decision=decision,
    )


def _versions(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {f"version of {name}": value for name, value in stored["versions"].items()}


def _records(described: Mapping[str, Any] | None) -> RecordSet | None:
    if described is None:
        return None
    digest = described.get("sha256")
    return RecordSet(str(described["name"]), int(described["records"]), None if digest is None else str(digest))


def _hits(count: Any, among: RecordSet, each: list[Any] | None = None) -> Hits:
    listed = None if each is None or None in each else tuple(map(bool, each))
    if not 0 <= int(count) <= among.count or among.count == 0:
        raise ValueError(f"{count} hits among {among.count} records")
    if listed is not None and (len(listed), sum(listed)) != (among.count, int(count)):
        raise ValueError(f"{sum(listed)} of {len(listed)} records are hits, but {count} are counted")
    return Hits(int(count), among.count, listed)


def _finite(value: Any) -> float:
    if not math.isfinite(float(value)):
        raise ValueError(f"{value} is not a finite number")
    return float(value)


@dataclass(frozen=True)
class DifferenceTest:
    """Whether chance explains that two counts differ, asked of both sides."""

    what: str
    test: str
    before: tuple[int, int]
    after: tuple[int, int]
    p_value: float
    level: float

    @property
    def significant(self) -> bool:
        return self.p_value < self.level

    @property
    def sentence(self) -> str:
        (a, n), (b, k) = self.before, self.after
        return f"{a} of {n} {self.what} before, {b} of {k} after (p = {self.p_value:.2g}, {self.test})"


def difference_tests(before: Side, after: Side, *, paired: bool) -> tuple[DifferenceTest, ...]:
    """Records recovered and members identified, where both sides have them.

    The same records on both sides are pairs: then only records that changed count (McNemar's exact test).
    Otherwise both shares are compared (Fisher's exact test). The level is shared between the tests (Bonferroni).
    """
    pairs = {
        "records were recovered": (before.recovered, after.recovered),
        "members were identified": (before.identified, after.identified),
    }
    known = {what: (one, two) for what, (one, two) in pairs.items() if one is not None and two is not None}
    return tuple(
        DifferenceTest(what, *_chance(one, two, paired=paired), LEVEL / len(known))
        for what, (one, two) in known.items()
    )


def _chance(one: Hits, two: Hits, *, paired: bool) -> tuple[str, tuple[int, int], tuple[int, int], float]:
    from scipy.stats import binomtest, fisher_exact

    counts = (one.count, one.records), (two.count, two.records)
    if paired and one.each is not None and two.each is not None:
        lost = sum(a and not b for a, b in zip(one.each, two.each, strict=True))
        gained = sum(b and not a for a, b in zip(one.each, two.each, strict=True))
        chance = binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
        return "McNemar's exact test", *counts, float(chance)
    table = [[hits, records - hits] for hits, records in counts]
    return "Fisher's exact test", *counts, float(fisher_exact(table)[1])


@dataclass(frozen=True)
class SideBySide:
    """Two audits that can be compared."""

    before: Side
    after: Side

    def __post_init__(self) -> None:
        one, two = self.before, self.after
        if (one.train is None) != (two.train is None):
            blind, other = (one, two) if one.train is None else (two, one)
            raise ConfigError(
                f"{blind.run} was audited blind and {other.run} with records, so they have no number in common; "
                "audit both with the same records"
            )
        if None not in (one.input_shape, two.input_shape) and one.input_shape != two.input_shape:
            shapes = ("x".join(map(str, side.input_shape or ())) for side in (one, two))
            raise ConfigError(
                f"the models take other inputs ({' and '.join(shapes)}), so their records can't be the same; "
                "compare audits of models for the same data"
            )
        if None not in (one.threshold, two.threshold) and one.threshold != two.threshold:
            raise ConfigError(
                f"a record counts as recovered by {one.threshold} in {one.run} and by {two.threshold} in "
                f"{two.run}; compare audits of the same kind of records"
            )

    @property
    def same_weights(self) -> bool | None:
        known = None not in (self.before.weights, self.after.weights)
        return self.before.weights == self.after.weights if known else None

    @property
    def same_records(self) -> bool | None:
        """None where a report of an older version has no digest, and names and numbers agree."""
        one, two = self.before.train, self.after.train
        if one is None or two is None:
            return None
        if None not in (one.sha256, two.sha256):
            return one.sha256 == two.sha256
        return None if (one.name, one.count) == (two.name, two.count) else False

    @property
    def tests(self) -> tuple[DifferenceTest, ...]:
        return difference_tests(self.before, self.after, paired=self.same_records is True)

    @property
    def more_than_chance(self) -> bool | None:
        """None where nothing could be tested."""
        return any(test.significant for test in self.tests) if self.tests else None

    @property
    def sentence(self) -> str:
        if not self.tests:
            return (
                f"Chance can't be judged: both audits are blind. {self.before.sure} candidates are confident "
                f"before, {self.after.sure} after; audit with records and a control to compare them."
            )
        listed = "; ".join(test.sentence for test in self.tests if test.significant or not self.more_than_chance)
        said = "More than chance" if self.more_than_chance else "Chance explains the difference"
        if self.same_weights:
            listed += ". Both audits are of the same weights, so what differs is how they were audited"
        if self.same_records is False:
            listed += ". The records are not the same ones, which may be the reason"
        return f"{said}: {listed}."

    @property
    def differing_settings(self) -> list[tuple[str, str, str]]:
        """Name, before, after."""
        one, two = self.before.settings, self.after.settings
        names = [*one, *(name for name in two if name not in one)]
        return [(name, _shown(one, name), _shown(two, name)) for name in names if one.get(name) != two.get(name)]

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """What, before, after."""
        for (name, one), two in zip(self.before.rows().items(), self.after.rows().values(), strict=True):
            yield name, one, two

    def to_json(self) -> dict[str, Any]:
        """The content of compare.json."""
        return {
            "schema_version": 1,
            "kind": "two audits",
            "sentence": self.sentence,
            "more_than_chance": self.more_than_chance,
            "same_weights": self.same_weights,
            "same_records": self.same_records,
            "tests": [{**asdict(test), "significant": test.significant} for test in self.tests],
            "differing_settings": [list(row) for row in self.differing_settings],
            "before": asdict(self.before),
            "after": asdict(self.after),
        }


def _shown(settings: Mapping[str, Any], name: str) -> str:
    text = "none" if settings.get(name) is None else str(settings[name])
    return text if len(text) <= 200 else f"{text[:200]}..."


def side_by_side_page(found: SideBySide) -> Page:
    """The page of `engram compare`."""
    before, after = found.before, found.after
    known = {True: "yes", False: "no", None: "unknown"}
    tiles = [
        Tile(name, f"{one.count} -> {two.count}", f"of {one.records} and {two.records}")
        for name, one, two in (
            ("records recovered", before.recovered, after.recovered),
            ("members identified", before.identified, after.identified),
        )
        if one is not None and two is not None
    ]
    tiles += [Tile("same weights", known[found.same_weights]), Tile("same records", known[found.same_records])]
    differing = found.differing_settings
    settings = Table(("setting", before.run, after.run), differing, f"{len(differing)} settings differ")
    bounds = f"Bounds at {CONFIDENCE:.0%} confidence"
    sides = Table(("what", before.run, after.run), list(found.rows()), bounds)
    rows = [(test.what, test.test, test.p_value, test.level, test.significant) for test in found.tests]
    return Page(
        title=f"{before.run} and {after.run}, side by side",
        outcome="more than chance" if found.more_than_chance else "no more than chance",
        sentence=found.sentence,
        tiles=tiles,
        sections=[
            Section("sides", "Before and after", tables=[sides]),
            Section(
                "chance",
                "Does chance explain it?",
                [
                    f"The tests together call chance a difference in at most {LEVEL:.0%} of comparisons. Where "
                    "both audits are of the same records, only records that changed count."
                ],
                tables=[Table(("what", "test", "p-value", "level", "more than chance"), rows, "Two-sided tests")],
            ),
            Section(
                "verdicts",
                "What each audit says",
                [f"{side.run}: {text}" for side in (before, after) for text in side.sentences],
            ),
            Section("settings", "Settings that differ", tables=[settings]),
            Section("limits", "What the numbers do not say", LIMITS),
        ],
        product="engram compare",
    )
