"""The zoo: every network that the papers attack, as a table of what sets each apart, at three scales.

paper   sizes and epochs as published
cpu     the same network and images by large steps along the flow, to the loss that the paper reports
smoke   seconds, on faces that come with engram: small and short, to see that everything runs

What a scale changes is told by `Plan.cuts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from engram.data.choice import DataChoice
from engram.errors import ConfigError, require
from engram.experiments import haim_fig2
from engram.targets.recipe import Flow, Recipe
from engram.targets.spec import BiasPolicy, ConvSpec, MLPSpec
from engram.task import own_classes, task_named

Scale = Literal["smoke", "cpu", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
CPU_LOSS = 4e-6  # where the paper reports no loss: that of CIFAR-10, n=500
CPU_EPOCHS = 10_000  # for what can't go along the flow
SMOKE = MLPSpec(inputs=625, widths=(50, 50))
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
    """One target: where the papers use it, its plan at full size, the paper's training loss if reported."""

    where: str
    plan: Plan
    loss: float | None = None


@dataclass(frozen=True)
class _Row:
    """What sets a preset apart from the papers' usual target; `data`, `network` and `recipe` replace fields."""

    where: str
    loss: float | None = None
    task: str = "binary"
    data: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def preset(self) -> Preset:
        base = replace(USUAL, task=self.task)
        plan = replace(
            base,
            data=replace(base.data, **self.data),
            network=replace(base.network, **self.network),
            recipe=replace(base.recipe, **self.recipe),
        )
        return Preset(where=self.where, plan=plan, loss=self.loss)


USUAL = Plan(
    data=DataChoice(name="cifar10", labels="vehicles-animals", n=500),
    network=MLPSpec(inputs=3072),
    recipe=Recipe(),
)
_MNIST: dict[str, Any] = {"data": {"name": "mnist", "labels": "odd-even"}, "network": {"inputs": 784}}
_STANDARD = {"first_layer_std": None}
# the paper prints no values; twelve from 1e-5 to 1e-1, about evenly spaced in the logarithm
_DECAYS = ("1e-5", "2e-5", "5e-5", "1e-4", "3e-4", "7e-4", "1e-3", "3e-3", "8e-3", "2e-2", "4e-2", "1e-1")


def _classes(count: int, n: int) -> _Row:
    return _Row(
        "buzaglo/fig3, 10",
        task="multiclass",
        data={"labels": "identity", "n": n, "classes": count},
        network={"outputs": count},
        recipe={"lr": 0.5},
    )


def _depth(*widths: int, loss: float, bias: BiasPolicy = "first") -> _Row:
    return _Row("haim/fig4, table1", loss, network={"widths": widths, "bias": bias})


_ROWS: dict[str, _Row] = {
    "cifar50": _Row("haim/fig1, fig4, table1", 1.5e-6, data={"n": 50}),
    "cifar100": _Row("haim/fig4, table1", 2.0e-6, data={"n": 100}),
    "cifar500": _Row("haim/fig3, 4, 5, table1", 4.0e-6),
    "cifar1000": _Row("haim/fig4, table1", 5.5e-6, data={"n": 1000}),
    "mnist500": _Row("haim/fig3, 13, 15", **_MNIST),
    "cifar500-100-100": _depth(100, 100, loss=3.0e-7),
    "cifar500-1000-500-100": _depth(1000, 500, 100, loss=1.2e-7),
    "cifar500-1000-500-100-50": _depth(1000, 500, 100, 50, loss=8.4e-7),
    "cifar500-biases": _depth(1000, 1000, loss=4.3e-6, bias="all"),
    "cifar10-standard": _Row("haim/table2, fig16-18", 8.3e-7, data={"n": 10}, network=_STANDARD),
    "cifar50-standard": _Row("haim/table2, fig16-18", 1.5e-6, data={"n": 50}, network=_STANDARD),
    "cifar500-sgd": _Row("haim/table2, fig16, 21", 4.0e-6, recipe={"batch": 50}),
    "cifar500-early": _Row("haim/table2, fig16, 19", 0.0039, recipe={"epochs": 10_000}),
    "mnist500-early": _Row("haim/table2, fig16, 20", 0.014, recipe={"epochs": 10_000}, **_MNIST),
    # 500 images as nearly as the classes divide them; with 10 classes both series are the same
    **{f"classes{count}": _classes(count, count * round(500 / count)) for count in (2, 3, 4, 5, 10)},
    **{f"classes{count}x50": _classes(count, count * 50) for count in (2, 3, 4, 5)},
    **{
        f"cifar300-{kind}": _Row(
            "buzaglo/fig4, 11-13",
            task=f"regression:{kind}",
            data={"n": 300},
            network=_STANDARD,
            recipe={"weight_decay": 7.5e-4},
        )
        for kind in ("l2", "l2.5", "huber")
    },
    **{
        f"decay-{value}": _Row(
            "buzaglo/fig5, 9, 14", data={"n": 100}, network=_STANDARD, recipe={"weight_decay": float(value)}
        )
        for value in _DECAYS
    },
    "cifar100-init1e-3": _Row("buzaglo/fig5, 9", data={"n": 100}, network={"first_layer_std": 1e-3}),
    "cifar100-large": _Row(
        "buzaglo/fig17",
        task="multiclass",
        data={"name": "cifar100", "labels": "identity", "n": 5000},
        network={"widths": (10_000, 10_000), "outputs": 100},
        recipe={"batch": 50},
    ),
}

PRESETS: dict[str, Preset] = {
    "circle": Preset(
        where="haim/fig2",
        plan=Plan(data=haim_fig2.DATA, network=haim_fig2.NETWORK, recipe=haim_fig2.RECIPE),
        loss=haim_fig2.RECIPE.loss_threshold,
    ),
    **{name: row.preset() for name, row in _ROWS.items()},
}


def plan(name: str, scale: Scale = "cpu", *, seed: int = 0) -> Plan:
    """The preset of that name at a scale.

    >>> plan("cifar50", "cpu").cuts
    ('along the flow to loss 1.5e-06 instead of 1,000,000 plain epochs',)
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; see them with `engram train --list`")
    require(scale in SCALES, "scale", f"must be one of {', '.join(SCALES)}", scale)
    preset = PRESETS[name]
    full = replace(preset.plan, recipe=replace(preset.plan.recipe, seed=seed))
    if scale == "paper":
        return full
    return _smoke(full) if scale == "smoke" else _cpu(full, preset.loss)


def _cpu(full: Plan, loss: float | None) -> Plan:
    """Along the flow to the paper's loss where that is possible, else fewer epochs."""
    recipe = full.recipe
    if recipe.epochs <= CPU_EPOCHS or recipe.normalise_below is not None:
        return full
    if recipe.batch is not None or recipe.weight_decay:
        cut = f"{CPU_EPOCHS:,} epochs instead of {recipe.epochs:,}"
        return replace(full, recipe=replace(recipe, epochs=CPU_EPOCHS), cuts=(cut,))
    goal = CPU_LOSS if loss is None else loss
    cut = f"along the flow to loss {goal:g} instead of {recipe.epochs:,} plain epochs"
    return replace(full, recipe=replace(recipe, loss_threshold=goal, flow=Flow()), cuts=(cut,))


def _smoke(full: Plan) -> Plan:
    """A small network on a few faces for a moment; what the preset is about stays: task, biases, start, recipe."""
    assert isinstance(full.network, MLPSpec), "a preset with convolutions needs a small sibling of its own"
    several = own_classes(full.task)
    data = DataChoice(name="faces", labels="identity" if several else "gate", n=SMOKE_IMAGES)
    network = replace(
        full.network,
        inputs=SMOKE.inputs,
        widths=tuple(min(width, SMOKE.widths[0]) for width in full.network.widths),
        outputs=task_named(full.task, 2).outputs,
    )
    batch = None if full.recipe.batch is None else SMOKE_IMAGES // 2
    recipe = replace(full.recipe, epochs=SMOKE_EPOCHS, batch=batch)
    cuts = (f"{data.n} faces instead of {full.data.n} images of {full.data.name}", f"{network.name} network")
    return Plan(
        data=data, network=network, recipe=recipe, task=full.task, cuts=(*cuts, f"at most {SMOKE_EPOCHS} epochs")
    )
