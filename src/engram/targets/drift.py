"""How fast training still moves: the norm of its mean gradient over a stretch, ||theta(s) - theta(t)|| / (t - s).

With weight decay a ReLU network comes to rest where samples lie on the edges of neurons. There the gradient jumps
from side to side and never vanishes, but its mean along the path, the velocity of the descent, does. Stretches
begin at epochs 100, 200, 400, ...: each is as long as all training before it, so that ever smaller velocities
can be told from the jumping.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engram.loop import State

FIRST = 100  # epochs


def begin(point: State, epochs: int = 0) -> State:
    """What to keep in the state from here on."""
    here = {f"_from.{name}": value.clone() for name, value in point.items()}
    return {
        **here,
        "_elapsed": torch.zeros((), dtype=torch.float64),
        "_epochs": torch.tensor(epochs),
        "_until": torch.tensor(max(FIRST, 2 * epochs)),
    }


def record(state: State, time: Tensor | float, epochs: int, squares: Callable[[State], Tensor]) -> None:
    """Note a step; at the end of a stretch `_drift` becomes the norm of its mean gradient."""
    state["_elapsed"] = state["_elapsed"] + time
    state["_epochs"] = state["_epochs"] + epochs
    if bool(state["_epochs"] >= state["_until"]):
        point = {name.removeprefix("_from."): state[name.removeprefix("_from.")] for name in _kept(state)}
        moved = {name: value - state[f"_from.{name}"] for name, value in point.items()}
        drift = squares(moved).sum().double().sqrt() / state["_elapsed"]
        state.update({**begin(point, int(state["_epochs"])), "_drift": drift})


def _kept(state: State) -> list[str]:
    return [name for name in state if name.startswith("_from.")]
