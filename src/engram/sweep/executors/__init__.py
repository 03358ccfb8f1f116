"""Where trials run. An executor takes orders and hands back how they ended; it knows no study and no data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engram.attacker import AttackerView
from engram.sweep.trial import Ended, Order

ATTEMPTS = 3
"""How often a trial whose worker dies is tried before it is a row that says so."""


@dataclass(frozen=True, eq=False)
class Job:
    """An order for the model of one sweep; `sweep` names it, so that its weights travel once where possible."""

    sweep: str
    view: AttackerView
    order: Order


class Executor(Protocol):
    """Feed it while it has free slots; collect what has ended."""

    @property
    def slots(self) -> int:
        """How many jobs it can take at once; may change while it runs."""

    def submit(self, job: Job) -> None: ...

    def collect(self, timeout: float) -> list[tuple[Job, Ended]]:
        """The jobs that have ended; waits up to `timeout` seconds for the first."""

    def close(self) -> None:
        """Stop at once; jobs under way are dropped and can be gone on with later."""


def lost(attempts: int, cause: str) -> Ended:
    """The row of a trial whose worker died again and again."""
    return Ended(
        state="killed",
        reason=f"its worker died {attempts} times ({cause}); out of memory? try fewer jobs or candidates",
    )
