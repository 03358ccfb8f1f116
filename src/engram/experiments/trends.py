"""What the papers say of their results beyond single numbers, checked on the JSON of experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from engram.experiments.records import GOOD
from engram.report.html import Table

Rows = Mapping[tuple[str, str], Mapping[str, Any]]
"""Rows by preset and attack."""


@dataclass(frozen=True)
class Trend:
    """A statement with our numbers; `holds` is None where the cases it speaks of have not been run."""

    statement: str
    numbers: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "not run"}[self.holds]


def rows_of(records: Sequence[Mapping[str, Any]]) -> Rows:
    """All rows of the records; cases that experiments share are the same row."""
    rows = (row for record in records if record["failed"] is None for row in record["rows"])
    return {(row["preset"], row["attack"]): row for row in rows}


def trends(records: Sequence[Mapping[str, Any]], attack: str = "engine") -> list[Trend]:
    """Every trend, in the order of the papers."""
    rows = rows_of(records)
    return [judge(rows, attack) for judge in (_more_samples, _on_the_margin)]


def trends_table(records: Sequence[Mapping[str, Any]], attack: str = "engine") -> Table | None:
    """As a table; None at scale smoke, whose numbers say nothing."""
    if any(record["scale"] == "smoke" for record in records):
        return None
    cells = [[one.statement, one.numbers, one.verdict] for one in trends(records, attack)]
    return Table(("trend", "here", "verdict"), cells, "What the papers say of their results")


def recovered(row: Mapping[str, Any]) -> float:
    """Good images beyond held-out."""
    return float(row["counts"][GOOD]["excess"])


Judge = Callable[[Rows, str], Trend]


def _needs(*presets: str) -> Callable[[Callable[[list[Mapping[str, Any]], str], Trend]], Judge]:
    """Not run unless every preset was attacked."""

    def wrap(judge: Callable[[list[Mapping[str, Any]], str], Trend]) -> Judge:
        def checked(rows: Rows, attack: str) -> Trend:
            statement = (judge.__doc__ or "").strip().rstrip(".")
            missing = [preset for preset in presets if (preset, attack) not in rows]
            if missing:
                return Trend(statement, f"{', '.join(missing)} not run", None)
            return judge([rows[preset, attack] for preset in presets], statement)

        return checked

    return wrap


@_needs("cifar50", "cifar100", "cifar500")
def _more_samples(rows: list[Mapping[str, Any]], statement: str) -> Trend:
    """More samples are harder: the share of good images falls."""
    shares = [recovered(row) / row["n"] for row in rows]
    numbers = ", ".join(f"n = {row['n']}: {share:.1%}" for row, share in zip(rows, shares, strict=True))
    return Trend(statement, numbers, all(more > fewer for more, fewer in pairwise(shares)))


@_needs("cifar500")
def _on_the_margin(rows: list[Mapping[str, Any]], statement: str) -> Trend:
    """Good reconstructions are of samples on the margin."""
    margins = rows[0]["median_margin"]
    good, others = margins["good"], margins["others"]
    if good is None or others is None:
        return Trend(statement, "no good reconstructions" if good is None else "all are good", False)
    return Trend(statement, f"median margin {good:.3g} of good ones, {others:.3g} of the others", good < others)
