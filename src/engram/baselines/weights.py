"""First-layer weights as images, Fig. 5 (b) of Haim et al. 2022."""

from __future__ import annotations

from torch import Tensor

from engram.attacker import AttackerView


def first_layer_images(view: AttackerView) -> Tensor:
    """Rows of W_1 in the shape of an input, those of largest norm first, [h, *shape]."""
    rows = view.network.weights[0]
    strongest = rows.norm(dim=1).argsort(descending=True, stable=True)
    return rows[strongest].view(-1, *view.input_shape)
