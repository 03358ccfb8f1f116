"""The audit's verdict: leaking models leak, innocent ones do not, and wrong inputs are named."""

from __future__ import annotations

import csv
import io
import json

import pytest
import torch
from torch import nn

import engram
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.settings import EngineSettings
from engram.auditing.comparison import ON_BOUNDARIES, blind_view
from engram.auditing.record import AuditRecord
from engram.auditing.run import audit
from engram.core.errors import ConfigError, DataError, UnsupportedModelError
from engram.members.kkt import dense_part
from engram.scoring.curves import reliability
from engram.scoring.metrics import ncc
from tests.auditing.cases import QUICK, SHAPE, faces, innocent, leaking, memorising
from tests.cases import network
from tests.schemas import problems

FEW_STEPS = EngineSettings(restarts=2, steps=10, prior=1.6)


def test_a_network_that_memorised_the_faces_leaks() -> None:
    record = leaking()
    assert record.verdict.outcome == "leak found"
    assert record.verdict.leaks
    assert record.comparison is not None
    row = record.comparison.count
    assert row.train >= 8
    assert row.held_out == 0
    assert f"{row.train} of 20 training records were recovered" in record.verdict.sentence
    assert record.comparison.roc is not None
    assert record.comparison.roc.at(0) >= 0.4


def test_a_network_that_never_saw_the_faces_does_not_leak() -> None:
    record = innocent()
    assert record.verdict.outcome == "no leak found"
    assert "not a proof of safety" in record.verdict.sentence
    assert record.verdict.p_membership is not None
    assert record.verdict.p_membership > 0.005


def test_an_untrained_network_is_not_suspected_in_blind_mode() -> None:
    untrained = network(625, 100, 30, 1, dtype=torch.float32)
    record = audit(untrained, input_shape=SHAPE, settings=QUICK, baselines="none")
    assert record.mode == "blind"
    assert record.verdict.outcome == "no leak found"
    assert "no direction of the first layer" in record.verdict.sentence
    assert "not a proof of safety" in record.verdict.sentence
    assert problems("report", record.to_json()) == []


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.SiLU])
def test_a_smooth_network_is_not_judged_by_a_confidence_that_was_never_fitted_to_it(
    activation: type[nn.Module],
) -> None:
    """It knows the faces, but what its candidates show can't be told without them."""
    torch.manual_seed(0)
    own = faces(0)
    module = nn.Sequential(nn.Linear(625, 60), activation(), nn.Linear(60, 1))
    adam = torch.optim.Adam(module.parameters(), 1e-3)
    inputs, signs = (own.images - own.images.mean(0)).flatten(1), 2.0 * own.labels - 1
    for _ in range(100):
        adam.zero_grad()
        nn.functional.softplus(-signs * module(inputs)[:, 0]).mean().backward()  # type: ignore[no-untyped-call]
        adam.step()
    record = audit(module, input_shape=SHAPE, settings=FEW_STEPS, baselines="none")
    assert record.verdict.outcome == "not enough evidence"
    assert "smooth activation" in record.verdict.sentence
    assert "give your training data" in record.verdict.sentence
    assert not record.verdict.leaks
    assert problems("report", record.to_json()) == []
    assert engram.Policy(confident_candidates=0).decide(record).outcome == "not enough evidence"
    measured = audit(
        module, input_shape=SHAPE, train=own, held_out=faces(20), settings=FEW_STEPS, baselines="none"
    )
    assert measured.verdict.outcome != "not enough evidence", "with data it is measured"


def test_a_module_gives_the_same_record_as_its_weights() -> None:
    weights = memorising()
    layers = [nn.Linear(625, 300), nn.Linear(300, 100, bias=False), nn.Linear(100, 1, bias=False)]
    module = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    for layer, weight in zip(layers, weights.weights, strict=True):
        layer.weight.data.copy_(weight)
    assert weights.biases[0] is not None
    layers[0].bias.data.copy_(weights.biases[0])
    own = faces(0)
    record = engram.audit(
        module,
        input_shape=SHAPE,
        train=(own.images, own.labels),
        held_out=faces(20),
        settings=QUICK,
        baselines="none",
    )
    assert torch.equal(record.blind.found.images, leaking().blind.found.images)
    assert record.verdict.sentence == leaking().verdict.sentence
    assert record.risk_csv() == leaking().risk_csv()


def test_the_json_and_the_table_agree_with_the_record() -> None:
    record = leaking()
    read = json.loads(json.dumps(record.to_json(), allow_nan=False))
    assert read["schema_version"] == 2
    assert problems("report", read) == []
    damage: list[dict[str, object]] = [{"mode": "blind"}, {"candidates": None}, {"verdict": {}}, {"kind": "x"}]
    for wrong in damage:
        assert problems("report", {**read, **wrong}), wrong
    assert read["verdict"]["sentence"] == record.verdict.sentence
    assert read["candidates"]["count"] == len(record.blind.found) == len(read["candidates"]["confidence"])
    assert [one["name"] for one in read["baselines"]] == ["model inversion", "first-layer weights"]
    assert read["comparison"]["membership"]["tests"]["combined"]["tpr_at_fpr"].keys() == {"0", "0.001", "0.01"}
    rows = list(csv.DictReader(io.StringIO(record.risk_csv())))
    assert sorted(int(row["index"]) for row in rows) == list(range(20))
    recovered = [row["recovered"] == "True" for row in rows]
    assert recovered == sorted(recovered, reverse=True), "highest risk first"
    assert sum(recovered) == read["comparison"]["scores"]["counts"]["ncc>0.8"]["train"]
    assert all(float(row["ceiling_ssim"]) <= 1 for row in rows)
    assert record.timeline[-1].step == record.attack.steps


def test_the_confidence_is_checked_against_the_data() -> None:
    """On candidates whose precision is known: training images, and noise."""
    own = faces(0)
    inputs = own.images - own.images.mean(0)
    noise = torch.randn(20, *SHAPE, generator=torch.Generator().manual_seed(0))
    scores = torch.cat([torch.full((20,), 0.95), torch.full((20,), 0.05)])
    found = Reconstruction(torch.cat([inputs, noise]), torch.ones(40), torch.zeros(40).long(), scores)
    checked = reliability(found, inputs, None)
    assert checked is not None
    assert [(one.candidates, one.observed) for one in checked.bins] == [(20, 0.0), (20, 1.0)]
    assert [(one.k, one.train) for one in checked.precision] == [(10, 1.0), (20, 1.0), (40, 0.5)]


def test_a_candidate_on_many_boundaries_gets_a_high_confidence() -> None:
    """The training images themselves, offered as candidates that no restart agrees on."""
    view, own = leaking().view, faces(0)
    images = torch.cat([own.images - own.images.mean(0), faces(20).images - own.images.mean(0)])
    offered = Reconstruction(images, torch.ones(40), torch.zeros(40).long(), torch.full((40,), 0.1))
    found = blind_view(dense_part(view), offered, leaking().description.space.basis)
    assert found.found.scores is not None
    believed = found.found.scores >= ON_BOUNDARIES - 1e-6
    real = ncc(found.found.images, images[:20]).amax(1) > 0.999
    assert int((believed & real).sum()) >= 5
    assert int((believed & ~real).sum()) == 0, "no held-out image lies on that many"


def test_without_a_control_nothing_is_more_than_suspected() -> None:
    record = audit(memorising(), input_shape=SHAPE, train=faces(0), settings=QUICK, baselines="none")
    assert record.verdict.outcome == "leak suspected"
    assert "without held-out records" in record.verdict.sentence
    assert record.comparison is not None
    assert record.comparison.roc is None
    assert problems("report", record.to_json()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_shape": (3, 25, 25)}, "input shape 3x25x25 has 1,875 values, but the first layer takes 625"),
        ({"input_shape": None}, "does not specify the shape of its inputs"),
        ({"train": (torch.zeros(4, 1, 5, 5), torch.zeros(4))}, "train must have the model's input shape 1x25x25"),
        ({"train": (torch.zeros(4, *SHAPE), torch.full((4,), 2))}, "train: labels must lie in 0..1"),
        (
            {"held_out": (torch.zeros(0, *SHAPE), torch.zeros(0))},
            "held_out must contain at least one record, got 0",
        ),
        ({"held_out": "same"}, "held_out must contain no training record: it is the control, got '20 that are"),
        ({"train": None}, "held_out and mean have no effect without train"),
        ({"baselines": "some"}, "baselines must be one of none, quick, full, got 'some'"),
        ({"mean": torch.zeros(3)}, "mean must have the model's input shape 1x25x25"),
    ],
)
def test_wrong_inputs_are_named(change: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"input_shape": SHAPE, "train": faces(0), "held_out": faces(20), **change}
    if given["held_out"] == "same":
        given["held_out"] = given["train"]
    with pytest.raises((ConfigError, UnsupportedModelError, DataError)) as caught:
        audit(network(625, 20, 1, dtype=torch.float32), **given)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_notebooks_show_the_verdict_and_the_gallery() -> None:
    shown = leaking()._repr_html_()
    assert "Leak found: " in shown
    assert shown.count("data:image/png;base64,") == 40, "20 pairs"
    assert "<script" not in shown
    assert isinstance(leaking(), AuditRecord)


def test_several_classes_are_audited_too() -> None:
    """What is defined only for two classes is left out, the rest is there."""
    images = faces(0).images
    labels = torch.arange(20) % 4
    given = {"train": (images[:12], labels[:12]), "held_out": (images[12:], labels[12:])}
    made = network(625, 40, 4, dtype=torch.float32)
    record = audit(made, input_shape=SHAPE, settings=QUICK, baselines="quick", **given)  # type: ignore[arg-type]
    assert record.comparison is not None
    assert record.comparison.examination is None
    assert record.comparison.membership is not None
    assert len(record.comparison.membership.tests) == 5
    read = json.loads(json.dumps(record.to_json(), allow_nan=False))
    assert read["model"]["task"] == "multiclass", "as it was given"
    assert problems("report", read) == []
    assert read["comparison"]["risks"][0]["margin"] is None
    assert "Which records leak" in record.to_html()


def test_vectors_have_no_gallery() -> None:
    made = network(12, 30, 1, dtype=torch.float32)
    values = torch.rand(8, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(8) % 2
    record = audit(made, input_shape=(12,), train=(values[:4], labels[:4]), held_out=(values[4:], labels[4:]))
    assert record.verdict.outcome in ("no leak found", "leak suspected")
    assert problems("report", record.to_json()) == []
    text = record.to_html()
    assert "The inputs are not images" in text
    assert "data:image" not in text
