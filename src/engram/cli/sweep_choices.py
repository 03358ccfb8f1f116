"""From the options of `engram sweep` to what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engram.sweep.executors import Executor
    from engram.sweep.spec import SweepSpec


def chosen_spec(
    space: str, settings: list[str], trials: int, seed: int, sampler: str, keep: float, oracle: bool
) -> SweepSpec:
    from engram.errors import ConfigError
    from engram.extras import optional

    optuna = optional("optuna", wanted_by="engram sweep", install="'engram[sweep]'")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    from engram.sweep.recipes import RECIPES
    from engram.sweep.space import find_space
    from engram.sweep.spec import SweepSpec

    chosen = find_space(space)
    recipe = RECIPES[chosen.recipe]
    fixed = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set must be NAME=VALUE, got {setting!r}; for example --set steps=3000")
        fixed[name] = recipe.parse(name, text)
    return SweepSpec(
        space=chosen.fixing(fixed),
        trials=trials,
        seed=seed,
        sampler=sampler,
        keep=keep,
        objective="oracle" if oracle else "blind",
    )


def chosen_executor(
    jobs: int | None, ray: str | None, cpus: float | None, gpus: float | None, device: str
) -> Executor:
    from engram.cli.options import check_device
    from engram.errors import ConfigError

    if ray is not None and jobs is not None:
        raise ConfigError("--jobs does nothing with --ray, which fills the cluster; leave it out")
    if ray is not None:
        from engram.sweep.executors.ray_tasks import RayTasks

        return RayTasks(ray, cpus=cpus or 1.0, gpus=gpus or 0.0)
    if cpus is not None or gpus is not None:
        raise ConfigError("--cpus-per-trial and --gpus-per-trial do nothing without --ray; leave them out")
    check_device(device)
    if jobs == 0:
        from engram.sweep.executors.in_process import InProcess

        return InProcess()
    from engram.sweep.executors.processes import Processes

    return Processes(1 if jobs is None else jobs)


def chosen_models(models: list[Path]) -> list[Path]:
    """A pattern that the shell left alone (quoted, or on Windows) becomes its matches."""
    found: list[Path] = []
    for model in models:
        pattern = "*" in model.name and not model.exists()
        found += sorted(model.parent.glob(model.name)) if pattern else [model]
    return found
