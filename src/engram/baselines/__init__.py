"""Baselines: what simpler ways of looking at the weights show, to stand beside the attack.

inversion   inputs that make the output as large or as small as can be
weights     rows of the first layer as images

Like every attack, they read an `AttackerView` alone.
"""

from engram.baselines.inversion import Inversion, InversionSettings, invert
from engram.baselines.weights import first_layer_images

__all__ = ["Inversion", "InversionSettings", "first_layer_images", "invert"]
