"""A normalisation or an activation that was read wrongly is noticed, and the message says what to try."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.checkpoints import CASES, N, mlp, trained
from torch import Tensor, nn
from typer.testing import CliRunner

import engram
from engram.auditing.preprocessing import Preprocessing, chosen_preprocessing, doubts, weight_evidence
from engram.auditing.verdict import AuditVerdict
from engram.cli.app import app
from engram.core.errors import ConfigError
from engram.data.choice import DataChoice
from engram.members.matched_filter import RIDGES
from engram.models.networks import DenseNetwork, Network
from engram.models.open.door import open_view
from engram.models.open.modules import as_module
from engram.models.tasks import Binary
from engram.models.view import AttackerView

SHAPE = (1, 25, 25)
DATA = DataChoice(name="faces", labels="gate", n=N).load()


def prepared(kind: str) -> Callable[[Tensor], Tensor]:
    mean = DATA.train.images.mean(0)
    return {
        "train": lambda pixels: pixels - mean,
        "zero": lambda pixels: pixels,
        "half": lambda pixels: (pixels - 0.5) / 0.5,
        "bytes": lambda pixels: 255 * pixels,
    }[kind]


def chosen(view: AttackerView[Network], normalize: str | None = None) -> Preprocessing:
    known = None if normalize is None else view.normalization
    module = as_module(view.network)
    return chosen_preprocessing(module, view.task, DATA.train, DATA.held_out, "auto", known, view=view)


@pytest.mark.parametrize("kind", ["train", "zero"])
def test_a_mean_that_was_subtracted_is_found_without_a_doubt(kind: str) -> None:
    model = trained(mlp(), prepared(kind))
    view = open_view(dict(model.state_dict()), input_shape=SHAPE)
    found = chosen(view)
    assert found.name == kind
    assert found.likelier is None
    assert doubts(view, found, DATA.train) == ()


@pytest.mark.parametrize("start", ["standard", "small"])
def test_a_normalisation_that_is_missing_is_named(start: str) -> None:
    """Accuracy is 100 % either way: only the spread of the margins tells."""
    model = mlp()
    if start == "small":
        with torch.no_grad():
            next(model.parameters()).mul_(0.01)
    view = open_view(dict(trained(model, prepared("half")).state_dict()), input_shape=SHAPE)
    found = chosen(view)
    assert found.accuracy > 0.95
    assert found.likelier is not None
    assert "--normalize" in doubts(view, found, DATA.train)[0]
    right = open_view(dict(model.state_dict()), input_shape=SHAPE, normalize="half")
    assert doubts(right, chosen(right, "half"), DATA.train) == ()


@pytest.mark.parametrize(("name", "module"), [("tanh", nn.Tanh), ("gelu", nn.GELU)])
def test_an_activation_that_was_assumed_wrongly_is_named(name: str, module: type[nn.Module]) -> None:
    model = trained(mlp(module), prepared("train"))
    view = open_view(dict(model.state_dict()), input_shape=SHAPE)
    (doubt,) = doubts(view, replace(chosen(view), likelier=None), DATA.train)
    assert "the weights do not fit ReLU" in doubt
    assert name in doubt.partition("--activation: ")[2]
    right = open_view(dict(model.state_dict()), input_shape=SHAPE, activation=name)
    assert doubts(right, replace(chosen(right), likelier=None), DATA.train) == ()


def test_a_model_that_was_not_trained_on_the_records_is_not_doubted() -> None:
    """Nothing fits it better: that it leaks nothing is the answer."""
    view = open_view(dict(mlp().state_dict()), input_shape=SHAPE)
    found = chosen(view)
    assert found.accuracy < 0.9
    assert doubts(view, found, DATA.train) == ()


def test_a_normalisation_that_is_wrong_is_noticed() -> None:
    model = trained(mlp(), prepared("half"))
    wrong = open_view(dict(model.state_dict()), input_shape=SHAPE, normalize="mnist")
    found = chosen(wrong, "mnist")
    assert found.gain is None
    assert found.likelier == "half"
    unneeded = open_view(dict(trained(mlp(), prepared("zero")).state_dict()), input_shape=SHAPE, normalize="half")
    assert chosen(unneeded, "half").likelier == "none"


def test_evidence_is_that_of_the_marginal_likelihood() -> None:
    """Against the density of the weights as one Gaussian vector, with its whole covariance."""
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(6, 4, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1, 0])
    signs = (2 * labels - 1).double()
    upper = torch.randn(1, 5, generator=generator, dtype=torch.float64)
    weight = 0.1 * torch.randn(5, 4, generator=generator, dtype=torch.float64)

    def gradients(first: Tensor) -> Tensor:
        leaf = first.clone().requires_grad_()
        margins = signs * DenseNetwork((leaf, upper), (None, None))(inputs)[:, 0]
        return torch.stack([torch.autograd.grad(one, leaf, retain_graph=True)[0].flatten() for one in margins])

    weight = weight + 2 * gradients(weight).sum(0).view(5, 4)
    vectors, flat = gradients(weight), weight.flatten()
    size, top, best = flat.numel(), float(torch.linalg.eigvalsh(vectors @ vectors.T)[-1]), -torch.inf
    for ridge in RIDGES:
        shape = torch.eye(size, dtype=torch.float64) + vectors.T @ vectors / (ridge * top)
        variance = float(flat @ torch.linalg.solve(shape, flat)) / size
        best = max(best, -(size * math.log(variance) + float(torch.linalg.slogdet(shape)[1])) / 2)
    expected = best + size * math.log(float(flat.square().mean())) / 2
    found = weight_evidence(DenseNetwork((weight, upper), (None, None)), Binary(), inputs, labels)
    assert expected > 5
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_mean_beside_a_normalisation_is_refused() -> None:
    view = open_view(dict(mlp().state_dict()), input_shape=SHAPE, normalize="half")
    with pytest.raises(ConfigError, match="--mean does nothing with --normalize"):
        chosen_preprocessing(
            as_module(view.network), view.task, DATA.train, DATA.held_out, "zero", view.normalization
        )


def test_a_verdict_in_doubt_leaks_only_if_its_numbers_say_so() -> None:
    found = AuditVerdict("no leak found", "Nothing.", 1.0, 0.4).doubted(["the mean is wrong"])
    assert found.outcome == "not enough evidence"
    assert found.sentence == "Not enough evidence. The mean is wrong. As the model was read: Nothing."
    assert not found.leaks
    assert AuditVerdict("leak found", "Much.", 0.0001, 0.4).doubted(["x"]).leaks
    assert AuditVerdict("leak found", "Much.", 0.0001, 0.4).doubted([]).outcome == "leak found"


@pytest.mark.parametrize("command", ["audit", "membership"])
def test_commands_say_what_to_try_and_then_it_works(command: str, tmp_path: Path) -> None:
    made = CASES["normalised"](tmp_path)
    shared = ["--data", "faces", "-n", str(N), "--labels", "gate", *made.options.split()]
    if command == "audit":
        shared += ["--budget", "2s", "--baselines", "none"]
    report = "report.json" if command == "audit" else "membership.json"
    first = CliRunner().invoke(
        app, [command, str(made.path), *shared, "--fail-on-leak", "-o", str(tmp_path / "first")]
    )
    assert first.exit_code in (3, 4)
    assert "Not enough evidence. The training records fit the model better" in first.output
    told = json.loads((tmp_path / "first" / report).read_text())
    assert (told["verdict"]["outcome"] if command == "audit" else told["outcome"]) == "not enough evidence"
    page = (tmp_path / "first" / "report.html").read_text()
    assert "not enough evidence" in page.lower()
    second = CliRunner().invoke(
        app, [command, str(made.path), *shared, "--normalize", "half", "-o", str(tmp_path / "second")]
    )
    assert second.exit_code == 0
    assert "Not enough evidence" not in second.output
    assert "Leak found" in second.output


def test_audit_from_python_takes_mean_and_std() -> None:
    model = trained(mlp(), prepared("half"))
    shared = {"train": DATA.train, "held_out": DATA.held_out, "seconds": 2.0, "baselines": "none"}
    wrong = engram.audit(dict(model.state_dict()), input_shape=SHAPE, **shared)  # type: ignore[arg-type]
    assert wrong.verdict.outcome == "not enough evidence"
    right = engram.audit(model, input_shape=SHAPE, mean=0.5, std=0.5, **shared)  # type: ignore[arg-type]
    assert right.verdict.outcome == "leak found"
    with pytest.raises(ConfigError, match="std needs a mean"):
        engram.audit(model, input_shape=SHAPE, std=0.5)
