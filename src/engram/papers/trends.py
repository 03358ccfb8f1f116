"""What the papers say about their results beyond single numbers, checked on the JSON of experiments.

Counts are good images beyond held-out, so matches that any blurred image would get do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from engram.papers.records import GOOD
from engram.render.html import Table
from engram.training.presets import DECAYS

Row = Mapping[str, Any]
Rows = Mapping[tuple[str, str], Row]
"""Rows by preset and attack."""
HANDFUL = 5
FEW = 10


@dataclass(frozen=True)
class Trend:
    """A statement with our numbers; `holds` is None if its cases have not been run."""

    statement: str
    numbers: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "not run"}[self.holds]


@dataclass(frozen=True)
class Statement:
    """A statement, the cases it is about (attack None: the run's own), and how to judge them."""

    words: str
    cases: Sequence[tuple[str, str | None]]
    judge: Callable[[Sequence[Row]], tuple[str, bool]]

    def trend(self, rows: Rows, attack: str) -> Trend:
        keys = [(preset, named or attack) for preset, named in self.cases]
        missing = [f"{preset} ({named})" for preset, named in keys if (preset, named) not in rows]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            return Trend(self.words, f"not run: {', '.join(missing[:3])}{more}", None)
        return Trend(self.words, *self.judge([rows[key] for key in keys]))


def trends(records: Sequence[Mapping[str, Any]]) -> list[Trend]:
    """Every trend, in the order of the papers, from records that share scale and recipe."""
    finished = [record for record in records if record["failed"] is None]
    rows = {(row["preset"], row["attack"]): row for record in finished for row in record["rows"]}
    return [statement.trend(rows, records[0]["recipe"]) for statement in STATEMENTS]


def trends_table(records: Sequence[Mapping[str, Any]]) -> Table | None:
    """The trends as a table; None at scale smoke, whose numbers mean nothing."""
    if any(record["scale"] == "smoke" for record in records):
        return None
    cells = [[one.statement, one.numbers, one.verdict] for one in trends(records)]
    return Table(("trend", "here", "verdict"), cells, "What the papers say about their results")


def recovered(row: Row) -> float:
    """Good images beyond held-out; all good images if none were held out."""
    count = row["counts"][GOOD]
    return float(count["train"] if count["excess"] is None else count["excess"])


def _shares_fall(rows: Sequence[Row]) -> tuple[str, bool]:
    shares = [recovered(row) / row["n"] for row in rows]
    numbers = ", ".join(f"n = {row['n']}: {share:.1%}" for row, share in zip(rows, shares, strict=True))
    return numbers, all(more > fewer for more, fewer in pairwise(shares))


def _good_have_smaller_margins(rows: Sequence[Row]) -> tuple[str, bool]:
    good, others = (rows[0]["median_margin"][name] for name in ("good", "others"))
    if good is None or others is None:
        return ("no good reconstructions" if good is None else "all are good"), False
    return f"median margin of good images {good:.3g}, of the others {others:.3g}", good < others


def _at_most(limit: int) -> Callable[[Sequence[Row]], tuple[str, bool]]:
    def judge(rows: Sequence[Row]) -> tuple[str, bool]:
        return _listed(rows), all(recovered(row) <= limit for row in rows)

    return judge


def _last_beats_first(rows: Sequence[Row]) -> tuple[str, bool]:
    return _listed(rows), recovered(rows[-1]) > recovered(rows[0])


def _any_beats_first(rows: Sequence[Row]) -> tuple[str, bool]:
    none, *decayed = rows
    best = max(decayed, key=recovered)
    return f"{_listed([none])}; best {_listed([best])}", recovered(best) > recovered(none)


def _listed(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row['preset']}: {recovered(row):g}" for row in rows)


def _attacked(*presets: str) -> list[tuple[str, str | None]]:
    return [(preset, None) for preset in presets]


_DECAYED = tuple(f"decay-{value}" for value in DECAYS)
_PER_CLASS = (*(f"classes{count}x50" for count in (2, 3, 4, 5)), "classes10")
_FIXED = tuple(f"classes{count}" for count in (2, 3, 4, 5, 10))
STATEMENTS: tuple[Statement, ...] = (
    Statement(
        "more samples are harder: the share of good images falls",
        _attacked("cifar50", "cifar100", "cifar500"),
        _shares_fall,
    ),
    Statement("good images lie on the margin", _attacked("cifar500"), _good_have_smaller_margins),
    Statement(
        "model inversion gives at most a handful",
        [("cifar500", "inversion"), ("mnist500", "inversion")],
        _at_most(HANDFUL),
    ),
    Statement("first-layer weights give a few", [("cifar500", "weights"), ("mnist500", "weights")], _at_most(FEW)),
    Statement("more classes give more, 50 images each", _attacked(*_PER_CLASS), _last_beats_first),
    Statement("more classes give more, 500 images in all", _attacked(*_FIXED), _last_beats_first),
    Statement(
        "some weight decay gives more than none from a standard start",
        _attacked("decay-0", *_DECAYED),
        _any_beats_first,
    ),
    Statement(
        "some weight decay gives more than none from a small start (1e-3)",
        _attacked("cifar100-init1e-3", *_DECAYED),
        _any_beats_first,
    ),
)
