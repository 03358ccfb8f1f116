"""From a finished attack to what is kept of it: counts, columns of samples, images for the figures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.data.sampling import Split, centred
from engram.experiments.attacks import AttackPlan, Outcome
from engram.experiments.provenance import commit
from engram.experiments.records import CaseRecord, Count, Finished, Training
from engram.experiments.zoo import Plan, Scale
from engram.matching import ScoreReport
from engram.pipeline import compare
from engram.runs import versions
from engram.targets.checkpoint import Card, Target
from engram.targets.convolutional import ConvNetwork
from engram.targets.networks import Network
from engram.task import task_named


@dataclass(frozen=True, kw_only=True)
class Order:
    """All that a case is made from."""

    key: str
    preset: str
    scale: Scale
    seed: int
    target: Plan
    attack: AttackPlan


def scored(order: Order, target: Target[Network], data: Split, outcome: Outcome, *, resumed: bool) -> Finished:
    """Compare with the data, beside held-out images and noise."""
    plan, card = order.target, target.card
    assert card is not None
    report = compare(outcome.found, data, network=target.network)
    record = CaseRecord(
        key=order.key,
        preset=order.preset,
        attack=order.attack.name,
        scale=order.scale,
        seed=order.seed,
        network=plan.network.name,
        task=plan.task,
        data=plan.data.name,
        n=plan.data.n,
        n_held_out=len(data.held_out),
        cuts=(*plan.cuts, *order.attack.cuts),
        training=_training(card),
        settings=outcome.settings,
        candidates=report.candidates,
        counts=_counts(report),
        top10=report.top10_mean,
        samples=_samples(target.network, plan.task, data, report),
        steps=outcome.steps,
        attack_seconds=outcome.seconds,
        resumed=resumed,
        message=outcome.message,
        commit=commit(),
        versions=versions(),
    )
    return Finished(record, _tensors(target.network, data, report, outcome))


def _training(card: Card) -> Training:
    return Training(
        loss=card.train.loss,
        accuracy=card.train.accuracy,
        smallest_margin=card.train.smallest_margin,
        test_loss=None if card.test is None else card.test.loss,
        test_accuracy=None if card.test is None else card.test.accuracy,
        epochs=card.epochs,
        stopped=card.stopped,
        seconds=card.seconds,
    )


def _counts(report: ScoreReport) -> dict[str, Count]:
    return {
        row.threshold.text: Count(train=row.train, held_out=row.held_out, excess=row.excess, noise=row.noise)
        for row in report.counts
    }


@torch.no_grad()
def _samples(network: Network, task_name: str, data: Split, report: ScoreReport) -> dict[str, list[float]]:
    """A column for everything that a scatter of single samples may show."""
    inputs = centred(data.train.images, data.mean).to(network.weights[0].dtype)
    logits = network(inputs)
    task = task_named(task_name, network.sizes[-1])
    columns: dict[str, Tensor | None] = {
        **{name: getattr(report.train, name) for name in ("ssim", "ncc", "relative_l2")},
        "margin": task.margins(logits, data.train.labels),
        "output": logits.squeeze(1) if logits.shape[1] == 1 else None,
    }
    return {
        name: [round(value, 6) for value in column.nan_to_num(nan=-1.0).tolist()]
        for name, column in columns.items()
        if column is not None
    }


def _tensors(network: Network, data: Split, report: ScoreReport, outcome: Outcome) -> dict[str, Tensor]:
    """Images as bytes, candidates in half precision: a figure needs no more."""
    kept = {"candidates": outcome.found.images.half(), "duals": outcome.found.duals.float()}
    if data.train.images.ndim == 4:
        kept["original"] = _as_bytes(data.train.images)
        kept["reconstruction"] = _as_bytes(report.train.reconstruction)
    else:
        kept["candidates"] = outcome.found.images.float()
        kept["points"], kept["point_labels"] = data.train.images, data.train.labels
    if outcome.outputs is not None:
        kept["outputs"] = outcome.outputs
    if isinstance(network, ConvNetwork):
        kept["kernels"] = network.weights[0]
    return kept


def _as_bytes(images: Tensor) -> Tensor:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)
