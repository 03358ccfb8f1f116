"""Trained targets kept by content: what would come out the same is never trained twice.

An entry is a directory named by the hash of all that decides the outcome. `entry.json` is written last and holds
the digests of the others, so that a half-written or damaged entry is no entry.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from engram.core import files
from engram.core.errors import EngramError
from engram.data.choice import DataChoice
from engram.data.sets import Split
from engram.models.networks import Network
from engram.models.tasks.base import Task
from engram.training.recipe import Recipe
from engram.training.spec import ConvSpec, MLPSpec
from engram.training.target import CARD_FILE, Target, open_target, save_target

TRAINING_VERSION = 1  # raise it when a change of the code changes what training gives
ENTRY_FILE = "entry.json"


def cache_root() -> Path:
    """ENGRAM_CACHE, else ~/.cache/engram."""
    return Path(os.environ.get("ENGRAM_CACHE") or "~/.cache/engram").expanduser() / "targets"


def content_key(spec: MLPSpec | ConvSpec, recipe: Recipe, task: Task, choice: DataChoice, data: Split) -> str:
    """SHA-256 of network, recipe, task, choice and content of the data, and version of the training code."""
    settings = [asdict(spec), recipe.settings(), task.name, asdict(choice), TRAINING_VERSION]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for images in (data.train, data.held_out):
        digest.update(images.images.contiguous().numpy().tobytes())
        digest.update(images.labels.numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class TargetCache:
    """Targets under `root`, by key."""

    root: Path

    def find(self, key: str) -> Target[Network] | None:
        """The target of that key if it is there and whole."""
        place = self.root / key
        if not (place / ENTRY_FILE).exists():
            return None
        try:
            entry = files.read_json(place / ENTRY_FILE)
            target = open_target(place)
            return target if entry == _digests(place, target) else None
        except EngramError:  # damaged: it is trained and written again
            return None

    def keep(self, key: str, target: Target[Network]) -> None:
        place = self.root / key
        assert target.card is not None
        save_target(place, target.network, target.card)
        files.write_json(place / ENTRY_FILE, _digests(place, target))


def _digests(place: Path, target: Target[Network]) -> dict[str, str]:
    card = hashlib.sha256((place / CARD_FILE).read_bytes()).hexdigest()
    return {"weights": target.network.digest(), "card": card}
