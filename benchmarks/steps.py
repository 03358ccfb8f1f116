"""What a step of the engine costs: seconds over candidates and image sizes, and peak memory.

    python -m benchmarks.steps [MODEL] [-o runs/bench] [--data-root DIR]

MODEL is a directory of `engram train`. Without it, two targets are trained on the same 500 photographs at 32 x 32
and at 64 x 64 pixels. Writes steps.json; Ctrl-C keeps the finished rows.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.machine import busy_note, machine, peak_memory_bytes
from engram.attacks.engine.dense import Engine
from engram.attacks.settings import EngineSettings
from engram.cli.options import progress_bar
from engram.core import files
from engram.core.errors import DataError, DivergedError, EngramError
from engram.core.loop import Budget, Observer, Progress, by_steps, run
from engram.data.catalog import load
from engram.data.choice import DataChoice
from engram.models.networks import DenseNetwork
from engram.models.open.door import open_view
from engram.models.open.files import read_network
from engram.models.tasks import Binary, task_named
from engram.models.view import AttackerView
from engram.training.recipe import MLPSpec, Recipe
from engram.training.target import card_of, train

RECIPE = Recipe(lr=0.1, epochs=300)
"""Short, but enough to fit 500 photographs (loss 0.05) and to reach about the final rank of the row space."""
START_STD = {1: 1e-4, 2: 0.65e-4}
"""With 0.65 times the noise on four times as many columns, the weakest visible direction is equally strong."""
IMAGES = 500
MEASURING = "measuring"


@dataclass(frozen=True, eq=False)
class Photographs:
    """Images [n, 3, 32, 32] in [0, 1] and labels [n]; `source` says where they come from."""

    images: Tensor
    labels: Tensor
    source: str


def photographs(n: int, root: Path | None = None) -> Photographs:
    """CIFAR-10, or if it is missing, images of its shape made from the embedded faces."""
    try:
        train_set = DataChoice(name="cifar10", labels="vehicles-animals", n=n).load(root, held_out=0).train
    except DataError:
        return from_faces(n)
    return Photographs(train_set.images, train_set.labels, "cifar10, vehicles against animals")


def from_faces(n: int) -> Photographs:
    """Faces and non-faces at 32 x 32, mirrored and shifted until there are n; labels alternate.

    >>> from_faces(500).images.shape
    torch.Size([500, 3, 32, 32])
    """
    grey = torch.nn.functional.interpolate(load("faces").images, size=(32, 32), mode="bilinear")
    copies = []
    for shift in range(-(-n // (2 * len(grey)))):
        moved = grey.roll(3 * shift, dims=3)
        copies += [moved, moved.flip(3)]
    images = torch.cat(copies)[:n].expand(-1, 3, -1, -1)
    return Photographs(
        images, torch.arange(n) % 2, "synthesised from the embedded faces, since CIFAR-10 is missing"
    )


def trained_view(
    photos: Photographs,
    enlarged: int,
    *,
    recipe: Recipe = RECIPE,
    widths: tuple[int, ...] = (1000, 1000),
    observers: Sequence[Observer] = (),
) -> AttackerView:
    """A target trained on the photographs, enlarged 1 or 2 times."""
    images = photos.images.repeat_interleave(enlarged, 2).repeat_interleave(enlarged, 3) / enlarged
    spec = MLPSpec(inputs=images[0].numel(), widths=widths, first_layer_std=START_STD[enlarged])
    centred = images - images.mean(0)
    network, solution = train(spec, recipe, Binary(), centred, photos.labels, observers=observers)
    solution.require_finite()
    return AttackerView(network, tuple(images.shape[1:]), Binary(), pixel_range=(0.0, 1.0 / enlarged))


SCHEMA_VERSION = 1
CANDIDATES = (250, 500, 1000, 2000)
COMPARED = 1000
"""Candidates for comparing image sizes and measuring memory; the papers' m for 500 images."""
PRIOR = 1.6
"""Any strength above zero costs the same."""
STEPS = 50
"""A start of as many steps as a metric is kept for, so that its cost is included exactly once."""


@dataclass(frozen=True)
class StepCase:
    """One thing to time."""

    view: AttackerView
    candidates: int
    with_prior: bool


@dataclass(frozen=True)
class StepTime:
    """What a step took; `setup_seconds` is the engine's preparation, once per attack."""

    input_shape: tuple[int, ...]
    rank: int
    candidates: int
    with_prior: bool
    steps: int
    setup_seconds: float
    seconds_per_step: float
    cpu_seconds_per_step: float


def cases(views: Sequence[AttackerView], candidates: Sequence[int] = CANDIDATES) -> list[StepCase]:
    """All numbers of candidates on the first view, `COMPARED` on the others; with and without the prior."""
    is_image = len(views[0].input_shape) == 3
    priors = (False, True) if is_image else (False,)
    first, *others = views
    pairs = [(first, m) for m in candidates] + [(view, COMPARED) for view in others]
    return [StepCase(view, m, with_prior) for with_prior in priors for view, m in pairs]


def time_steps(case: StepCase, steps: int = STEPS, *, observers: Sequence[Observer] = ()) -> StepTime:
    """Time one short start, after a warm-up step."""
    prior = PRIOR if case.with_prior else 0.0
    settings = EngineSettings(candidates=case.candidates, prior=prior, restarts=1, steps=steps)
    started = time.perf_counter()
    engine = Engine(case.view, settings)
    rank = engine.scales.space.rank
    setup = time.perf_counter() - started
    run(engine, Budget(steps=1))
    taken: list[int] = []
    counting: list[Observer] = [lambda step, *_: taken.append(step)]
    cpu_started = time.process_time()
    solution = run(engine, Budget(steps=engine.total_steps), observers=[*counting, *observers])
    cpu_seconds = time.process_time() - cpu_started
    # The loop calls its observers only for steps with a finite loss, and ends at the first other one.
    if len(taken) < engine.total_steps:
        raise DivergedError(solution.message)
    return StepTime(
        input_shape=case.view.input_shape,
        rank=rank,
        candidates=engine.scales.candidates,
        with_prior=case.with_prior,
        steps=len(taken),
        setup_seconds=setup,
        seconds_per_step=solution.seconds / len(taken),
        cpu_seconds_per_step=cpu_seconds / len(taken),
    )


def growth_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Slope of log seconds over log size by least squares: 1 is linear; None for fewer than two sizes.

    >>> growth_exponent([250, 500, 1000], [1.0, 2.0, 4.0])
    1.0
    """
    if len(set(sizes)) < 2:
        return None
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in seconds]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return round(products / sum((a - x_mean) ** 2 for a in x), 6)


@dataclass(frozen=True)
class StepTable:
    """Finished measurements; the other shapes are compared with the first."""

    rows: tuple[StepTime, ...]

    def ratio(self, row: StepTime) -> float | None:
        """Relative to the fewest candidates; for another shape, to the same number of candidates of the first."""
        first_shape = self.rows[0].input_shape
        peers = [r for r in self.rows if r.with_prior == row.with_prior and r.input_shape == first_shape]
        if row.input_shape == first_shape:
            return row.seconds_per_step / min(peers, key=lambda r: r.candidates).seconds_per_step
        same = [r for r in peers if r.candidates == row.candidates]
        return row.seconds_per_step / same[0].seconds_per_step if same else None

    def exponent(self, *, with_prior: bool) -> float | None:
        """Growth exponent over the candidates of the first shape."""
        rows = [r for r in self.rows if r.with_prior == with_prior and r.input_shape == self.rows[0].input_shape]
        return growth_exponent([r.candidates for r in rows], [r.seconds_per_step for r in rows])

    def to_json(
        self, *, target: str, memory: dict[str, Any] | None, notes: Sequence[str], interrupted: bool
    ) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "steps",
            "interrupted": interrupted,
            "target": target,
            "notes": list(notes),
            "machine": machine(),
            "rows": [{**asdict(row), "ratio": self.ratio(row)} for row in self.rows],
            "growth_exponent": {
                name: self.exponent(with_prior=with_prior)
                for name, with_prior in (("without_prior", False), ("with_prior", True))
            },
            "memory": memory,
        }


MEMORY_STEPS = 5


def measure_memory(
    view: AttackerView, candidates: int, *, memory: int = EngineSettings().memory
) -> dict[str, Any]:
    """{candidates, peak_memory_bytes, loaded_bytes}; the last is what Python, torch and the weights take.

    `memory` is the engine's limit.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        files.write_tensors(place / "model.safetensors", view.network.params)
        request = {
            "input_shape": list(view.input_shape),
            "task": view.task.name,
            "pixel_range": list(view.pixel_range),
            "candidates": candidates,
            "memory": memory,
        }
        files.write_json(place / "request.json", request)
        command = [sys.executable, "-m", "benchmarks.steps", "--attack-once", name]
        home = Path(__file__).parents[1]
        child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home)
        if child.returncode:
            raise EngramError(f"the process that measures memory failed:\n{child.stderr.strip()}")
        result: dict[str, Any] = files.read_json(place / "result.json")
    return result


def attack_once(place: Path) -> None:
    """Two short starts with the prior, pooled and scored: all that a complete attack has in memory at once."""
    request = files.read_json(place / "request.json")
    low, high = request["pixel_range"]
    view = AttackerView(
        read_network(place / "model.safetensors"),
        tuple(request["input_shape"]),
        task_named(request["task"]),
        (low, high),
    )
    loaded = peak_memory_bytes()
    prior = 1.0 if len(view.input_shape) == 3 else 0.0
    chosen = {name: request[name] for name in ("candidates", "memory")}
    settings = EngineSettings(**chosen, restarts=2, steps=MEMORY_STEPS, prior=prior)
    engine = Engine(view, settings)
    engine.reconstruction(run(engine, Budget(steps=engine.total_steps)).state)
    result = {
        "candidates": engine.scales.candidates,
        "peak_memory_bytes": peak_memory_bytes(),
        "loaded_bytes": loaded,
    }
    files.write_json(place / "result.json", result)


def run_steps(model: Path | None, out: Path, root: Path | None) -> bool:
    """Measure, write steps.json and show it; Ctrl-C keeps the finished rows. True if all are finished."""
    views, target, notes = _twins(root) if model is None else _one(model)
    planned = cases(views)
    rows, memory, interrupted = [], None, False
    try:
        with progress_bar() as progress:
            memory = measure_memory(views[0], COMPARED)
            for index, case in enumerate(planned):
                show = _part_of(progress, index, len(planned))
                rows.append(time_steps(case, observers=[show]))
    except KeyboardInterrupt:
        interrupted = True
    table = StepTable(tuple(rows))
    record = table.to_json(target=target, memory=memory, notes=notes, interrupted=interrupted)
    files.write_json(out / "steps.json", record)
    _show(table, memory, target, notes)
    print(f"wrote {out / 'steps.json'}")
    return not interrupted


def _part_of(progress: Progress, index: int, parts: int) -> Observer:
    """The progress of one case as a part of all."""
    return lambda step, *_: progress(MEASURING, (index + step / STEPS) / parts)


def _twins(root: Path | None) -> tuple[list[AttackerView], str, list[str]]:
    """Targets on the same 500 photographs at 32 x 32 and 64 x 64."""
    photos = photographs(IMAGES, root)
    views = []
    for enlarged in (1, 2):
        with progress_bar() as progress:
            what = f"training on {32 * enlarged} x {32 * enlarged}"
            views.append(trained_view(photos, enlarged, observers=[by_steps(progress, what, RECIPE.epochs)]))
    about = f"{IMAGES} images, {photos.source}; {RECIPE.epochs} epochs at rate {RECIPE.lr:g}"
    return views, about, ["64 x 64: the same images with every pixel repeated four times"]


def _one(model: Path) -> tuple[list[AttackerView], str, list[str]]:
    view, card = open_view(model).narrowed(DenseNetwork), card_of(model)
    assert card is not None, "a directory of `engram train`"
    about = f"{view.network.name}, {card.data.n} images of {card.data.name}"
    return (
        [view],
        about,
        ["image sizes are not compared, as that needs two targets trained alike; leave MODEL out"],
    )


def _show(table: StepTable, memory: dict[str, Any] | None, target: str, notes: list[str]) -> None:

    shown = Table("input", "row space", "candidates", "prior", "seconds per step", "ratio", "preparation")
    for row in table.rows:
        ratio = table.ratio(row)
        shown.add_row(
            "x".join(map(str, row.input_shape)),
            str(row.rank),
            str(row.candidates),
            "yes" if row.with_prior else "no",
            f"{row.seconds_per_step:.4f}",
            "-" if ratio is None else f"{ratio:.2f}",
            f"{row.setup_seconds:.1f} s",
        )
    console = Console()
    console.print(f"target: {target}")
    console.print(shown)
    console.print(
        "ratio: to the fewest candidates; for another shape, to the same number of candidates of the first"
    )
    for name, with_prior in (("without prior", False), ("with prior", True)):
        exponent = table.exponent(with_prior=with_prior)
        if exponent is not None:
            console.print(f"{name}: seconds grow as candidates to the power {exponent:.2f}")
    if memory is not None:
        peak, loaded = (memory[name] / 2**20 for name in ("peak_memory_bytes", "loaded_bytes"))
        console.print(
            f"peak memory of an attack with {memory['candidates']} candidates: {peak:,.0f} MB "
            f"({loaded:,.0f} MB of it before the attack starts)"
        )
    for note in filter(None, (*notes, busy_note())):
        console.print(f"note: {note}")


def main() -> int:
    if sys.argv[1:2] == ["--attack-once"]:
        attack_once(Path(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--data-root", type=Path)
    given = parser.parse_args()
    files.prepare_directory(given.out)
    return 0 if run_steps(given.model, given.out, given.data_root) else 130


if __name__ == "__main__":
    sys.exit(main())
