"""`membership`: which records were in training, for any PyTorch model, from its weights alone.

Every record is scored by the matched filter and the pooled fit at every layer that can be read, and the scores are
combined. Members and controls are treated alike, and nothing is fitted to who is a member.
"""

from __future__ import annotations

import csv
import hashlib
import io
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from engram.core import files
from engram.core.errors import ConfigError, require
from engram.core.loop import Progress, silent
from engram.members.layers import Margin, as_fed
from engram.members.pool import Control, Pool, Records
from engram.members.scores import ChunkStore, Runner, combine, in_process, score_layers
from engram.models.open.door import Model, open_view
from engram.models.open.lora import read_adapter, with_adapter
from engram.models.open.modules import as_module
from engram.models.tasks import Binary, Regression, Task, infer_task, task_named
from engram.scoring.curves import (
    CONFIDENCE,
    DELTA,
    RATES,
    Interval,
    Roc,
    clopper_pearson,
    epsilon_lower,
    p_values,
    roc,
)

SOFTNESS = 1.5
"""Temperature of the other classes in the gradient of a margin."""
SIGNIFICANT = 0.01
"""A leak is found if the records would outscore the controls by chance with less than this probability ..."""
AUC_OF_A_LEAK, EPSILON_OF_A_LEAK = 0.6, 0.5
"""... and if the difference says something about a single record: thousands of records show a difference that does
not."""


@dataclass(frozen=True, eq=False)
class LayerTest:
    """One test at one layer: its weight in the combined score, and how well it does alone."""

    layer: str
    test: str
    weight: float
    roc: Roc


@dataclass(frozen=True, eq=False)
class MembershipRecord:
    """A score for every record and control, higher for likelier members, and what the scores prove."""

    train: Tensor
    held_out: Tensor
    labels: tuple[Tensor, Tensor]
    tests: tuple[LayerTest, ...]
    """Highest weight first."""
    answers: tuple[float, float] | None
    """What is added to a score if the model is wrong about the record, and if it is right; None for regression."""
    left_out: dict[str, str]
    notes: tuple[str, ...]
    roc: Roc
    margins: tuple[Tensor, Tensor]
    """Of records and controls: what an attacker gets who only queries the model."""
    epsilon_lower: float
    control: Control
    seconds: float

    @cached_property
    def margin_roc(self) -> Roc:
        return roc(*self.margins)

    @property
    def leaks(self) -> bool:
        if self.roc.p_value >= SIGNIFICANT:
            return False
        return self.roc.auc >= AUC_OF_A_LEAK or self.epsilon_lower >= EPSILON_OF_A_LEAK

    @property
    def outcome(self) -> Literal["leak found", "no leak found"]:
        return "leak found" if self.leaks else "no leak found"

    @property
    def sentence(self) -> str:
        found = round(self.roc.at(0) * len(self.train))
        if not self.leaks and self.roc.p_value < SIGNIFICANT:
            return (
                f"No leak found: the weights tell {len(self.train):,} training records from "
                f"{len(self.held_out):,} held-out ones only on average (AUC {self.roc.auc:.2f}), which singles "
                "out none of them."
            )
        if not self.leaks:
            return (
                f"No leak found: the weights do not tell {len(self.train):,} training records from "
                f"{len(self.held_out):,} held-out ones (AUC {self.roc.auc:.2f})."
            )
        return (
            f"Leak found: {found:,} of {len(self.train):,} training records score higher than every one of "
            f"{len(self.held_out):,} held-out records (AUC {self.roc.auc:.2f}); from the margin alone "
            f"{round(self.margin_roc.at(0) * len(self.train)):,} do."
        )

    def p_values(self) -> tuple[Tensor, Tensor]:
        """Of records and of controls: how likely a control scores as high."""
        return p_values(self.train, self.held_out), p_values(self.held_out, self.held_out, are_controls=True)

    def bounds(self, rate: float) -> Interval:
        """The true-positive rate at a false-positive rate, with its bounds."""
        return clopper_pearson(round(self.roc.at(rate) * len(self.train)), len(self.train))

    def to_json(self) -> dict[str, Any]:
        curve = self.roc.to_json()
        return {
            "schema": 1,
            "outcome": self.outcome,
            "sentence": self.sentence,
            "auc": self.roc.auc,
            "p_value": self.roc.p_value,
            "tpr_at_fpr": curve["tpr_at_fpr"],
            "tpr_bounds": {f"{rate:g}": asdict(self.bounds(rate)) for rate in RATES},
            "confidence": CONFIDENCE,
            "epsilon_lower": self.epsilon_lower,
            "delta": DELTA,
            "note": self.roc.note,
            "layers": self.layers_json(),
            "answers": None if self.answers is None else dict(zip(("wrong", "right"), self.answers, strict=True)),
            "left_out": self.left_out,
            "notes": list(self.notes),
            "control": self.control.to_json(),
            "margin": {"auc": self.margin_roc.auc, "tpr_at_0": self.margin_roc.at(0)},
            "pool": len(self.train) + len(self.held_out),
            "records": len(self.train),
            "held_out": len(self.held_out),
            "fpr": curve["fpr"],
            "tpr": curve["tpr"],
            "seconds": self.seconds,
        }

    def layers_json(self) -> dict[str, Any]:
        """By layer: its weight in all, and every test's own."""
        layers: dict[str, Any] = {}
        for one in self.tests:
            layer = layers.setdefault(one.layer, {"weight": 0.0, "tests": {}})
            layer["weight"] += one.weight
            layer["tests"][one.test] = {"weight": one.weight, "auc": one.roc.auc, "tpr_at_0": one.roc.at(0)}
        return layers

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["set", "index", "label", "score", "p_value"])
        named = zip(("train", "held-out"), (self.train, self.held_out), self.labels, self.p_values(), strict=True)
        for name, scores, labels, chances in named:
            rows = zip(labels.tolist(), scores.tolist(), chances.tolist(), strict=True)
            writer.writerows([name, index, *row] for index, row in enumerate(rows))
        return text.getvalue()

    def write(self, directory: Path) -> None:
        """membership.csv and membership.json."""
        files.prepare_directory(directory)
        files.write_bytes(directory / "membership.csv", self.to_csv().encode())
        files.write_json(directory / "membership.json", self.to_json())


def membership(
    model: nn.Module | Model,
    records: Records,
    held_out: Records,
    *,
    input_shape: Sequence[int] | str | None = None,
    task: str | None = None,
    arch: str | None = None,
    adapter: Path | None = None,
    batch: int = 64,
    run: Runner = in_process,
    snapshot: Path | None = None,
    resume: bool = False,
    snapshot_every: float = 20.0,
    progress: Progress = silent,
) -> MembershipRecord:
    """Which of `records` were in training, asked of the weights; `held_out` is the control.

    model      any module, used as it is, or what `engram.open_view` opens, with its input_shape, task and arch
    records    (inputs [n, ...] as the model takes them, labels [n]) that may have been in training, as tensors or
               arrays; or batches of such, e.g. a DataLoader that does not shuffle, which is read several times
    held_out   the same for records of the same kind that training never saw; several hundred, if possible
    task       what the outputs mean; default: binary for one output, else classes
    adapter    a directory with a LoRA adapter of PEFT for the model, a module: it is asked, not the base
    run        where chunks of records are computed: here, or in N processes with `Forked(N)`
    snapshot   a file for what was computed so far, from which a killed run can `resume`
    """
    started = time.perf_counter()
    if not isinstance(model, nn.Module):
        view = open_view(model, input_shape=input_shape, task=task, arch=arch)
        if adapter is not None:
            raise ConfigError("an adapter names the layers of a module; give the base model as a module")
        model, task = as_module(view.network), view.task.name
    only = None
    if adapter is not None:
        model, only = with_adapter(model, read_adapter(adapter))
    pool = Pool.of(records, held_out, batch=batch, progress=progress)
    with _in_eval_mode(model):
        require(int(pool.labels.min()) >= 0, "labels", "must not be negative", int(pool.labels.min()))
        example = next(iter(pool))[0][:2]
        kind = task_of(model, example, pool.labels.max(), task)
        store = ChunkStore(snapshot, _digest(model, pool), snapshot_every)
        if resume:
            store.resume()
        found = score_layers(model, pool, margin_of(kind), only=only, run=run, store=store, progress=progress)
    own = torch.stack([one.double() for one in found.scores.values()], 1)
    mixture = combine(own, right=right_about(kind, found.margins))
    n, scores = pool.records, mixture.scores
    tests = [
        LayerTest(layer, test, weight, roc(one[:n], one[n:]))
        for ((layer, test), one), weight in zip(found.scores.items(), mixture.weights.tolist(), strict=True)
    ]
    return MembershipRecord(
        train=scores[:n],
        held_out=scores[n:],
        labels=(pool.labels[:n], pool.labels[n:]),
        tests=tuple(sorted(tests, key=lambda test: -test.weight)),
        answers=mixture.answers,
        left_out=found.left_out,
        notes=found.notes,
        roc=roc(scores[:n], scores[n:]),
        margins=(found.margins[:n], found.margins[n:]),
        epsilon_lower=epsilon_lower(scores[:n], scores[n:]),
        control=pool.control,
        seconds=time.perf_counter() - started,
    )


def margin_of(task: Task) -> Margin:
    """The margin whose gradient a record leaves in the weights; outputs are [b] or [b, outputs], labels [b].

    With several classes it has the value of the margin and the gradient of a softened one, in which the other
    classes count more alike: what a record leaves is a sum over training, whose early steps knew less about them.
    """

    def margin(outputs: Tensor, labels: Tensor) -> Tensor:
        outputs = outputs.reshape(len(outputs), -1)
        if isinstance(task, Regression):
            target = Binary.signs(labels, outputs.dtype)
            return (target - outputs[:, 0]).detach().sign() * outputs[:, 0]
        if outputs.shape[1] == 1:
            return Binary.signs(labels, outputs.dtype) * outputs[:, 0]
        own = outputs.gather(1, labels[:, None])[:, 0]
        others = outputs.scatter(1, labels[:, None], -torch.inf)
        softened = own - SOFTNESS * (others / SOFTNESS).logsumexp(1)
        return (own - others.logsumexp(1)).detach() + (softened - softened.detach())

    return margin


def right_about(task: Task, margins: Tensor) -> Tensor | None:
    """About which records [n] the model is right; None where that has no meaning."""
    return None if isinstance(task, Regression) else margins > 0


@torch.no_grad()
def task_of(model: nn.Module, example: Tensor, highest_label: int | Tensor, name: str | None) -> Task:
    """What the outputs mean: the task by name, or by their number for a few inputs; labels must fit it."""
    try:
        outputs = model(as_fed(model, example))
    except (RuntimeError, ValueError, IndexError) as error:
        shape, reason = "x".join(map(str, example.shape[1:])), str(error).partition("\n")[0]
        raise ConfigError(f"the model can't take inputs of shape {shape}: {reason}; give others") from error
    require(
        isinstance(outputs, Tensor) and outputs.ndim <= 2 and len(outputs) == len(example),
        "model",
        "must give one output or one row of outputs per record",
        tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__,
        "wrap it in a module that does",
    )
    count = outputs.reshape(len(example), -1).shape[1]
    task = infer_task(count) if name is None else task_named(name, count)
    require(
        0 <= int(highest_label) < task.label_count,
        "labels",
        f"must be in 0..{task.label_count - 1} for a {task.name} task",
        int(highest_label),
        "choose another label map with --labels, or renumber them",
    )
    return task


def _digest(model: nn.Module, pool: Pool) -> bytes:
    found = hashlib.blake2b(pool.digest, digest_size=16)
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            found.update(
                name.encode() + value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            )
    return found.digest()


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Batch norm uses its running statistics and dropout is off; every module's mode is restored afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
