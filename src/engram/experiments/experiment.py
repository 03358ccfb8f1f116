"""One figure or table of the papers: the cases it needs, how it is drawn, what the paper says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engram.experiments.case import Case
from engram.experiments.drawings import Draw, good_words, no_figure
from engram.experiments.records import CaseRecord
from engram.experiments.zoo import Scale

AS_PUBLISHED = "as published"
Judge = Callable[[Sequence[CaseRecord]], tuple[str, str]]
"""What the records of the cases say, and how that stands beside the paper."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in short, and how ours is made from the records of the cases."""

    what: str
    paper: str
    judge: Judge

    def judged(self, records: Sequence[CaseRecord]) -> dict[str, str]:
        here, beside = self.judge(records)
        return {"what": self.what, "paper": self.paper, "here": here, "beside": beside}


@dataclass(frozen=True)
class Experiment:
    """One figure or table."""

    id: str
    title: str
    cases: tuple[Case, ...]
    draw: Draw = no_figure
    claims: tuple[Claim, ...] = ()
    few_cases: tuple[Case, ...] = ()
    """What smaller scales take instead of all cases."""

    def cases_at(self, scale: Scale) -> tuple[Case, ...]:
        return self.few_cases if self.few_cases and scale != "paper" else self.cases

    def cuts_at(self, scale: Scale) -> tuple[str, ...]:
        few, many = len(self.cases_at(scale)), len(self.cases)
        return (f"{few} targets instead of {many}",) if few < many else ()

    @property
    def stem(self) -> str:
        """The name of its files."""
        return self.id.replace("/", "-")


def cases(*presets: str) -> tuple[Case, ...]:
    """The presets under the attack of the setting."""
    return tuple(Case(preset) for preset in presets)


def count_at(place: int, *, low: float = 0, high: float = math.inf) -> Judge:
    """The count of the case at that place, beyond held-out; the paper has `low` to `high`."""

    def judge(records: Sequence[CaseRecord]) -> tuple[str, str]:
        record = records[place]
        count = recovered(record)
        beside = AS_PUBLISHED
        if count < low:
            beside = f"{low - count:g} fewer"
        elif count > high:
            beside = f"{count - high:g} more"
        return good_words(record), beside

    return judge


def recovered(record: CaseRecord) -> float:
    """Good images beyond held-out; all of them where no image could be held out."""
    return float(record.good.train if record.good.excess is None else record.good.excess)
