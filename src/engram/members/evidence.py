"""Two tests of membership from the weights, their combination, and thresholding the loss beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engram.attacks.engine.closed_form import run_pass
from engram.core.errors import require
from engram.members.boundaries import ON_BOUNDARY, boundaries
from engram.members.duals import STEP, best_duals
from engram.models.tasks import Binary, Multiclass
from engram.models.view import AttackerView
from engram.scoring.roc import Roc, roc

MOST_RECORDS = 4000
"""Records and held-out ones that the dual test takes together; its matrix is their number squared."""


@dataclass(frozen=True, eq=False)
class MembershipTest:
    """One way of scoring records, [n] and [k], higher for likelier members."""

    name: str
    train: Tensor
    held_out: Tensor
    roc: Roc


@dataclass(frozen=True, eq=False)
class Membership:
    """All tests by name: boundaries, dual (where the task has one), combined, loss."""

    tests: tuple[MembershipTest, ...]
    note: str | None

    def __getitem__(self, name: str) -> MembershipTest:
        return next(test for test in self.tests if test.name == name)

    def to_json(self) -> dict[str, Any]:
        return {"tests": {test.name: test.roc.to_json() for test in self.tests}, "note": self.note}


@torch.no_grad()
def membership_tests(
    view: AttackerView,
    train: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    *,
    width: float = ON_BOUNDARY,
) -> Membership:
    """Score centred records ([n, *shape], labels [n]) and held-out ones ([k, *shape], [k]).

    boundaries  how many first-layer neurons have |w x + b| / ||(w, b)|| < width: training pushes samples there
    dual        the record's lambda_i >= 0 in the best fit of the first layer by records and held-out ones together
    combined    the mean of both ranks in the pool, so that neither scale nor a fit decides
    loss        minus the record's loss: what a stranger without the weights would threshold
    """
    for name, one in (("train", train), ("held_out", held_out)):
        require(len(one[0]) > 0, name, "must hold records", 0, "give at least one, better a hundred")
    inputs = torch.cat([train[0], held_out[0]]).flatten(1).double()
    labels = torch.cat([train[1], held_out[1]])
    scores = {"boundaries": boundaries(view.network, inputs, width=width).double()}
    note = _why_no_dual(view, len(inputs))
    if note is None:
        scores["dual"] = _pooled_duals(view, inputs, labels)
    scores["combined"] = torch.stack([pooled_rank(score) for score in scores.values()]).mean(0)
    scores["loss"] = -_losses(view, inputs, labels)
    n = len(train[0])
    tests = [MembershipTest(name, all_[:n], all_[n:], roc(all_[:n], all_[n:])) for name, all_ in scores.items()]
    return Membership(tuple(tests), note)


def pooled_rank(scores: Tensor) -> Tensor:
    """Each score's rank among all, in (0, 1), equal scores sharing the mean of theirs, [n] -> [n].

    >>> pooled_rank(torch.tensor([5.0, 1.0, 1.0])).tolist()
    [0.75, 0.375, 0.375]
    """
    _, place = torch.unique(scores, return_inverse=True)
    counts = torch.bincount(place).double()
    last = counts.cumsum(0)
    return ((2 * last - counts + 1) / 2)[place] / (len(scores) + 1)


def _why_no_dual(view: AttackerView, records: int) -> str | None:
    if not isinstance(view.task, Binary | Multiclass):
        return f"a {view.task.name} task has no dual of one sign for each record: the dual test is left out"
    if len(view.network.weights) < 2:
        return "without a hidden layer all gradients are alike: the dual test is left out"
    if records > MOST_RECORDS:
        return f"the dual test takes at most {MOST_RECORDS:,} records in all, got {records:,}: it is left out"
    return None


def _pooled_duals(view: AttackerView, inputs: Tensor, labels: Tensor) -> Tensor:
    """Duals of records and held-out ones in one fit, so that each kind has the same chance of a large one."""
    network = view.network.to(dtype=torch.float64)
    ones = torch.ones(len(inputs), dtype=torch.float64)
    done = run_pass(network, inputs, lambda logits: view.task.sides(labels, ones, logits), STEP)
    return best_duals(network, done, 0)


def _losses(view: AttackerView, inputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of every record, [n]."""
    logits = view.network.to(dtype=torch.float64)(inputs)
    each = [view.task.loss(logits[i : i + 1], labels[i : i + 1]) for i in range(len(inputs))]
    return torch.stack(each)
