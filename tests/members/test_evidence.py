"""Membership: a network that memorised its samples reveals them; one that never saw them does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engram.core.errors import ConfigError
from engram.members.kkt import Membership, boundaries, membership_tests
from engram.members.membership import margin_of
from engram.members.pool import Pool
from engram.members.scores import score_layers
from engram.models.open.modules import as_module
from engram.models.tasks import Binary, Multiclass, Regression
from engram.models.view import AttackerView
from engram.training.recipe import MLPSpec, Recipe
from engram.training.target import train
from tests.cases import network, points

Records = tuple[Tensor, Tensor]


def evidence(view: AttackerView, train: Records, held_out: Records) -> Membership:
    layers = score_layers(as_module(view.network), Pool.of(train, held_out), margin_of(view.task))
    return membership_tests(view, train, held_out, list(layers.scores.values()))


@pytest.fixture(scope="module")
def memorised() -> tuple[AttackerView, Records, Records]:
    """Twenty random points with random labels, memorised; twenty more that were not."""
    inputs, labels = points(40, 30, seed=3)
    spec = MLPSpec(inputs=30, widths=(200, 50))
    learnt, _ = train(spec, Recipe(lr=0.05, epochs=1500), Binary(), inputs[:20], labels[:20])
    return AttackerView(learnt, (30,), Binary()), (inputs[:20], labels[:20]), (inputs[20:], labels[20:])


def test_members_are_identified(memorised: tuple[AttackerView, Records, Records]) -> None:
    found = evidence(*memorised)
    assert [test.name for test in found.tests] == ["boundaries", "dual", "layers", "combined", "loss"]
    assert found["combined"].roc.auc > 0.95
    assert found["combined"].roc.p_value < 1e-4
    assert found["dual"].roc.at(0) > 0.5
    assert torch.equal(found["boundaries"].train, boundaries(memorised[0].network, memorised[1][0]).double())


def test_swapping_the_groups_mirrors_the_result(memorised: tuple[AttackerView, Records, Records]) -> None:
    """No test knows who is a member: swapping the groups swaps the scores."""
    view, own, other = memorised
    there, back = evidence(view, own, other), evidence(view, other, own)
    for test in there.tests:
        # the network is float32, and sums over the pool are taken in another order
        assert torch.allclose(test.train, back[test.name].held_out, rtol=0.01, atol=0.01)
        assert test.roc.auc == pytest.approx(1 - back[test.name].roc.auc, abs=0.01)


def test_a_network_that_never_saw_the_records_reveals_nothing() -> None:
    levels = []
    for seed in range(5):
        inputs, labels = points(80, 30, seed=100 + seed)
        view = AttackerView(network(30, 60, 20, 1, seed=seed), (30,), Binary())
        found = evidence(view, (inputs[:40], labels[:40]), (inputs[40:], labels[40:]))
        levels.append(found["combined"].roc.p_value)
    assert min(levels) > 0.001


def test_tasks_without_duals_skip_the_dual_test() -> None:
    inputs, labels = points(20, 12, labels=3)
    classes = evidence(
        AttackerView(network(12, 30, 3), (12,), Multiclass(3)),
        (inputs[:10], labels[:10]),
        (inputs[10:], labels[10:]),
    )
    assert classes.note is None
    assert len(classes.tests) == 5
    regression = AttackerView(network(12, 30, 1), (12,), Regression("l2"))
    found: Membership = evidence(regression, (inputs[:10], labels[:10] % 2), (inputs[10:], labels[10:] % 2))
    assert [test.name for test in found.tests] == ["boundaries", "layers", "combined", "loss"]
    assert "regression:l2" in str(found.note)
    with pytest.raises(ConfigError, match="held_out must contain records, got 0"):
        evidence(regression, (inputs, labels), (inputs[:0], labels[:0]))
