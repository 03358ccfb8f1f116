"""Several classes in the engine: all pairs, the falling prior, resuming between two exact steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engram.attacks.engine.dense import Engine
from engram.attacks.engine.self_tuning import CLASSES_FIRST_PRIOR, CLASSES_PRIOR, PRIORS, Phase
from engram.attacks.registry import make_attack
from engram.attacks.settings import EngineSettings
from engram.core.loop import Budget, Snapshots, run
from engram.models.tasks import Binary, Multiclass, MulticlassPairs, Regression, Task
from engram.models.view import AttackerView
from engram.training.recipe import MLPSpec

SHAPE = (1, 4, 4)


def _view(task: Task) -> AttackerView:
    spec = MLPSpec(inputs=16, widths=(30, 20), outputs=task.outputs, first_layer_std=1.0)
    return AttackerView(spec.initialise(torch.Generator().manual_seed(3), torch.float32), SHAPE, task)


@pytest.mark.parametrize(
    ("task", "used"),
    [
        (Multiclass(3), MulticlassPairs(3)),
        (MulticlassPairs(3), MulticlassPairs(3)),
        (Multiclass(2), Multiclass(2)),
        (Binary(), Binary()),
        (Regression("huber"), Regression("huber")),
    ],
)
def test_the_engine_uses_all_constraints_of_a_sample(task: Task, used: Task) -> None:
    engine = make_attack(_view(task))
    assert isinstance(engine, Engine)
    assert engine.posed.task == used
    assert engine.view.task == task, "records store what the caller gave"


def test_unit_duals_keep_the_proportions() -> None:
    duals = torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.0, 0.0]])
    assert MulticlassPairs(3).unit_duals(duals).tolist() == [[0.0, 0.25, 0.75], [0.0, 0.0, 0.0]]
    assert Binary().unit_duals(torch.tensor([0.0, 5.0])).tolist() == [1.0, 1.0]


def test_with_several_classes_the_prior_falls_to_its_strength() -> None:
    several, two = (Engine(_view(task), EngineSettings(prior=0.5)) for task in (Multiclass(3), Binary()))
    phases = [Phase(index=0, step=step, length=10) for step in range(11)]
    strengths = [several._prior(phase) for phase in phases]
    assert strengths[0] == CLASSES_FIRST_PRIOR * 0.5
    assert strengths[-1] == 0.5
    assert strengths == sorted(strengths, reverse=True)
    assert {two._prior(phase) for phase in phases} == {0.5}


def test_the_prior_that_nobody_chose() -> None:
    several, two = (Engine(_view(task), EngineSettings()) for task in (Multiclass(3), Binary()))
    ends = [Phase(index=index, step=500, length=500) for index in range(5)]
    assert {several._prior(end) for end in ends} == {CLASSES_PRIOR}
    strong, weak = PRIORS
    assert [two._prior(end) for end in ends] == [strong, weak, strong, weak, strong]


@pytest.mark.parametrize("stop", [5, 7, 30])
def test_resumed_between_exact_steps_ends_bit_identical(tmp_path: Path, stop: int) -> None:
    """Upper layers, prior and the duals' gradient are held between them."""
    settings = EngineSettings(candidates=12, steps=40, restarts=1, prior=0.5)

    def begin() -> Engine:
        return Engine(_view(MulticlassPairs(3)), settings)

    whole = run(begin(), Budget(steps=40)).state
    snapshots = Snapshots(path=tmp_path / "s")
    run(begin(), Budget(steps=stop), snapshots=snapshots).require_finite()
    resumed = run(begin(), Budget(steps=40), snapshots=snapshots, resume=True).state
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
