"""Attack: an iteration over what an AttackerView shows, with candidates at its end."""

from __future__ import annotations

from typing import Any, Protocol

from engram.attacker import AttackerView
from engram.loop import Iteration, State
from engram.reconstruct.candidates import Reconstruction


class Attack(Iteration, Protocol):
    """What the published scheme and the engine have in common."""

    @property
    def recipe(self) -> str:
        """As `engram reconstruct --recipe` spells it."""

    @property
    def view(self) -> AttackerView: ...

    @property
    def settings(self) -> Any:
        """A frozen dataclass with everything that was chosen."""

    @property
    def total_steps(self) -> int:
        """Steps to the end."""

    def reconstruction(self, state: State) -> Reconstruction:
        """The candidates of a state."""
