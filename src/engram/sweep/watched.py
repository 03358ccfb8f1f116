"""An attack that looks at itself at the checkpoints and ends early when it is hopeless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engram.attacker import AttackerView
from engram.loop import Metrics, State, Values
from engram.reconstruct.attack import Attack
from engram.reconstruct.candidates import Reconstruction
from engram.sweep.blind import unexplained_share
from engram.sweep.pruning import checkpoint_steps

NOT_REACHED = -1.0


@dataclass(frozen=True, eq=False)
class Watched:
    """`inner`, with its unexplained share at every checkpoint kept in the state, hence in its snapshots.

    `limits` are the largest shares allowed, one a checkpoint; none where nothing is pruned.
    """

    inner: Attack
    limits: tuple[float, ...] = ()

    @property
    def recipe(self) -> str:
        return self.inner.recipe

    @property
    def view(self) -> AttackerView:
        return self.inner.view

    @property
    def settings(self) -> Any:
        return self.inner.settings

    @property
    def total_steps(self) -> int:
        return self.inner.total_steps

    def init(self) -> State:
        points = checkpoint_steps(self.total_steps)
        return {
            **self.inner.init(),
            "watched_steps": torch.tensor(0),
            "unexplained_at": torch.full((len(points),), NOT_REACHED, dtype=torch.float64),
        }

    def step(self, state: State) -> Metrics:
        metrics = dict(self.inner.step(state))
        state["watched_steps"] += 1
        points = checkpoint_steps(self.total_steps)
        if (step := int(state["watched_steps"])) in points:
            share = torch.tensor(unexplained_share(self.view, self.inner.reconstruction(state)))
            reached = [index for index, point in enumerate(points) if point == step]
            state["unexplained_at"][reached] = share.double()
            metrics["unexplained"] = share
            if self.limits:
                metrics["limit"] = torch.tensor(min(self.limits[index] for index in reached))
        return metrics

    def finished(self, metrics: Values) -> bool:
        hopeless = "limit" in metrics and metrics["unexplained"] > metrics["limit"]
        return hopeless or self.inner.finished(metrics)

    def fingerprint(self) -> str:
        return repr((self.inner.fingerprint(), self.limits))

    def hint(self) -> str:
        return self.inner.hint()

    def reconstruction(self, state: State) -> Reconstruction:
        return self.inner.reconstruction(state)
