"""Tables with one-hot values: what comes back with and without the columns' names.

    python -m benchmarks.tables [--raw] [--only cancer,wine] [--seeds 0,1,2] [--out runs/tables.json]

Networks d-500-1 from the small start learn real tables of scikit-learn, less their training mean or as they are
(--raw), and are attacked with the same fixed work up to five times: without the names; with them, the mean
unknown; with them and the mean (`normalize`); and without them but with what each number can be at least and at
most (`Ranged`), and besides with being a whole number (`Whole`). The engine has neither of the last two:
docs/models.md says why. Prints records back by NCC > 0.8 and relative L2 < 0.3, with the same count on held-out
records in brackets.

cancer   breast cancer, 10 numbers in quartiles, one-hot: 40 columns
wine     13 numbers: 6 as they are, divided by their spread, 7 in four equal ranges, one-hot: 34 columns
wines    the same, for all three classes
digits   8x8 pixels, each empty, faint or dark, one-hot: 192 columns
numbers  breast cancer, 30 numbers divided by their spread: no one-hot column
shades   digits as whole numbers: 8x8 pixels, each 0 (empty), 1 (faint) or 2 (dark)
pixels   digits as whole numbers: 8x8 pixels from 0 to 16, in units of 16
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import engram
from engram.attacks.engine.dense import Engine
from engram.attacks.engine.objective import Objective
from engram.core import files
from engram.core.runs import versions
from engram.data.sets import ImageSet, Split
from engram.models.networks import Network
from engram.models.tasks import infer_task
from engram.models.view import AttackerView
from engram.training.recipe import MLPSpec, Recipe
from engram.training.target import train

N = {"cancer": 20, "wine": 20, "wines": 30, "digits": 40, "numbers": 20, "shades": 40, "pixels": 40}
GAPS = {"shades": 1.0, "pixels": 1 / 16}
"""How far apart neighbouring whole numbers are."""
SHOWN = ("ncc>0.8", "relative_l2<0.3")
RECIPE = Recipe(lr=0.1, epochs=20_000)


@dataclass(frozen=True, eq=False)
class Table:
    """Values [n, d] as the network gets them, but for the mean; labels; the names of the columns."""

    values: Tensor
    labels: Tensor
    columns: tuple[str, ...]

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    def drawn(self, n: int, seed: int) -> Split:
        """As many of each class, and as many held out."""
        generator = torch.Generator().manual_seed(seed)
        chosen = []
        for label in range(self.classes):
            own = (self.labels == label).nonzero()[:, 0]
            each = n // self.classes
            chosen.append(own[torch.randperm(len(own), generator=generator)][: 2 * each].view(2, each))
        trained, held = torch.cat(chosen, 1)
        classes = tuple(map(str, range(self.classes)))
        known, control = (
            ImageSet(self.values[rows], self.labels[rows], name, classes, self.columns)
            for rows, name in ((trained, "trained"), (held, "held out"))
        )
        return Split(known, control, self.values[trained].mean(0))


def binned(values: Tensor, edges: Tensor, first: int = 0) -> tuple[Tensor, list[str]]:
    """One-hot columns of values [n, c] between edges [e, c], and their names."""
    places = (values[:, None] > edges).sum(1)
    kinds = len(edges) + 1
    names = [f"c{first + c}={kind}" for c in range(values.shape[1]) for kind in range(kinds)]
    return one_hot(places, kinds).float().flatten(1), names


def spread(values: Tensor, first: int = 0) -> tuple[Tensor, list[str]]:
    """Numbers in units of their own spread, and their names."""
    return values / values.std(0), [f"c{first + c}" for c in range(values.shape[1])]


def table(name: str) -> Table:
    from sklearn import datasets

    wine, cancer = datasets.load_wine, datasets.load_breast_cancer
    digits = dict.fromkeys(("digits", "shades", "pixels"), datasets.load_digits)
    loaded = {"wine": wine, "wines": wine, **digits}.get(name, cancer)()
    values, labels = torch.tensor(loaded.data).float(), torch.tensor(loaded.target)
    if name == "cancer":
        found, names = binned(values[:, :10], torch.quantile(values[:, :10], torch.tensor([0.25, 0.5, 0.75]), 0))
    elif name in ("wine", "wines"):
        labels = labels if name == "wines" else (labels == 0).long()
        numbers, names = spread(values[:, :6])
        low, high = values[:, 6:].amin(0), values[:, 6:].amax(0)
        kinds, more = binned(values[:, 6:], low + torch.tensor([[0.25], [0.5], [0.75]]) * (high - low), 6)
        found, names = torch.cat([numbers, kinds], 1), names + more
    elif name in digits:
        labels = labels % 2
        shades = torch.tensor([[0.5], [8.5]]).expand(2, 64)
        if name == "digits":
            found, names = binned(values, shades)
        else:
            found = values / 16 if name == "pixels" else (values[:, None] > shades).sum(1).float()
            names = [f"c{place}" for place in range(64)]
    else:
        found, names = spread(values)
    return Table(found, labels, tuple(names))


@dataclass(frozen=True, eq=False)
class Ranged(Objective):
    """Instead of the prior: the squared distance of each value from what it can be, in units of its range."""

    low: Tensor = field(kw_only=True)
    high: Tensor = field(kw_only=True)

    def nearest(self, rows: Tensor) -> Tensor:
        """What a value can be, next to each value."""
        return torch.minimum(torch.maximum(rows, self.low), self.high)

    def variation(self, latents: Tensor, duals: Tensor, background: Tensor | None = None) -> tuple[Tensor, Tensor]:
        basis, share = self.scales.space.basis.to(latents.dtype), self.shares(duals)
        width = SPREAD * torch.where(self.high > self.low, self.high - self.low, 1.0)
        rows = latents @ basis
        off = (rows - self.nearest(rows)) / width
        by_rows = 2 * off / width / rows.shape[1]
        return (share * off.square().mean(1)).sum(), share[:, None] * (by_rows @ basis.T)


@dataclass(frozen=True, eq=False)
class Whole(Ranged):
    """The distance from the nearest whole number within the range."""

    gap: float = field(kw_only=True)

    def nearest(self, rows: Tensor) -> Tensor:
        return self.low + self.gap * ((super().nearest(rows) - self.low) / self.gap).round()


SPREAD = 0.25
"""The spread of a value, as a share of its range."""


@dataclass(frozen=True, eq=False)
class RangedEngine(Engine):
    low: Tensor = field(kw_only=True)
    high: Tensor = field(kw_only=True)
    weight: float = field(kw_only=True)
    gap: float | None = None
    """Between whole numbers, if the values are some."""

    @cached_property
    def objective(self) -> Objective:
        own = super().objective
        parts = own.scales, own.settings, own.task, own.input_shape
        if self.gap is None:
            return Ranged(*parts, low=self.low, high=self.high)
        return Whole(*parts, low=self.low, high=self.high, gap=self.gap)

    def _prior(self, phase: object) -> float:
        return self.weight


Counts = dict[str, list[int | None]]


def counted(engine: Engine, data: Split) -> Counts:
    found, _ = engram.attack(engine)
    counts = engram.compare(found, data).counts
    return {name: [counts[name].train, counts[name].held_out] for name in SHOWN}


def measured(name: str, seed: int, weight: float | None, *, is_raw: bool) -> dict[str, Counts]:
    """The counts of each way, for one network."""
    source, n = table(name), N[name]
    data = source.drawn(n, seed)
    if is_raw:
        data = replace(data, mean=torch.zeros_like(data.mean))
    inputs = data.train.images - data.mean
    outputs = 1 if source.classes == 2 else source.classes
    spec = MLPSpec(inputs=inputs.shape[1], widths=(500,), outputs=outputs)
    network, _ = train(spec, replace(RECIPE, seed=seed), infer_task(outputs), inputs, data.train.labels)
    settings = engram.EngineSettings(steps=200, restarts=2, candidates=4 * n, prior=weight)
    mean = tuple(data.mean.tolist())

    def opened(columns: tuple[str, ...] | None, normalize: object = None) -> AttackerView[Network]:
        return engram.open_view(network, input_shape=inputs.shape[1:], columns=columns, normalize=normalize)

    ways = {"without": Engine(opened(None), settings)}
    if any("=" in column for column in source.columns):
        if is_raw or source.classes == 2:  # else refused
            ways["names"] = Engine(opened(source.columns), settings)
        ways["names, mean"] = Engine(opened(source.columns, (mean, (1.0,))), settings)
    low, high = source.values.amin(0) - data.mean, source.values.amax(0) - data.mean
    ranged = RangedEngine(opened(None), settings, low=low, high=high, weight=weight or 1.0)
    ways["ranges"] = ranged
    if name in GAPS:
        ways["whole numbers"] = replace(ranged, gap=GAPS[name])
    return {way: counted(engine, data) for way, engine in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(N))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--weight", type=float, help="strength of the prior; default: the engine's")
    parser.add_argument("--raw", action="store_true", help="inputs as they are, without subtracting their mean")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in given.only.split(","):
        for seed in map(int, given.seeds.split(",")):
            counts = measured(name, seed, given.weight, is_raw=given.raw)
            rows.append({"table": name, "raw": given.raw, "n": N[name], "seed": seed, "counts": counts})
            for way, one in counts.items():
                print(name, seed, f"{way}:", *(f"{kind} {a} ({b})" for kind, (a, b) in one.items()), flush=True)
    if given.out is not None:
        files.write_json(given.out, {"rows": rows, "versions": versions()})


if __name__ == "__main__":
    main()
