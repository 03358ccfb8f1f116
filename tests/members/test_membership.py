"""`engram.membership` on real trained models: members are identified, and nobody where nothing was learned."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.membership_text import MIXES, sentences
from torch import Tensor, nn

import engram
from engram.core.errors import ConfigError
from engram.data.choice import DataChoice
from engram.members.membership import SOFTNESS, MembershipRecord, margin_of, right_about
from engram.models.networks import ConvNetwork
from engram.models.open.modules import as_module
from engram.models.tasks import Binary, Multiclass, Regression
from tests.conv_cases import drawn

FACES = DataChoice(name="faces", labels="gate", n=50)


def records() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    data = FACES.load()
    return (data.train.images - data.mean, data.train.labels), (
        data.held_out.images - data.mean,
        data.held_out.labels,
    )


def dense() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(625, 200), nn.ReLU(), nn.Linear(200, 50), nn.ReLU(), nn.Linear(50, 1)
    )


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8 * 11 * 11, 64),
        nn.GELU(),
        nn.Linear(64, 2),
    )


def trained(make: Callable[[], nn.Sequential], epochs: int = 60) -> nn.Sequential:
    """An ordinary recipe: default start, biases, Adam, batches of 10."""
    torch.manual_seed(0)
    model = make().train()
    (inputs, labels), _ = records()
    adam = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for some in torch.randperm(len(inputs)).reshape(-1, 10):
            outputs = model(inputs[some])
            if outputs.shape[1] == 1:
                outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
            loss = nn.functional.cross_entropy(outputs, labels[some])
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
    return model


@pytest.fixture(scope="module")
def found() -> MembershipRecord:
    return engram.membership(trained(dense), *records())


def test_members_of_an_ordinary_model_are_identified(found: MembershipRecord) -> None:
    assert found.leaks
    assert found.roc.auc > 0.8
    assert found.roc.auc > found.margin_roc.auc
    assert found.sentence.startswith("Leak found: ")
    assert found.epsilon_lower > 0.3
    assert abs(sum(abs(test.weight) for test in found.tests) - 1) < 1e-9
    assert {(test.layer, test.test) for test in found.tests} == {
        (layer, test) for layer in ("1", "3", "5") for test in ("filter", "fit")
    }


def test_a_network_with_convolutions_batch_norm_and_dropout() -> None:
    model = trained(convolutional)
    found = engram.membership(model, *records(), batch=17)
    assert found.leaks
    assert found.layers_json().keys() == {"0", "5", "7"}
    assert model.training
    assert model[1].training


@pytest.mark.parametrize("make", [dense, convolutional])
def test_a_model_that_saw_neither_set_leaks_nothing(make: Callable[[], nn.Sequential]) -> None:
    found = engram.membership(trained(make, epochs=0), *records())
    assert not found.leaks
    assert 0.35 < found.roc.auc < 0.65
    assert found.epsilon_lower < 0.5
    assert found.sentence.startswith("No leak found")


@pytest.mark.parametrize("name", MIXES)
def test_a_text_classifier_gives_its_sentences_away(name: str) -> None:
    found = sentences(name)
    assert found.leaks
    assert found.roc.auc > 0.8
    assert {"embed", "head"} <= found.layers_json().keys()
    assert ("mix.layers.0.self_attn.in_proj" in found.layers_json()) == (name == "transformer")
    assert found.left_out == {}
    assert found.control.warnings == ()


def test_files_for_other_programs(found: MembershipRecord, tmp_path: Path) -> None:
    found.write(tmp_path / "run")
    rows = list(csv.DictReader((tmp_path / "run" / "membership.csv").read_text().splitlines()))
    assert list(rows[0]) == ["set", "index", "label", "score", "p_value"]
    assert [row["set"] for row in rows] == ["train"] * 50 + ["held-out"] * 50
    assert [float(row["score"]) for row in rows[:50]] == found.train.tolist()
    assert min(float(row["p_value"]) for row in rows) == 1 / 51
    record = json.loads((tmp_path / "run" / "membership.json").read_text())
    assert record["outcome"] == "leak found"
    assert record["pool"] == 100
    bounds = record["tpr_bounds"]["0"]
    assert bounds["low"] < record["tpr_at_fpr"]["0"] == bounds["rate"] <= bounds["high"]
    assert "too few to distinguish" in record["note"]


def test_what_an_answer_adds_is_told(found: MembershipRecord) -> None:
    assert found.answers is not None
    wrong, right = found.answers
    assert wrong < 0 < right
    assert found.to_json()["answers"] == {"wrong": wrong, "right": right}


def test_p_values_of_controls_are_uniform(found: MembershipRecord) -> None:
    _, controls = found.p_values()
    assert controls.sort().values.tolist() == pytest.approx([(rank + 1) / 50 for rank in range(50)])


def test_any_form_of_a_model_gives_the_same(found: MembershipRecord, tmp_path: Path) -> None:
    model = trained(dense)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    again = engram.membership(tmp_path / "model.pt", *records(), input_shape=(1, 25, 25))
    torch.testing.assert_close(again.train, found.train, rtol=1e-3, atol=1e-3)


def test_a_network_as_a_module_computes_the_same() -> None:
    network = drawn("conv3x3s2p1 relu avgpool2 conv2x4 relu flatten 7 relu 2", torch.float64)
    assert isinstance(network, ConvNetwork)
    inputs = torch.randn(3, *network.input_shape, dtype=torch.float64)
    torch.testing.assert_close(as_module(network)(inputs), network(inputs))


def test_a_margin_of_several_classes_has_a_softened_gradient() -> None:
    """Its value is the logit of the own label's probability; the other classes share the gradient more evenly."""
    outputs = torch.tensor([[2.0, 1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    margin = margin_of(Multiclass(3))(outputs, torch.tensor([0]))
    chance = torch.softmax(outputs, 1)[0, 0]
    torch.testing.assert_close(margin[0], (chance / (1 - chance)).log())
    (gradient,) = torch.autograd.grad(margin.sum(), outputs)
    others = torch.softmax(torch.tensor([1.0, -1.0], dtype=torch.float64) / SOFTNESS, 0)
    torch.testing.assert_close(gradient, torch.tensor([[1.0, *(-others)]], dtype=torch.float64))


def test_right_is_more_than_half_of_the_probability() -> None:
    margins = torch.tensor([0.1, -0.1])
    for task in (Binary(), Multiclass(3)):
        found = right_about(task, margins)
        assert found is not None
        assert found.tolist() == [True, False]
    assert right_about(Regression(), margins) is None


def test_what_can_not_be_asked_is_said() -> None:
    (inputs, labels), control = records()
    with pytest.raises(ConfigError, match=r"records must contain records, got 0"):
        engram.membership(dense(), (inputs[:0], labels[:0]), control)
    with pytest.raises(ConfigError, match=r"labels must be in 0..1 for a binary task, got 2"):
        engram.membership(dense(), (inputs, labels + 1), control)
    with pytest.raises(
        ConfigError, match=r"no layer of Sequential can be read: it has no Linear, Conv or Embedding layer"
    ):
        engram.membership(nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(2)), (inputs, labels), control)
