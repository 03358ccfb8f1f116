"""`membership`: which records were in training, for any PyTorch model, from its weights alone.

Every record is scored by the matched filter at every layer it can read, and the layers' scores are added up.
Members and controls are treated alike, and nothing is fitted to who is a member.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engram.core import files
from engram.core.errors import require
from engram.core.progress import Progress, silent
from engram.members.matched_filter import Margin, Pool, matched_filter
from engram.models.modules import as_module
from engram.models.open.door import Model, open_view
from engram.models.tasks import Binary, Regression, Task, infer_task, task_named
from engram.scoring.bounds import CONFIDENCE, DELTA, Interval, clopper_pearson, epsilon_lower, p_values
from engram.scoring.curves import RATES, Roc, roc

LEAK = 0.01
"""A leak is found if the records would outscore the controls by chance with less than this probability."""
Records = tuple[Tensor, Tensor]
"""Inputs [n, ...] as the model takes them, and labels [n]."""


@dataclass(frozen=True, eq=False)
class MembershipRecord:
    """A score for every record and control, higher for likelier members, and what the scores prove."""

    train: Tensor
    held_out: Tensor
    labels: tuple[Tensor, Tensor]
    layers: dict[str, Roc]
    weights: dict[str, float]
    left_out: dict[str, str]
    roc: Roc
    margin_roc: Roc
    epsilon_lower: float
    seconds: float

    @property
    def leaks(self) -> bool:
        return self.roc.p_value < LEAK

    @property
    def sentence(self) -> str:
        found = round(self.roc.at(0) * len(self.train))
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
            "outcome": "leak found" if self.leaks else "no leak found",
            "sentence": self.sentence,
            "auc": self.roc.auc,
            "p_value": self.roc.p_value,
            "tpr_at_fpr": curve["tpr_at_fpr"],
            "tpr_bounds": {f"{rate:g}": asdict(self.bounds(rate)) for rate in RATES},
            "confidence": CONFIDENCE,
            "epsilon_lower": self.epsilon_lower,
            "delta": DELTA,
            "note": self.roc.note,
            "layers": {
                name: {"weight": self.weights[name], "auc": one.auc, "tpr_at_0": one.at(0)}
                for name, one in self.layers.items()
            },
            "left_out": self.left_out,
            "margin": {"auc": self.margin_roc.auc, "tpr_at_0": self.margin_roc.at(0)},
            "pool": len(self.train) + len(self.held_out),
            "records": len(self.train),
            "held_out": len(self.held_out),
            "fpr": curve["fpr"],
            "tpr": curve["tpr"],
            "seconds": self.seconds,
        }

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
    batch: int = 256,
    progress: Progress = silent,
) -> MembershipRecord:
    """Which of `records` were in training, asked of the weights; `held_out` is the control.

    model      any module, used as it is, or what `engram.open_view` opens, with its input_shape, task and arch
    records    (inputs [n, ...] as the model takes them, labels [n]) that may have been in training
    held_out   the same for records of the same kind that training never saw; several hundred, if possible
    task       what the outputs mean; default: binary for one output, else classes
    """
    started = time.perf_counter()
    for name, one in (("records", records), ("held_out", held_out)):
        require(len(one[0]) > 1, name, "must contain at least two records", len(one[0]), "give a hundred or more")
        require(len(one[0]) == len(one[1]), name, "must have as many labels as inputs", len(one[1]))
    if not isinstance(model, nn.Module):
        view = open_view(model, input_shape=input_shape, task=task, arch=arch)
        model, task = as_module(view.network), view.task.name
    pool = Pool(torch.cat([records[0], held_out[0]]), torch.cat([records[1], held_out[1]]), batch)
    with _in_eval_mode(model):
        margin = margin_of(_task(model, pool, task))
        found = matched_filter(model, pool, margin, progress=progress)
        with torch.no_grad():
            margins = torch.cat([margin(model(inputs), labels) for inputs, labels in pool])
    n, weights = len(records[0]), layer_weights(found.layers)
    scores = torch.stack([weights[name] * one for name, one in found.layers.items()]).sum(0)
    return MembershipRecord(
        train=scores[:n],
        held_out=scores[n:],
        labels=(records[1], held_out[1]),
        layers={name: roc(one[:n], one[n:]) for name, one in found.layers.items()},
        weights=weights,
        left_out=found.left_out,
        roc=roc(scores[:n], scores[n:]),
        margin_roc=roc(margins[:n], margins[n:]),
        epsilon_lower=epsilon_lower(scores[:n], scores[n:]),
        seconds=time.perf_counter() - started,
    )


def layer_weights(layers: Mapping[str, Tensor]) -> dict[str, float]:
    """How much each layer counts, in all 1: the mean of its t over the pool, if positive.

    A record that was not in training has t of mean 0 and spread 1 at every layer; a member has a higher mean. So
    the pool's mean is the members' shift times their share, and adding up in proportion to the shifts is the best
    linear combination. Who is a member is not asked.

    >>> two = torch.tensor
    >>> layer_weights({"a": two([0.0, 6.0]), "b": two([1.0, 1.0]), "c": two([-1.0, 0.0])})
    {'a': 0.75, 'b': 0.25, 'c': 0.0}
    """
    means = {name: max(0.0, float(scores.mean())) for name, scores in layers.items()}
    total = sum(means.values())
    return {name: mean / total if total > 0 else 1 / len(means) for name, mean in means.items()}


def margin_of(task: Task) -> Margin:
    """The margin whose gradient a record leaves in the weights; outputs are [b] or [b, outputs], labels [b]."""

    def margin(outputs: Tensor, labels: Tensor) -> Tensor:
        outputs = outputs.reshape(len(outputs), -1)
        if isinstance(task, Regression):
            target = Binary.signs(labels, outputs.dtype)
            return (target - outputs[:, 0]).detach().sign() * outputs[:, 0]
        if outputs.shape[1] == 1:
            return Binary.signs(labels, outputs.dtype) * outputs[:, 0]
        own = outputs.gather(1, labels[:, None])[:, 0]
        return own - outputs.scatter(1, labels[:, None], -torch.inf).logsumexp(1)

    return margin


def _task(model: nn.Module, pool: Pool, name: str | None) -> Task:
    with torch.no_grad():
        outputs = model(pool.inputs[:2])
    require(
        outputs.ndim <= 2 and len(outputs) == 2,
        "model",
        "must give one output or one row of outputs per record",
        tuple(outputs.shape),
        "wrap it in a module that does",
    )
    count = outputs.reshape(2, -1).shape[1]
    task = infer_task(count) if name is None else task_named(name, count)
    highest = int(pool.labels.max())
    require(
        int(pool.labels.min()) >= 0 and highest < task.label_count,
        "labels",
        f"must be in 0..{task.label_count - 1} for a {task.name} task",
        highest,
    )
    return task


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
