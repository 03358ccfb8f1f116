"""Which attack a target gets at a scale, and how it runs: engine, published scheme, baselines, the circle."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from engram.attacks.engine.self_tuning import PIXEL_STD
from engram.attacks.inversion import Inversion, InversionSettings, first_layer_images
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.registry import make_attack
from engram.attacks.settings import KNOWN_SETTINGS, EngineSettings, Haim2022, default_settings
from engram.core import files
from engram.core.loop import Budget, Progress, Snapshots, by_share, by_steps, part, run, silent
from engram.core.runs import RunDirectory
from engram.data.sets import Split
from engram.models.networks import DenseNetwork, Network
from engram.models.open.door import open_view
from engram.models.tasks import Binary, own_classes, task_named
from engram.models.view import AttackerView
from engram.pipeline import attack, build_target
from engram.render.figures import PlanePanel, plane_figure
from engram.training.presets import CIRCLE_DATA, CIRCLE_NETWORK, CIRCLE_RECIPE, Plan, Scale
from engram.training.recipe import ConvSpec, Recipe, training_progress
from engram.training.target import Target, TargetCache

TRAINING_SHARE = 0.5
"""Share of a case's progress."""
# Training moves the points onto the boundaries of many neurons, so gates must be soft for points to be found: with
# a slope near 10 all of them come back, from 30 on candidates straddle them. Along its radius, a point can split
# into a nearer and a farther candidate without changing stationarity; only the equal margins rule that out. The
# floor keeps all candidates in use.
CIRCLE_ATTACK = Haim2022(
    candidates=100,
    steps=5_000,
    lr_images=3e-5,
    lr_duals=0.01,
    image_std=0.5,
    dual_floor=2.0,
    relu_slope=12.0,
    range_weight=0.0,  # points in the plane have no pixel range
    margin_weight=2000.0,
    dtype="float32",
)
DUAL_THRESHOLD = 2.4  # just above the floor: candidates that stay at the floor are not needed
SAME_POINT = 0.03


@dataclass(frozen=True, eq=False)
class Fig2:
    """All stages of the figure: data, network, start, result, pruned, de-duplicated."""

    data: Split
    target: Target
    start: Reconstruction
    found: Reconstruction
    pruned: Reconstruction
    final: Reconstruction
    seconds: float

    @property
    def distances(self) -> Tensor:
        """From each training point to the nearest point of the final reconstruction, [20]."""
        return torch.cdist(self.data.train.images, self.final.images.float()).min(1).values

    @property
    def summary(self) -> str:
        near, nearer = (int((self.distances < radius).sum()) for radius in (0.1, 0.05))
        return (
            f"{near} of {len(self.data.train)} points within 0.1 ({nearer} within 0.05) "
            f"of {len(self.final)} reconstructed ones"
        )

    def figure(self) -> bytes:
        """Six panels: data, network output, start, result, without small duals, without duplicates."""
        images, labels = self.data.train.images, self.data.train.labels
        panels = [
            PlanePanel("a  training set", images, labels),
            PlanePanel("b  output of the network", images, labels, network=self.target.network),
        ]
        titles = ("c  start", "d  reconstruction", "e  without small duals", "f  without duplicates")
        stages = (self.start, self.found, self.pruned, self.final)
        panels += [
            PlanePanel(title, images, labels, candidates=stage.images, candidate_labels=stage.labels)
            for title, stage in zip(titles, stages, strict=True)
        ]
        return plane_figure(panels)


def run_fig2(
    seed: int,
    *,
    recipe: Recipe = CIRCLE_RECIPE,
    settings: Haim2022 = CIRCLE_ATTACK,
    progress: Progress = silent,
    cache: TargetCache | None = None,
) -> Fig2:
    """Train on the circle, attack, prune and de-duplicate."""
    recipe, settings = replace(recipe, seed=seed), replace(settings, seed=seed)
    target = build_target(
        CIRCLE_DATA,
        CIRCLE_NETWORK,
        recipe,
        Binary(),
        observers=[training_progress(part(progress, 0.0, TRAINING_SHARE), recipe)],
        cache=cache,
    )
    chosen = make_attack(open_view(target.network, input_shape=(2,), task="binary"), settings=settings)
    start = chosen.reconstruction(chosen.init())
    report = by_share(part(progress, TRAINING_SHARE, 1.0), "attacking", chosen.share_done)
    found, solution = attack(chosen, observers=[report])
    pruned = found.pruned(DUAL_THRESHOLD)
    final = pruned.deduplicated(SAME_POINT, torch.Generator().manual_seed(seed))
    return Fig2(CIRCLE_DATA.load(held_out=0), target, start, found, pruned, final, solution.seconds)


AttackName = Literal["engine", "haim2022", "inversion", "weights", "circle"]
"""`circle` is the attack of haim/fig2, which has its own stages (`run_fig2`)."""
ATTACKED_BY: tuple[AttackName, ...] = get_args(AttackName)[:2]
SMOKE_STEPS = 20
MANY_CLASSES = 2
"""Factor on the seconds of a binary target; see `engine_seconds`."""
CONVOLUTIONS = 30.0
"""Seconds for a network with convolutions."""


@dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """Settings of the attack, with a time budget for the engine; None if there is nothing to choose."""

    name: AttackName
    settings: EngineSettings | Haim2022 | InversionSettings | None
    seconds: float | None = None
    cuts: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of an attack; `outputs` [m] if it optimises them, `settings` as they were at the end."""

    found: Reconstruction
    outputs: Tensor | None
    settings: dict[str, Any]
    steps: int
    seconds: float
    message: str


def plan_attack(name: AttackName, target: Plan, scale: Scale, *, seed: int) -> AttackPlan:
    """The attack at a scale; a time limit for the engine is not a cut, since the papers have no engine."""
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
        smoke = replace(CIRCLE_ATTACK, steps=SMOKE_STEPS)
        cut = (f"{SMOKE_STEPS} steps of the attack",) if scale == "smoke" else ()
        settings = smoke if scale == "smoke" else CIRCLE_ATTACK
        return AttackPlan(name=name, settings=replace(settings, seed=seed), cuts=cut)
    return AttackPlan(name=name, settings=None)


def engine_seconds(target: Plan) -> float:
    """Seconds for the engine on a small machine.

    With several classes the first layer has about as many directions as there are images, whatever n, so a step
    takes longer; the few candidates of the small convolutional targets have converged after half a minute.
    """
    n = target.data.n
    if isinstance(target.network, ConvSpec):
        return CONVOLUTIONS
    seconds = 60.0 if n <= 100 else 90.0 if n <= 300 else 120.0 if n <= 1000 else 600.0
    return MANY_CLASSES * seconds if own_classes(target.task) else seconds


def carry_out(
    plan: AttackPlan, view: AttackerView[Network], directory: Path, *, progress: Progress, snapshot_every: float
) -> Outcome:
    """Run the attack, or resume what a killed process left in the directory."""
    if plan.name == "weights":
        images = first_layer_images(view.narrowed(DenseNetwork)).cpu()
        images = natural_contrast(images) if images.ndim == 4 else images
        return Outcome(_bare(images), None, {}, 0, 0.0, "read off")
    if isinstance(plan.settings, InversionSettings):
        return _invert(plan.settings, view, directory, progress, snapshot_every)
    assert isinstance(plan.settings, EngineSettings | Haim2022)
    # A time is turned into a plan only once: a resumed run keeps the plan in its run.json.
    chosen = make_attack(view, plan.settings.recipe, plan.settings, budget=plan.seconds, resume_from=directory)
    found, solution = attack(
        chosen,
        directory=directory,
        resume=True,
        snapshot_every=snapshot_every,
        observers=[by_share(progress, "attacking", chosen.share_done)],
    )
    return Outcome(
        found, None, asdict(chosen.settings), solution.steps, solution.seconds, solution.require_finite().message
    )


def _published(target: Plan, scale: Scale, seed: int) -> AttackPlan:
    """The authors' settings for the task, two candidates per image; one run where they made 100."""
    task = task_named(target.task, target.network.outputs)
    known = KNOWN_SETTINGS["mnist" if target.data.name == "mnist" else default_settings(task)]
    full = known.steps
    steps = {"smoke": SMOKE_STEPS, "cpu": max(100, 100_000 // target.data.n), "paper": full}[scale]
    candidates = 2 * target.data.n
    candidates += -candidates % task.label_count
    settings = replace(known, steps=steps, candidates=candidates, seed=seed)
    cut = (f"{steps:,} steps of the published scheme instead of {full:,}",) if steps < full else ()
    once = "one run of the published scheme instead of a search over 100"
    return AttackPlan(name="haim2022", settings=settings, cuts=(*cut, once))


def _inversion(target: Plan, scale: Scale, seed: int) -> AttackPlan:
    images, steps = {"smoke": (20, SMOKE_STEPS), "cpu": (1000, 200), "paper": (40_000, 1000)}[scale]
    if target.data.name == "circle":  # as many points as the attack has candidates
        images, steps = 100, {"smoke": SMOKE_STEPS}.get(scale, 1000)
    settings = InversionSettings(images=images, steps=steps, seed=seed)
    cut = (f"{images:,} inverted images instead of 40,000",) if target.data.name != "circle" else ()
    return AttackPlan(name="inversion", settings=settings, cuts=() if scale == "paper" else cut)


def _invert(
    settings: InversionSettings,
    view: AttackerView[Network],
    directory: Path,
    progress: Progress,
    snapshot_every: float,
) -> Outcome:
    search = Inversion(view, settings)
    files.prepare_directory(directory)
    snapshots = Snapshots(path=RunDirectory(directory).snapshot, every_seconds=snapshot_every)
    observers = [by_steps(progress, "inverting", settings.steps)]
    solution = run(search, Budget(steps=settings.steps), snapshots=snapshots, resume=True, observers=observers)
    found = search.found(solution.require_finite().state)
    return Outcome(
        _bare(found.images), found.outputs, asdict(settings), solution.steps, solution.seconds, solution.message
    )


def natural_contrast(images: Tensor) -> Tensor:
    """Images [m, C, H, W], each scaled to the contrast of photographs; the scale of weights means nothing."""
    spread = images.flatten(1).std(1).clamp(min=1e-12)
    return images * (PIXEL_STD / spread).view(-1, 1, 1, 1)


def _bare(images: Tensor) -> Reconstruction:
    """Images without duals and labels."""
    nothing = torch.zeros(len(images))
    return Reconstruction(images.float(), nothing, nothing.long())
