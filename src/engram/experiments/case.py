"""A case: one target and one attack on it, computed once and kept as a directory that appears whole.

    cases/KEY   finished; the key is made of all that decides the outcome
    work/KEY    begun: target and attack with their snapshots; gone when the case is finished

Experiments share cases; a killed case goes on where it was. Two processes may share a run: what one of them
computes, the other waits for or leaves for later.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from engram import files
from engram.errors import require
from engram.experiments.attacks import RECIPES, AttackName, plan_attack
from engram.experiments.computing import Means, compute
from engram.experiments.progress import Told
from engram.experiments.records import Finished, read_finished
from engram.experiments.scoring import Order
from engram.experiments.zoo import SCALES, Scale, plan

CASE_VERSION = 1  # raise it when a change of the code changes what a case holds


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cases of a run have in common."""

    scale: Scale = "cpu"
    recipe: AttackName = "engine"
    seed: int = 0
    means: Means = field(default_factory=Means)

    def __post_init__(self) -> None:
        require(self.scale in SCALES, "scale", f"must be one of {', '.join(SCALES)}", self.scale)
        require(self.recipe in RECIPES, "recipe", f"must be one of {', '.join(RECIPES)}", self.recipe)


@dataclass(frozen=True)
class Case:
    """A preset of the zoo under attack: by the recipe of the setting, or by one that the experiment is about."""

    preset: str
    attack: AttackName | None = None

    def order(self, setting: Setting) -> Order:
        """What is to be computed; its key names preset, attack and scale, and digests all that decides."""
        target = plan(self.preset, setting.scale, seed=setting.seed)
        attack = plan_attack(self.attack or setting.recipe, target, setting.scale, seed=setting.seed)
        trained = {**asdict(replace(target, cuts=())), "recipe": target.recipe.settings()}
        decisive = [trained, asdict(replace(attack, cuts=())), CASE_VERSION]
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
        return Order(
            key=f"{self.preset}.{attack.name}.{setting.scale}-{digest[:10]}",
            preset=self.preset,
            scale=setting.scale,
            seed=setting.seed,
            target=target,
            attack=attack,
        )


def find_case(order: Order, home: Path) -> Finished | None:
    """The case if it is finished."""
    return read_finished(home / "cases" / order.key)


def run_case(order: Order, means: Means, home: Path, *, told: Told, wait: bool = True) -> Finished | None:
    """The case from its directory, or computed, going on with what a killed process left.

    None without `wait` if another process is computing it.
    """
    work = home / "work" / order.key
    work.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(work.with_name(f"{order.key}.lock"), wait=wait) as own:
        if not own:
            return None
        if (kept := find_case(order, home)) is not None:
            return kept
        finished = compute(order, means, work, told=told)
        files.write_directory(home / "cases" / order.key, finished.contents())
        shutil.rmtree(work, ignore_errors=True)
    return finished
