"""The 2023 extension of the published scheme compared with hand-written code: both class forms, signed duals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engram.attacks.published import PublishedScheme, residuals, smoothed, stationarity_loss
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.settings import KNOWN_SETTINGS, Buzaglo2023, Haim2022
from engram.core.errors import ConfigError
from engram.core.loop import Budget, Snapshots, StopReason, run
from engram.models.activations import RELU
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary, Multiclass, MulticlassPairs, Regression, Task
from engram.training.recipe import BiasPolicy
from tests import cases, oracle

FORMS = (Multiclass(3), MulticlassPairs(3), Regression("l2"))
EVERY_FORM = pytest.mark.parametrize("task", FORMS, ids=lambda task: task.name)
NO_FLOOR = {"dual_floor": 0.0, "dual_weight": 0.0}
SLOPE = 6.0


def by_hand(network: DenseNetwork, task: Task, inputs: Tensor, labels: Tensor, duals: Tensor) -> list[list[float]]:
    """Rows c_i, from the equations of the paper."""
    rows = []
    for x, y, dual in zip(inputs.detach(), labels.tolist(), duals.tolist(), strict=True):
        outputs = network(x[None])[0].tolist()
        row = [0.0] * len(outputs)
        if isinstance(task, Regression):
            row[0] = dual
        elif isinstance(task, MulticlassPairs):
            for j, pair in enumerate(dual):
                if j != y:
                    row[y] += pair
                    row[j] -= pair
        else:
            strongest = max((value, j) for j, value in enumerate(outputs) if j != y)[1]
            row[y], row[strongest] = dual, -dual
        rows.append(row)
    return rows


def arrays(network: DenseNetwork) -> tuple[list[oracle.Array], list[oracle.Array | None]]:
    weights = [weight.numpy() for weight in network.weights]
    return weights, [None if bias is None else bias.numpy() for bias in network.biases]


def problem(task: Task, bias: BiasPolicy) -> tuple[DenseNetwork, Tensor, Tensor, Tensor]:
    network = cases.network(3, 8, 7, task.outputs, bias=bias)
    inputs, labels = cases.points(6, 3, labels=task.label_count)
    return network, inputs, labels, task.draw_duals(labels, torch.Generator().manual_seed(2))


@EVERY_FORM
@pytest.mark.parametrize("bias", ["first", "all", "none"])
def test_residuals_equal_hand_written_backpropagation(task: Task, bias: BiasPolicy) -> None:
    network, inputs, labels, duals = problem(task, bias)
    found = residuals(network, task, smoothed(RELU, SLOPE), inputs, labels, duals)
    expected = {name: value.numpy().copy() for name, value in network.params.items()}
    rows = by_hand(network, task, inputs, labels, duals)
    for x, row in zip(inputs.numpy(), rows, strict=True):
        by_weight, by_bias = oracle.smoothed_gradients(*arrays(network), x, SLOPE, row)
        for layer, (weight_gradient, bias_gradient) in enumerate(zip(by_weight, by_bias, strict=True)):
            expected[f"layers.{layer}.weight"] -= weight_gradient / 6
            if bias_gradient is not None:
                expected[f"layers.{layer}.bias"] -= bias_gradient / 6
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].detach().numpy(), value, rtol=0, atol=1e-10)


@EVERY_FORM
def test_gradient_of_the_images_equals_forward_mode_by_hand(task: Task) -> None:
    network, inputs, labels, duals = problem(task, "all")
    inputs.requires_grad_()
    loss = stationarity_loss(residuals(network, task, smoothed(RELU, SLOPE), inputs, labels, duals))
    (gradient,) = torch.autograd.grad(loss, inputs)
    rows = by_hand(network, task, inputs, labels, duals)
    for moved in [(0, 0), (1, 2), (4, 1)]:
        points = inputs.detach().numpy()
        expected = oracle.stationarity_derivative(*arrays(network), points, rows, SLOPE, moved)
        assert loss.item() == pytest.approx(expected.value, abs=1e-10)
        assert float(gradient[moved]) == pytest.approx(expected.slope, abs=1e-10)


def scheme(task: Task, **changes: object) -> PublishedScheme:
    floor = NO_FLOOR if task.has_signed_duals else {}
    chosen = {
        "candidates": 6,
        "steps": 20,
        "lr_images": 0.02,
        "lr_duals": 0.02,
        "image_std": 0.5,
        "relu_slope": 5.0,
    }
    settings = Buzaglo2023(**{**chosen, **floor, **changes})  # type: ignore[arg-type]
    return PublishedScheme(cases.view(3, 6, 5, task.outputs, task=task), settings)


@EVERY_FORM
def test_loss_falls_and_duals_of_the_own_class_stay_zero(task: Task) -> None:
    attack = scheme(task, steps=300)
    first = float(attack.step(attack.init())["loss"])
    solution = run(attack, Budget(steps=300))
    assert solution.loss < 0.9 * first
    found = attack.reconstruction(solution.state)
    assert found.images.shape == (6, 3)
    assert found.duals.shape == found.labels.shape == (6,)
    if found.pair_duals is not None:
        own = found.pair_duals.gather(1, found.labels[:, None])
        assert not own.any()
        torch.testing.assert_close(found.duals, found.pair_duals.sum(1))
    assert (found.pair_duals is not None) == isinstance(task, MulticlassPairs)


@EVERY_FORM
def test_resumed_ends_bit_identical(task: Task, tmp_path: Path) -> None:
    whole = run(scheme(task), Budget(steps=20)).state
    snapshots = Snapshots(path=tmp_path / "snapshot")
    run(scheme(task), Budget(steps=7), snapshots=snapshots)
    resumed = run(scheme(task), Budget(steps=20), snapshots=snapshots, resume=True).state
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_the_two_forms_have_different_fingerprints(tmp_path: Path) -> None:
    snapshots = Snapshots(path=tmp_path / "snapshot")
    run(scheme(Multiclass(3)), Budget(steps=3), snapshots=snapshots)
    with pytest.raises(Exception, match="belongs to a run with other settings or another model"):
        run(scheme(MulticlassPairs(3)), Budget(steps=5), snapshots=snapshots, resume=True)


@EVERY_FORM
def test_divergence_names_the_rates(task: Task) -> None:
    solution = run(scheme(task, lr_duals=1e9), Budget(steps=100))
    assert solution.reason is StopReason.DIVERGED
    assert "lr_duals (now 1e+09)" in solution.message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PublishedScheme(cases.view(3, 4, 3), Haim2022()), "task must be binary for the recipe haim2022"),
        (
            lambda: PublishedScheme(cases.view(3, 4, 3), Buzaglo2023()),
            "candidates must be a multiple of 3, got 1000",
        ),
        (
            lambda: PublishedScheme(cases.view(3, 4, 1, task=Regression()), Buzaglo2023()),
            "dual_weight must be 0 for regression:l2, whose duals have either sign, got 5.0",
        ),
    ],
)
def test_settings_that_do_not_fit_the_task_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_every_known_setting_fits_a_task() -> None:
    tasks: dict[str, Task] = {"multiclass": Multiclass(10), "regression": Regression()}
    for name, settings in KNOWN_SETTINGS.items():
        task = tasks.get(name.removesuffix("-b"), Binary())
        attack = PublishedScheme(cases.view(3, 4, task.outputs, task=task), settings)
        assert attack.recipe == ("haim2022" if task == Binary() else "buzaglo2023")


def test_candidates_keep_their_pair_duals_when_saved_and_selected(tmp_path: Path) -> None:
    pairs = torch.tensor([[0.0, 1.0, 2.0], [0.25, 0.0, 0.25], [-4.0, 0.0, 0.0]])
    found = Reconstruction(torch.arange(3.0)[:, None], pairs.sum(1), torch.tensor([0, 1, 2]), pair_duals=pairs)
    found.save(tmp_path / "r.safetensors")
    again = Reconstruction.load(tmp_path / "r.safetensors")
    assert again.pair_duals is not None
    assert torch.equal(again.pair_duals, pairs)
    kept = again.pruned(1.0)
    assert kept.labels.tolist() == [0, 2], "only the size of a dual matters, not its sign"
    assert kept.pair_duals is not None
    assert torch.equal(kept.pair_duals, pairs[[0, 2]])
    assert kept.scores is None
