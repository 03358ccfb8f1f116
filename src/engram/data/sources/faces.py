"""The offline default: 100 faces and 100 non-faces that scikit-image carries in its wheel."""

from __future__ import annotations

import torch

from engram.data.image_set import ImageSet


def load_faces() -> ImageSet:
    """Labelled Faces in the Wild, a subset: images [200, 1, 25, 25], label 0 = face, 1 = non-face."""
    from skimage.data import lfw_subset  # here, because it takes a second that no other source should pay

    pixels = lfw_subset()  # type: ignore[no-untyped-call]
    images = torch.tensor(pixels, dtype=torch.float32)[:, None]
    return ImageSet(images, torch.arange(len(images)) // 100, "faces", ("face", "non-face"))
