"""Small targets for audits: one that memorised the given faces, one that memorised others."""

from __future__ import annotations

from functools import cache

from engram.attacks.settings import EngineSettings
from engram.auditing.record import AuditRecord
from engram.auditing.run import audit
from engram.data.choice import apply_labels
from engram.data.readers import load_faces
from engram.data.sets import ImageSet
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary
from engram.training.recipe import MLPSpec, Recipe
from engram.training.target import train

SHAPE = (1, 25, 25)
QUICK = EngineSettings(restarts=2, steps=60, prior=1.6)


@cache
def faces(start: int, count: int = 20) -> ImageSet:
    everything = apply_labels(load_faces(), "gate")
    return ImageSet(
        everything.images[start : start + count],
        everything.labels[start : start + count],
        f"faces {start} to {start + count}",
        everything.classes,
    )


@cache
def memorising(start: int = 0) -> DenseNetwork:
    """A network that has memorised 20 faces."""
    own = faces(start)
    inputs = own.images - own.images.mean(0)
    recipe = Recipe(lr=0.02, epochs=1000)
    return train(MLPSpec(inputs=625, widths=(300, 100)), recipe, Binary(), inputs, own.labels)[0]


@cache
def leaking() -> AuditRecord:
    return audit(memorising(), input_shape=SHAPE, train=faces(0), held_out=faces(20), settings=QUICK)


@cache
def innocent() -> AuditRecord:
    """The same audit of a network trained on other faces."""
    network = memorising(40)
    return audit(network, input_shape=SHAPE, train=faces(0), held_out=faces(20), settings=QUICK, baselines="none")
