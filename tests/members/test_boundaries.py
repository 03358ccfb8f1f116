"""The fully-connected part: the whole of a plain network, the head of one with convolutions."""

from __future__ import annotations

import pytest
import torch

from engram.auditing.inspect import describe, examine
from engram.auditing.verdict import judge
from engram.core.errors import ConfigError
from engram.members.kkt import ON_BOUNDARY, boundaries, dense_part, membership_tests
from engram.members.membership import margin_of
from engram.members.pool import Pool
from engram.members.scores import score_layers
from engram.models.networks import Network
from engram.models.open.modules import as_module
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.training.recipe import ConvSpec, Recipe
from engram.training.target import train
from tests.cases import points, view
from tests.conv_cases import LABELS, SHAPE, drawn, faces, written


def test_the_dense_part_of_a_plain_network_is_the_network() -> None:
    whole, (inputs, _) = view(12, 9, 1, shape=(3, 2, 2)), points(5, 12)
    part = dense_part(whole)
    assert part.view.network is whole.network
    assert torch.equal(part.entering(inputs.view(5, 3, 2, 2)), inputs)
    assert torch.equal(part.boundaries(inputs), boundaries(whole.network, inputs))


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_the_dense_part_after_convolutions_reads_features_at_any_scale(factor: float) -> None:
    """The outputs match the network's, and larger features get a larger width."""
    made = drawn("conv3x4s2 relu flatten 20 relu 1")
    params = {
        name: value * factor if name.startswith("layers.0") else value for name, value in made.params.items()
    }
    scaled: AttackerView[Network] = AttackerView(made.with_params(params), SHAPE, Binary())
    part = dense_part(scaled)
    images = faces(0) - 0.5
    entering = part.entering(images)
    torch.testing.assert_close(part.view.network(entering), scaled.network(images.double()))
    plain = dense_part(AttackerView(made, SHAPE, Binary()))
    assert torch.equal(part.boundaries(entering), plain.boundaries(plain.entering(images)))
    assert plain.width != ON_BOUNDARY
    assert part.entering(images[:0]).shape == (0, 100)


def test_members_of_a_trained_network_are_identified_by_features() -> None:
    images, n = faces(0, 36), 12
    labels, inputs = torch.arange(36) % 2, images - images[:n].mean(0)
    spec = ConvSpec(input_shape=SHAPE, layers="conv3x4s2 relu flatten 60 relu 1", first_layer_std=None)
    recipe = Recipe(lr=1.0, epochs=3000, weight_decay=2e-3)
    network, _ = train(spec, recipe, Binary(), inputs[:n], labels[:n])
    part = dense_part(AttackerView(network, SHAPE, Binary()))
    own, others = part.entering(inputs[:n]), part.entering(inputs[n:])
    pool = Pool.of((inputs[:n], labels[:n]), (inputs[n:], labels[n:]))
    layers = score_layers(as_module(network), pool, margin_of(Binary())).scores
    found = membership_tests(
        part.view, (own, labels[:n]), (others, labels[n:]), list(layers.values()), width=part.width
    )
    assert found["combined"].roc.p_value < 0.001
    assert found["boundaries"].train.mean() > 5 * found["boundaries"].held_out.mean()


def test_examine_and_judge_the_layer_that_reads_features() -> None:
    whole: AttackerView[Network] = AttackerView(written(), SHAPE, Binary())
    description, part = describe(whole), dense_part(whole)
    own = examine(part, description.space, faces(0), LABELS, faces(0).mean(0))
    assert [gap.name for gap in own.kkt.layers] == ["layers.1", "layers.2"]
    assert own.ceiling.ssim is None
    assert own.ceiling.ncc is None, "the NCC of features says nothing about the image"
    verdict = judge(description, own)
    assert verdict.in_reach
    assert "explain" in verdict.sentence
    other = examine(part, description.space, faces(50), LABELS, faces(0).mean(0))
    assert float(own.ceiling.share.median()) > 0.99 > float(other.ceiling.share.max()), "features in the row space"
    assert "Out of reach of this attack: the samples' gradients explain only" in judge(description, other).sentence
    with pytest.raises(ConfigError, match="must have the model's input shape 1x12x12, got '1x6x6'"):
        examine(part, description.space, faces(0)[:, :, ::2, ::2], LABELS, torch.zeros(1, 6, 6))


def test_layers_without_a_dense_part_are_refused() -> None:
    with pytest.raises(ConfigError, match="no fully-connected part"):
        dense_part(AttackerView(drawn("conv3x3 relu flatten 5 5 relu 1"), SHAPE, Binary()))
