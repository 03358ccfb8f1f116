"""How sure an attacker can be of a candidate: agreement of restarts, raised by neuron boundaries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engram.attacks.reconstruction import Reconstruction
from engram.members.boundaries import DensePart

NULL_POINTS = 2000
BEYOND = 2
"""A candidate on more than twice as many boundaries as any of the random points is no random point."""
ON_BOUNDARIES = 0.99
"""The confidence of such a candidate: of held-out images none is on so many (docs/audit.md)."""
SURE, LIKELY = 0.9, 0.5


@dataclass(frozen=True, eq=False)
class BlindView:
    """Candidates with the confidence in their `scores`, the boundaries each lies on [m], and the most that chance
    gives: the largest count of random points in the row space with the candidates' own sizes."""

    found: Reconstruction
    boundaries: Tensor
    by_chance: int

    @property
    def sure(self) -> int:
        return self.found.count_above(SURE)

    @property
    def likely(self) -> int:
        return self.found.count_above(LIKELY)


def blind_view(part: DensePart, found: Reconstruction, basis: Tensor, *, seed: int = 0) -> BlindView:
    """Judge candidates without any data; `basis` [r, d] spans the row space of the part's first layer.

    Agreement alone where candidates are near their image but not on it; a candidate that lies exactly on many
    boundaries, where training alone pushes points, is raised to `ON_BOUNDARIES`. Sorted by confidence.
    """
    entering = part.entering(found.images)
    counts = part.boundaries(entering)
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(NULL_POINTS, len(basis), generator=generator, dtype=torch.float64) @ basis.double()
    sizes = entering.norm(dim=1)[torch.randint(len(entering), (NULL_POINTS,), generator=generator)]
    points *= (sizes / points.norm(dim=1).clamp(min=1e-12))[:, None]
    by_chance = int(part.boundaries(points).max())
    scores = found.scores
    if scores is not None:
        on_many = counts > BEYOND * max(by_chance, 1)
        raised = scores.nan_to_num(nan=0.0).clamp(min=ON_BOUNDARIES)
        scores = torch.where(on_many, raised.to(scores), scores)
        order = scores.nan_to_num(nan=-1.0).argsort(descending=True, stable=True)
        found, counts = replace(found, scores=scores).take(order), counts[order]
    return BlindView(found, counts, by_chance)
