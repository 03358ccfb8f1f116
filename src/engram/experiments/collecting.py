"""The cases of a run of experiments: found or computed, with the share of all work that is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from engram.experiments.attacks import engine_seconds
from engram.experiments.case import Case, Setting, find_case, run_case
from engram.experiments.records import CaseRecord, Finished
from engram.experiments.scoring import Order

Said = Callable[[str], None]
"""Told a line that a person should read."""
Progress = Callable[[float, str], None]
"""Told the share of everything that is done, and what is being done."""


@dataclass(eq=False)
class Collector:
    """Cases in a directory that other processes may work in too."""

    home: Path
    setting: Setting
    said: Said
    progress: Progress
    needed: dict[str, Order] = field(default_factory=dict, init=False)
    _done: set[str] = field(default_factory=set, init=False)
    _failures: dict[str, Exception] = field(default_factory=dict, init=False)

    def expect(self, cases: Iterable[Case]) -> None:
        """All cases that will be asked for, so that their share of the work is known."""
        orders = (case.order(self.setting) for case in cases)
        self.needed = {order.key: order for order in orders}

    def ahead(self) -> None:
        """Compute all cases that no other process is at. What fails is kept for those who ask for it."""
        for order in self.needed.values():
            try:
                self._computed(order, wait=False)
            except Exception as error:  # whatever it was, hours of other work must not be lost for it
                self._failures[order.key] = error

    def finished(self, case: Case) -> Finished:
        """The case, waited for if another process is at it."""
        order = case.order(self.setting)
        if order.key in self._failures:
            raise self._failures[order.key]
        finished = self._computed(order, wait=True)
        assert finished is not None
        return finished

    def _computed(self, order: Order, *, wait: bool) -> Finished | None:
        """The case; None if it is left to another process."""
        finished = find_case(order, self.home)
        if finished is None:
            finished = run_case(order, self.setting.means, self.home, told=self._teller(order), wait=wait)
            if finished is not None:
                self.said(case_line(finished.record))
        if finished is not None:
            self._done.add(order.key)
        return finished

    def _teller(self, order: Order) -> Callable[[float], None]:
        before = sum(expected_seconds(self.needed[key]) for key in self._done)
        everything = sum(map(expected_seconds, self.needed.values()))
        own, cuts = expected_seconds(order), (*order.target.cuts, *order.attack.cuts)
        begun: list[bool] = []

        def told(share: float) -> None:
            if cuts and not begun:
                self.said(f"  {order.preset}: cut: {'; '.join(cuts)}")
            begun.append(True)
            self.progress((before + share * own) / everything, order.preset)

        return told


def case_line(record: CaseRecord) -> str:
    """Counts and seconds in a line."""
    count = record.good
    held_out = "unknown" if count.held_out is None else count.held_out
    return (
        f"  {record.preset} ({record.attack}): {count.train} of {record.n} good, held-out {held_out}, "
        f"noise {count.noise}; training {record.training.seconds:.0f} s, attack {record.attack_seconds:.0f} s"
    )


def expected_seconds(order: Order) -> float:
    """Roughly, on one core, at the scale cpu; other scales are in proportion."""
    n, epochs = order.target.data.n, order.target.recipe.epochs
    if order.attack.name in ("inversion", "weights"):  # of targets that other cases have trained
        return engine_seconds(order.target) if order.attack.name == "inversion" else 5.0
    training = 0.6 * n if order.target.recipe.flow is not None else min(epochs, 36_000) * (5e-3 + 7e-5 * n)
    return training + engine_seconds(order.target)
