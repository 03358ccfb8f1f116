"""Heads on embeddings, audited from images: what the head sees is attacked; pictures only illustrate it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from engram.attacks.inversion import pictures_of
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.settings import EngineSettings
from engram.auditing.record import AuditRecord
from engram.auditing.run import audit, illustrated
from engram.core.errors import ConfigError
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary
from engram.pipeline import compare
from engram.training.recipe import MLPSpec, Recipe
from engram.training.target import train
from tests.auditing.cases import faces

QUICK = EngineSettings(restarts=1, steps=40)


@cache
def backbone() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, 2), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(6, 12, 3, 2), nn.Tanh(), nn.Flatten()
    )


def frozen(images: Tensor) -> Tensor:
    """What the backbone gives outside training."""
    copy = nn.Sequential(*(part for part in backbone().children() if not isinstance(part, nn.Dropout)))
    with torch.no_grad():
        found: Tensor = copy(images)
    return found


@cache
def head() -> DenseNetwork:
    """A head that has memorised the embeddings of 20 faces."""
    own = faces(0)
    inputs = frozen(own.images)
    recipe = Recipe(lr=0.05, epochs=1000)
    return train(MLPSpec(inputs=inputs.shape[1], widths=(300, 100)), recipe, Binary(), inputs, own.labels)[0]


@cache
def audited() -> AuditRecord:
    return audit(head(), train=faces(0), held_out=faces(20), embed=backbone(), settings=QUICK, baselines="none")


def test_the_embeddings_are_attacked_and_asked() -> None:
    record = audited()
    assert backbone().training  # as it was before
    assert record.comparison is not None
    assert torch.equal(record.comparison.data.train.images, frozen(faces(0).images))
    given = [(frozen(faces(start).images), faces(start).labels) for start in (0, 20)]
    same = audit(
        head(),
        input_shape=(frozen(faces(0).images).shape[1],),
        train=given[0],
        held_out=given[1],
        mean=torch.zeros(frozen(faces(0).images).shape[1]),
        settings=QUICK,
        baselines="none",
    )
    assert torch.equal(record.blind.found.images, same.blind.found.images)
    assert same.comparison is not None
    assert record.comparison.count == same.comparison.count
    assert record.comparison.membership is not None
    assert record.comparison.membership["combined"].roc.auc > 0.9
    assert same.illustration is None


def test_pictures_are_marked_as_an_illustration_with_their_control() -> None:
    """Of ten embeddings that came back whole; whether the attack brings them is another test's question."""
    record = audited()
    assert record.comparison is not None
    data = record.comparison.data
    found = Reconstruction(data.train.images[:10] - data.mean, torch.ones(10), data.train.labels[:10])
    back = replace(record.comparison, score=compare(found, data))
    assert back.count.train >= 10
    shown = illustrated(backbone(), faces(0).images, faces(20).images, back)
    assert shown is not None
    assert backbone().training
    assert shown.made.shape == shown.held_out_made.shape == (8, 1, 25, 25)
    assert all(any(torch.equal(one, image) for image in faces(0).images[:10]) for one in shown.records)
    assert all(any(torch.equal(one, image) for image in faces(20).images) for one in shown.held_out)
    page = replace(record, comparison=back, illustration=shown).to_html()
    assert page.index("An illustration, not a measurement") < page.rindex("The control of the illustration")
    nothing = replace(back, score=compare(replace(found, images=torch.zeros_like(found.images)), data))
    assert nothing.count.train == 0
    assert illustrated(backbone(), faces(0).images, faces(20).images, nothing) is None


def test_a_picture_has_the_embedding_it_was_made_from() -> None:
    quiet = nn.Sequential(*(part for part in backbone().children() if not isinstance(part, nn.Dropout)))
    images = faces(0).images[:3]
    wanted = frozen(images)
    made = pictures_of(quiet, wanted, (1, 25, 25), steps=150)
    gray = frozen(torch.full_like(images, 0.5))
    after, before = ((one - wanted).norm(dim=1) for one in (frozen(made), gray))
    assert bool((after < 0.5 * before).all())
    assert bool(((made >= 0) & (made <= 1)).all())


def test_a_plain_function_embeds_without_pictures() -> None:
    few = EngineSettings(restarts=1, steps=5)
    record = audit(head(), train=faces(0), embed=lambda x: frozen(x).numpy(), settings=few, baselines="none")
    assert record.illustration is None
    assert record.comparison is not None
    assert torch.equal(record.comparison.data.train.images, frozen(faces(0).images))


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="embed has no effect without train"):
        audit(head(), embed=backbone())
    with pytest.raises(ConfigError, match="embed must give one embedding per image"):
        audit(head(), train=faces(0), embed=lambda images: images[:1])
