"""Which attack a target meets at a scale, and its run: the engine, the published scheme, the baselines."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from engram import files
from engram.attacker import AttackerView
from engram.baselines import Inversion, InversionSettings, first_layer_images
from engram.experiments import haim_fig2
from engram.experiments.progress import Told, by_steps
from engram.experiments.zoo import Plan, Scale
from engram.loop import Budget, Snapshots, run
from engram.pipeline import attack
from engram.reconstruct.attack import Attack
from engram.reconstruct.candidates import Reconstruction
from engram.reconstruct.engine.scales import PIXEL_STD
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engines import engine_for
from engram.reconstruct.published.scheme import PublishedScheme
from engram.reconstruct.published.settings import KNOWN_SETTINGS, Haim2022, default_settings
from engram.runs import RunDirectory, read_settings
from engram.targets.networks import DenseNetwork, Network
from engram.targets.spec import ConvSpec
from engram.task import own_classes, task_named

AttackName = Literal["engine", "haim2022", "inversion", "weights", "circle"]
"""`circle` is the attack of haim/fig2, which has stages of its own (`haim_fig2.py`)."""
RECIPES: tuple[AttackName, ...] = get_args(AttackName)[:2]
SMOKE_STEPS = 20
MANY_CLASSES = 2
"""Times the seconds of a binary target; see `engine_seconds`."""
CONVOLUTIONS = 30.0
"""Seconds for a network with convolutions."""


@dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """Settings of the attack, for the engine with seconds to plan by; None where there is nothing to choose."""

    name: AttackName
    settings: EngineSettings | Haim2022 | InversionSettings | None
    seconds: float | None = None
    cuts: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of it; `outputs` [m] where the attack works on them, `settings` as they were in the end."""

    found: Reconstruction
    outputs: Tensor | None
    settings: dict[str, Any]
    steps: int
    seconds: float
    message: str


def plan_attack(name: AttackName, target: Plan, scale: Scale, *, seed: int) -> AttackPlan:
    """The attack at a scale; the engine's own time is no cut, since no paper has it."""
    if name == "engine":
        if scale == "smoke":
            return AttackPlan(name=name, settings=EngineSettings(restarts=2, steps=SMOKE_STEPS, seed=seed))
        seconds = engine_seconds(target) if scale == "cpu" else None
        return AttackPlan(name=name, settings=EngineSettings(seed=seed), seconds=seconds)
    if name == "haim2022":
        return _published(target, scale, seed)
    if name == "inversion":
        return _inversion(target, scale, seed)
    if name == "circle":
        smoke = replace(haim_fig2.ATTACK, steps=SMOKE_STEPS)
        cut = (f"{SMOKE_STEPS} steps of the attack",) if scale == "smoke" else ()
        settings = smoke if scale == "smoke" else haim_fig2.ATTACK
        return AttackPlan(name=name, settings=replace(settings, seed=seed), cuts=cut)
    return AttackPlan(name=name, settings=None)


def engine_seconds(target: Plan) -> float:
    """Seconds for the engine on a small machine.

    Several classes write about as many directions into the first layer as there are images, whatever n, so a step
    takes longer; the few candidates of the small convolutional targets have come to rest after half a minute.
    """
    n = target.data.n
    if isinstance(target.network, ConvSpec):
        return CONVOLUTIONS
    seconds = 60.0 if n <= 100 else 90.0 if n <= 300 else 120.0 if n <= 1000 else 600.0
    return MANY_CLASSES * seconds if own_classes(target.task) else seconds


def carry_out(
    plan: AttackPlan, view: AttackerView[Network], directory: Path, *, told: Told, snapshot_every: float
) -> Outcome:
    """Run the attack, or go on with what a killed process left in the directory."""
    if plan.name == "weights":
        images = first_layer_images(view.narrowed(DenseNetwork)).cpu()
        images = natural_contrast(images) if images.ndim == 4 else images
        return Outcome(_bare(images), None, {}, 0, 0.0, "read off")
    if isinstance(plan.settings, InversionSettings):
        return _invert(plan.settings, view.narrowed(DenseNetwork), directory, told, snapshot_every)
    scheme = _scheme(plan, view, directory)
    observers = [by_steps(told, scheme.total_steps)]
    found, solution = attack(
        scheme, directory=directory, resume=True, snapshot_every=snapshot_every, observers=observers
    )
    return Outcome(
        found, None, asdict(scheme.settings), solution.steps, solution.seconds, solution.require_finite().message
    )


def _scheme(plan: AttackPlan, view: AttackerView[Network], directory: Path) -> Attack:
    """A time becomes a plan once; a run that is gone on with keeps the one in its run.json."""
    if isinstance(plan.settings, Haim2022):
        return PublishedScheme(view, plan.settings)
    assert isinstance(plan.settings, EngineSettings)
    if RunDirectory(directory).record.exists():
        return engine_for(view, read_settings(directory, EngineSettings))
    return engine_for(view, plan.settings, plan.seconds)


def _published(target: Plan, scale: Scale, seed: int) -> AttackPlan:
    """The authors' settings for the task, two candidates an image; one run of what they ran 100 times."""
    task = task_named(target.task, target.network.outputs)
    known = KNOWN_SETTINGS["mnist" if target.data.name == "mnist" else default_settings(task)]
    full = known.steps
    steps = {"smoke": SMOKE_STEPS, "cpu": max(100, 100_000 // target.data.n), "paper": full}[scale]
    candidates = 2 * target.data.n
    candidates += -candidates % task.label_count
    settings = replace(known, steps=steps, candidates=candidates, seed=seed)
    cut = (f"{steps:,} steps of the published scheme instead of {full:,}",) if steps < full else ()
    once = "one run of the published scheme instead of a search of 100"
    return AttackPlan(name="haim2022", settings=settings, cuts=(*cut, once))


def _inversion(target: Plan, scale: Scale, seed: int) -> AttackPlan:
    images, steps = {"smoke": (20, SMOKE_STEPS), "cpu": (1000, 200), "paper": (40_000, 1000)}[scale]
    if target.data.name == "circle":  # as many points as the attack has
        images, steps = 100, {"smoke": SMOKE_STEPS}.get(scale, 1000)
    settings = InversionSettings(images=images, steps=steps, seed=seed)
    cut = (f"{images:,} inverted images instead of 40,000",) if target.data.name != "circle" else ()
    return AttackPlan(name="inversion", settings=settings, cuts=() if scale == "paper" else cut)


def _invert(
    settings: InversionSettings, view: AttackerView, directory: Path, told: Told, snapshot_every: float
) -> Outcome:
    search = Inversion(view, settings)
    files.prepare_directory(directory)
    snapshots = Snapshots(path=RunDirectory(directory).snapshot, every_seconds=snapshot_every)
    observers = [by_steps(told, settings.steps)]
    solution = run(search, Budget(steps=settings.steps), snapshots=snapshots, resume=True, observers=observers)
    found = search.found(solution.require_finite().state)
    return Outcome(
        _bare(found.images), found.outputs, asdict(settings), solution.steps, solution.seconds, solution.message
    )


def natural_contrast(images: Tensor) -> Tensor:
    """Each of images [m, C, H, W] at the spread of photographs, since a weight's own scale means nothing."""
    spread = images.flatten(1).std(1).clamp(min=1e-12)
    return images * (PIXEL_STD / spread).view(-1, 1, 1, 1)


def _bare(images: Tensor) -> Reconstruction:
    """Images without duals and labels."""
    nothing = torch.zeros(len(images))
    return Reconstruction(images.float(), nothing, nothing.long())
