"""Plans of targets at three scales, and in words what a scale cuts.

paper   sizes and epochs as published
cpu     the same network and images by large steps along the flow, to the loss that the paper reports; where the
        flow does not go (mini-batches, weight decay) fewer epochs at a larger rate, or the preset's own cut
smoke   seconds, on faces that come with engram: small and short, to see that everything runs
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from engram.data.choice import DataChoice
from engram.experiments import haim_fig2
from engram.targets.recipe import Flow, Recipe
from engram.targets.spec import ConvSpec, MLPSpec
from engram.task import own_classes, task_named

Scale = Literal["smoke", "cpu", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
CPU_LOSS = 4e-6  # where the paper reports no loss: that of CIFAR-10, n=500
CPU_EPOCHS = 10_000  # more than these are cut
BATCH_EPOCHS = 3_000
SMOKE = MLPSpec(inputs=625, widths=(50, 50))
SMOKE_SHAPE = (1, 25, 25)
SMOKE_IMAGES, SMOKE_EPOCHS = 10, 200


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that `pipeline.build_target` needs, and in words how it falls short of the paper."""

    data: DataChoice
    network: MLPSpec | ConvSpec
    recipe: Recipe
    task: str = "binary"
    cuts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One target: where the papers use it, its plan at full size, the paper's training loss if reported.

    `small` is what a small machine trains instead, where the general rule will not do.
    """

    where: str
    plan: Plan
    loss: float | None = None
    small: Plan | None = None


def to_cpu(preset: Preset) -> Plan:
    """Along the flow to the paper's loss where that is possible, else less of it."""
    full, recipe = preset.plan, preset.plan.recipe
    if preset.small is not None:
        return replace(preset.small, cuts=cuts(full, preset.small))
    if recipe.epochs <= CPU_EPOCHS or recipe.normalise_below is not None:
        return full
    if recipe.batch is not None:
        fewer = replace(full, recipe=replace(recipe, epochs=BATCH_EPOCHS))
        return replace(fewer, cuts=cuts(full, fewer))
    goal = CPU_LOSS if preset.loss is None else preset.loss
    cut = f"along the flow to loss {goal:g} instead of {recipe.epochs:,} plain epochs"
    return replace(full, recipe=replace(recipe, loss_threshold=goal, flow=Flow()), cuts=(cut,))


def to_smoke(full: Plan) -> Plan:
    """A small network on a few faces for a moment; what the preset is about stays: task, biases, start, recipe."""
    bound = replace(full, recipe=replace(full.recipe, epochs=SMOKE_EPOCHS))
    if full.data.name == haim_fig2.DATA.name:  # small as it is, and no images
        return replace(bound, cuts=(f"at most {SMOKE_EPOCHS} epochs",))
    faces = DataChoice(name="faces", labels="identity" if own_classes(full.task) else "gate", n=SMOKE_IMAGES)
    batch = None if full.recipe.batch is None else SMOKE_IMAGES // 2
    small = replace(bound, data=faces, network=_small_network(full), recipe=replace(bound.recipe, batch=batch))
    return replace(small, cuts=cuts(full, small))


def cuts(full: Plan, small: Plan) -> tuple[str, ...]:
    """In words, what the smaller plan leaves out.

    >>> data = DataChoice(name="cifar10", labels="vehicles-animals", n=500)
    >>> full = Plan(data=data, network=SMOKE, recipe=Recipe())
    >>> cuts(full, replace(full, data=replace(data, n=50), recipe=Recipe(lr=0.5, epochs=100)))
    ('50 images instead of 500', '100 epochs at rate 0.5 instead of 1,000,000 at 0.01')
    """
    said = []
    if small.data != full.data:
        name, full_name = small.data.name, full.data.name
        kept, whole = (f" of {name}", f" of {full_name}") if name != full_name else ("", "")
        said.append(f"{small.data.n} images{kept} instead of {full.data.n:,}{whole}")
    if small.network != full.network:
        said.append(f"network {small.network.name} instead of {full.network.name}")
    if small.recipe.weight_decay != full.recipe.weight_decay:
        said.append(f"weight decay {small.recipe.weight_decay:g} instead of {full.recipe.weight_decay:g}")
    if small.recipe.epochs < full.recipe.epochs:
        rates = [f" at rate {small.recipe.lr:g}", f" at {full.recipe.lr:g}"]
        rate, full_rate = rates if small.recipe.lr != full.recipe.lr else ("", "")
        said.append(f"{small.recipe.epochs:,} epochs{rate} instead of {full.recipe.epochs:,}{full_rate}")
    if small.recipe.forget is not None:
        said.append(f"what is left of the initialisation dropped after {small.recipe.forget:,} epochs")
    return tuple(said)


def _small_network(full: Plan) -> MLPSpec | ConvSpec:
    if isinstance(full.network, ConvSpec):
        first = full.network.layers.split()[0]
        kernel = min(int(first.removeprefix("conv").partition("x")[0]), SMOKE_SHAPE[-1])
        return replace(full.network, input_shape=SMOKE_SHAPE, layers=f"conv{kernel}x4s2 relu flatten 20 relu 1")
    return replace(
        full.network,
        inputs=SMOKE.inputs,
        widths=tuple(min(width, SMOKE.widths[0]) for width in full.network.widths),
        outputs=task_named(full.task, 2).outputs,
    )
