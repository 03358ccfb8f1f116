"""One figure or table of the papers: the cases it needs, how it is drawn, what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engram.experiments.case import Case
from engram.experiments.drawings import Draw, good_words, no_figure
from engram.experiments.records import CaseRecord
from engram.experiments.zoo import Scale


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in short, and the same of ours made from the records of the cases."""

    what: str
    paper: str
    here: Callable[[Sequence[CaseRecord]], str]


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


def good_at(place: int) -> Callable[[Sequence[CaseRecord]], str]:
    """The count of the case at that place, beside its null."""
    return lambda records: good_words(records[place])
