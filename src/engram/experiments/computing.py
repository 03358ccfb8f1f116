"""What a case computes: train, attack, compare, and keep what its figures need."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from engram.attacker import AttackerView
from engram.experiments import haim_fig2
from engram.experiments.attacks import Outcome, carry_out
from engram.experiments.progress import Told, by_recipe, by_steps
from engram.experiments.records import Finished
from engram.experiments.scoring import Order, scored
from engram.pipeline import build_target
from engram.reconstruct.published.settings import Haim2022
from engram.runs import RunDirectory
from engram.targets.cache import TargetCache
from engram.targets.checkpoint import Target
from engram.targets.networks import Network
from engram.task import task_named

TRAINING_SHARE = 0.5
"""Of the progress of a case."""


@dataclass(frozen=True, kw_only=True)
class Means:
    """With what it is computed; none of it changes the outcome."""

    device: str = "cpu"
    data_root: Path | None = None
    cache: TargetCache | None = None
    snapshot_every: float = 20.0
    """Seconds; so much at the most is lost by a kill."""


def compute(order: Order, means: Means, work: Path, *, told: Told) -> Finished:
    """Train, attack, compare; a killed process left what it had in `work`."""
    if order.attack.name == "circle":
        return _compute_circle(order, means, told)
    plan = order.target
    task = task_named(plan.task, plan.network.outputs)
    target: Target[Network] = build_target(
        plan.data,
        plan.network,
        plan.recipe,
        task,
        root=means.data_root,
        directory=work / "target",
        device=means.device,
        resume=True,
        snapshot_every=means.snapshot_every,
        observers=[by_recipe(_first_part(told), plan.recipe)],
        cache=means.cache,
    )
    card = target.card
    assert card is not None
    view = AttackerView(target.network.to(device=means.device), card.input_shape, task)
    resumed = RunDirectory(work / "attack").snapshot.exists()
    outcome = carry_out(
        order.attack, view, work / "attack", told=_second_part(told), snapshot_every=means.snapshot_every
    )
    data = plan.data.load(means.data_root)
    return scored(order, target, data, outcome, resumed=resumed)


def _compute_circle(order: Order, means: Means, told: Told) -> Finished:
    """haim/fig2 has stages of its own; what is scored is its last one."""
    settings = order.attack.settings
    assert isinstance(settings, Haim2022)
    result = haim_fig2.run_fig2(
        order.seed,
        recipe=order.target.recipe,
        settings=settings,
        training=by_recipe(_first_part(told), order.target.recipe),
        attacking=by_steps(_second_part(told), settings.steps),
        cache=means.cache,
    )
    outcome = Outcome(result.final, None, asdict(settings), settings.steps, result.seconds, result.summary)
    finished = scored(order, result.target, result.data, outcome, resumed=False)
    return Finished(finished.record, finished.tensors, result.figure())


def _first_part(told: Told) -> Told:
    return lambda share: told(TRAINING_SHARE * share)


def _second_part(told: Told) -> Told:
    return lambda share: told(TRAINING_SHARE + (1 - TRAINING_SHARE) * share)
