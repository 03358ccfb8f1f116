"""How far a training or an attack is, as a share of the whole."""

from __future__ import annotations

import math
from collections.abc import Callable

from engram.loop import Observer, Values
from engram.targets.recipe import Recipe

Told = Callable[[float], None]
"""Told the share that is done, 0 to 1."""


def by_steps(told: Told, steps: int) -> Observer:
    """An observer that tells the share of the steps."""
    return lambda step, _: told(min(step / steps, 1.0))


def by_recipe(told: Told, recipe: Recipe) -> Observer:
    """By epochs; along the flow, where log-loss falls evenly, by log-loss down to its goal.

    >>> shares = []
    >>> from engram.targets.recipe import Flow
    >>> observe = by_recipe(shares.append, Recipe(loss_threshold=0.01, flow=Flow()))
    >>> for step, loss in enumerate((1.0, 0.1, 0.005)):
    ...     observe(step, {"loss": loss})
    >>> [round(share, 6) for share in shares]
    [0.0, 0.5, 1.0]
    """
    goal = recipe.loss_threshold
    if recipe.flow is None or goal is None:
        return by_steps(told, recipe.epochs)
    first: list[float] = []

    def observe(step: int, metrics: Values) -> None:
        first[:] = first or [max(metrics["loss"], 2 * goal)]
        share = math.log(first[0] / max(metrics["loss"], goal)) / math.log(first[0] / goal)
        told(max(share, 0.0))

    return observe
