"""The engine under a memory limit: the same numbers in chunks, shared metrics, and a peak within the limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.steps import measure_memory

from engram.attacks.engine.closed_form import Groups, Metric, inverse_covariances
from engram.attacks.engine.consensus import consensus
from engram.attacks.engine.dense import Engine
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.settings import EngineSettings
from engram.core.loop import Budget, Snapshots, run
from engram.data.choice import DataChoice
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary, Task
from engram.models.view import AttackerView
from engram.pipeline import build_target, compare
from engram.training.recipe import MLPSpec, Recipe
from tests import cases

GENEROUS, TIGHT = 2**30, 2**14


def _engine(task: Task, memory: int) -> Engine:
    """Thirty neurons that have learnt eight directions."""
    generator = torch.Generator().manual_seed(0)
    learnt = (torch.randn(30, 8, generator=generator) @ torch.randn(8, 27, generator=generator)).double()
    drawn = cases.network(27, 30, 12, task.outputs)
    network = drawn.with_params({**drawn.params, "layers.0.weight": learnt + 1e-3 * drawn.weights[0]})
    view = AttackerView(network, (3, 3, 3), task)
    settings = EngineSettings(candidates=24, restarts=1, prior=0.7, dtype="float64", memory=memory)
    return Engine(view, settings)


@pytest.mark.parametrize("h", [7, 24, 100])
@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_every_neuron_is_in_one_group_and_groups_have_similar_sizes(h: int, count: int) -> None:
    weights = torch.rand(9, h, generator=torch.Generator().manual_seed(1))
    groups = Groups.alike(weights, count)
    assert len(groups) == count
    assert torch.equal(groups.members.flatten()[groups.places], torch.arange(h))
    sizes = (groups.places // groups.members.shape[1]).bincount(minlength=count)
    assert int(sizes.max() - sizes.min()) <= 1
    torch.testing.assert_close(groups.summed(weights).sum(1), weights.sum(1))


def test_neurons_with_similar_weights_are_grouped() -> None:
    """Four planted kinds of neurons, in any order."""
    generator = torch.Generator().manual_seed(2)
    kinds = torch.rand(50, 4, generator=generator).round()
    kind = torch.randperm(40, generator=generator) % 4
    weights = kinds[:, kind] + 0.05 * torch.rand(50, 40, generator=generator)
    groups = Groups.alike(weights, 4)
    assert sorted(sorted(set(kind[members].tolist())) for members in groups.members) == [[0], [1], [2], [3]]


def test_a_shared_metric_equals_matrices_of_each_neuron() -> None:
    """Each neuron, one by one, with the matrix of its group's mean weights, or its own if it is alone."""
    generator = torch.Generator().manual_seed(3)
    entering = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    used = torch.rand(20, 11, generator=generator, dtype=torch.float64)
    rows = torch.randn(11, 4, generator=generator, dtype=torch.float64)
    scale = torch.rand(11, generator=generator, dtype=torch.float64)
    for count in (1, 3, 11):
        groups = Groups.alike(used, count)
        metric = Metric.of(
            inverse_covariances(entering, groups.summed(used), 0.1, room=10**6), groups, scale, rows
        )
        matrices = []
        for neuron in range(11):
            own = [set(members.tolist()) for members in groups.members if neuron in members]
            assert len(own) == 1
            mean = torch.stack([used[:, member] for member in own[0]]).mean(0)
            (matrix,), (largest,) = inverse_covariances(entering, mean[:, None], 0.1, room=10**6)
            matrices.append(scale[neuron] * matrix)
            assert float(metric.largest[neuron]) == pytest.approx(float(largest), rel=1e-3)
        total = sum(float(row @ matrix @ row) for row, matrix in zip(rows, matrices, strict=True))
        expected = torch.stack([matrix @ row / total for row, matrix in zip(rows, matrices, strict=True)])
        torch.testing.assert_close(metric(rows), expected, rtol=1e-8, atol=0)
        torch.testing.assert_close(metric.pulled, expected, rtol=1e-8, atol=0)
        assert float(metric.energies.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("task", cases.TASKS, ids=lambda task: f"{task.name}-{task.outputs}")
def test_values_and_gradients_do_not_depend_on_the_limit(task: Task) -> None:
    """With the same metric, all terms in many chunks equal those in one."""
    whole, pieces = (_engine(task, memory) for memory in (GENEROUS, TIGHT))
    state = run(whole, Budget(steps=3)).state
    metric = whole.objective.metric(state["latents"], state["duals"])
    passes = [
        engine.objective.passes(state["latents"], state["duals"], state["labels"]) for engine in (whole, pieces)
    ]
    assert [len(one.parts) == 1 for one in passes] == [True, False]
    expected, found = (engine.objective(state, metric, 0.7) for engine in (whole, pieces))
    assert expected[0].keys() == found[0].keys()
    for name, value in expected[0].items():
        torch.testing.assert_close(found[0][name], value, rtol=0, atol=1e-12)
    for a, b in zip(expected[1:], found[1:], strict=True):
        torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-12)


def test_the_limit_determines_the_number_of_metrics() -> None:
    whole, pieces = (_engine(Binary(), memory) for memory in (GENEROUS, TIGHT))
    state = run(whole, Budget(steps=1)).state
    all_alone, shared = (engine.objective.metric(state["latents"], state["duals"]) for engine in (whole, pieces))
    assert len(all_alone.matrices) == 30
    assert 1 < len(shared.matrices) < 30
    assert shared.matrices.numel() * shared.matrices.element_size() <= pieces.settings.room
    least = replace(pieces.objective, settings=replace(pieces.settings, memory=2))
    assert len(least.metric(state["latents"], state["duals"]).matrices) == 1


@pytest.mark.parametrize("room", [1, 3000, 10**7])
def test_consensus_in_blocks_equals_the_whole(room: int) -> None:
    generator = torch.Generator().manual_seed(4)
    base = torch.randn(10, 1, 5, 5, generator=generator)
    images = torch.cat([base, base + 0.05 * torch.randn(10, 1, 5, 5, generator=generator), -base])
    pool = Reconstruction(images, torch.rand(30, generator=generator), torch.arange(30) % 2)
    expected, found = consensus(pool, 3, 10**9), consensus(pool, 3, room)
    assert len(found) == len(expected) < 30
    for name in ("images", "duals", "labels", "scores"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-4)


def test_recovers_faces_with_a_tenth_of_the_metrics() -> None:
    choice = DataChoice(name="faces", labels="gate", n=20)
    network = build_target(
        choice, MLPSpec(inputs=625, widths=(300, 100)), Recipe(lr=0.05, epochs=1500), Binary()
    ).network
    view = AttackerView(network, (1, 25, 25), Binary())
    engine = Engine(view, EngineSettings(steps=120, restarts=1, prior=1.6, memory=90_000))
    solution = run(engine, Budget(steps=engine.total_steps))
    assert len(engine.objective.metric(solution.state["latents"], solution.state["duals"]).matrices) <= 30
    counts = compare(engine.reconstruction(solution.state), choice.load()).counts
    assert counts["ncc>0.8"].train >= 8
    assert counts["ncc>0.8"].held_out == 0


def test_resumed_under_a_limit_ends_bit_identical(tmp_path: Path) -> None:
    engine = _engine(Binary(), TIGHT)
    settings = replace(engine.settings, steps=20, metric_every=7)
    whole = run(replace(engine, settings=settings), Budget(steps=20)).state
    snapshots = Snapshots(path=tmp_path / "s")
    run(replace(engine, settings=settings), Budget(steps=11), snapshots=snapshots)
    resumed = run(replace(engine, settings=settings), Budget(steps=20), snapshots=snapshots, resume=True).state
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def _used(view: AttackerView, memory: int) -> int:
    """The peak of an attack; holes in the heap add to it now and then, so the smaller of two tries counts."""
    result = measure_memory(view, 1000, memory=memory)
    return int(result["peak_memory_bytes"] - result["loaded_bytes"])


def test_the_peak_stays_within_the_limit() -> None:
    """2,000 neurons, 100 directions and 1,000 candidates: 82 MB of metrics and 100 MB of passes if there is room.
    On top of the limit of 32 MB comes what every run needs: the decomposition, gates [m, h], the candidates."""
    generator = torch.Generator().manual_seed(5)
    first = torch.randn(2000, 100, generator=generator) @ torch.randn(100, 768, generator=generator)
    first += 1e-3 * torch.randn(2000, 768, generator=generator)
    upper = torch.randn(100, 2000, generator=generator) / 40, torch.randn(1, 100, generator=generator)
    network = DenseNetwork((first, *upper), (torch.zeros(2000), None, None))
    view = AttackerView(network, (3, 16, 16), Binary())
    used = {}
    for memory in (32_000_000, GENEROUS):
        used[memory] = min(_used(view, memory) for _ in range(2 if memory < GENEROUS else 1))
    assert used[32_000_000] < 32_000_000 + 120_000_000
    assert used[GENEROUS] > used[32_000_000] + 80_000_000
