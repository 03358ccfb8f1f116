"""Settings that the authors' searches ended with, by data set (500 training images, 1,000 candidates)."""

from __future__ import annotations

from engram.reconstruct.published.scheme import Haim2022

KNOWN_SETTINGS = {
    "cifar10": Haim2022(),
    "cifar10-b": Haim2022(lr_images=0.346, image_std=4.47e-3, dual_floor=0.494, relu_slope=21.7),
    "mnist": Haim2022(lr_images=0.0305, image_std=0.0350, dual_floor=0.447, relu_slope=149.9),
    "mnist-b": Haim2022(lr_images=0.282, image_std=1.74e-3, dual_floor=0.415, relu_slope=19.2),
}
