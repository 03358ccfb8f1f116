"""The demo: a door's access classifier that has memorised the faces it admits."""

from __future__ import annotations

from engram.data.choice import DataChoice
from engram.reconstruct.engine.settings import EngineSettings
from engram.targets.recipe import Recipe
from engram.targets.spec import MLPSpec
from engram.task import Binary

TASK = Binary()
INPUT_SHAPE = (1, 25, 25)
DATA = DataChoice(name="faces", labels="gate", n=50)
NETWORK = MLPSpec(inputs=625, widths=(1000, 1000))
RECIPE = Recipe(lr=0.02, epochs=4000)
ATTACK = EngineSettings(restarts=4, steps=400)
BASELINES = "quick"
