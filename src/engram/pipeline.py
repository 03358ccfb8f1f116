"""READ FIRST. The whole flow, one call per stage:

    build_target   data -> trained network              (the owner's side; skipped for an existing model)
    open_view      model -> AttackerView                (weights, input shape, task; no data past this point)
    make_attack    AttackerView -> Attack               (engine, haim2022 or buzaglo2023)
    attack         Attack -> Reconstruction             (candidates, duals, labels)
    compare        Reconstruction + data -> ScoreReport (what was recovered, with its null counts)

Each stage takes built objects and returns a value. With a `directory` it also writes files, so that a killed run
can be resumed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from engram.attacks.reconstruction import Attack, Reconstruction
from engram.core import files
from engram.core.errors import ConfigError, require_jobs
from engram.core.loop import BAD_STATE, Budget, Observer, Snapshots, Solution, StopReason, run
from engram.core.processes import Elsewhere, in_processes, sharing_threads
from engram.core.runs import MetricsLog, RunDirectory, require_free, versions
from engram.data.choice import DataChoice
from engram.data.sets import ImageSet, Split, centred
from engram.models.networks import ConvNetwork, N, Network
from engram.models.tasks import Task
from engram.scoring.match import Assignment
from engram.scoring.protocols import Buzaglo2023Protocol, ScoringProtocol, VectorProtocol
from engram.scoring.report import ScoreReport, evaluate
from engram.training.recipe import ConvSpec, MLPSpec, Recipe, Spec
from engram.training.target import (
    Card,
    Quality,
    Target,
    TargetCache,
    content_key,
    measure,
    require_classes,
    save_target,
    train,
)

CONVOLUTIONAL_B = 1.5
"""For convolutional networks, the 2023 paper averages candidates within this multiple of the nearest distance."""


def build_target(
    choice: DataChoice,
    spec: Spec[N],
    recipe: Recipe,
    task: Task,
    *,
    root: Path | None = None,
    directory: Path | None = None,
    device: str = "cpu",
    resume: bool = False,
    snapshot_every: float = 20.0,
    observers: Sequence[Observer] = (),
    cache: TargetCache | None = None,
    data: Split | None = None,
) -> Target[N]:
    """Train a network on the chosen images and measure it on images that it never saw, or take it from the cache.

    `data` is what `choice` loads, for callers that have loaded it already.
    """
    data = data or choice.load(root)
    require_classes(data.train.classes, task)
    described = cast("MLPSpec | ConvSpec", spec)  # a Spec is one of these two
    key = None if cache is None else content_key(described, recipe, task, choice, data)
    if cache is not None and key is not None and (kept := cache.find(key)) is not None:
        if directory is not None and kept.card is not None:
            _prepared(directory, resume, snapshot_every)
            save_target(directory, kept.network, kept.card)
        return cast("Target[N]", kept)  # the key includes the kind of network
    observed, snapshots = list(observers), None
    if directory is not None:
        snapshots = _prepared(directory, resume, snapshot_every)
        # a flow typically takes a hundredth of its epochs, so its limit of a million is no guide
        every = 10 if recipe.flow is not None else max(1, recipe.epochs // 1000)
        observed.append(MetricsLog(RunDirectory(directory).metrics, every=every))
    network, solution = train(
        spec,
        recipe,
        task,
        centred(data.train.images, data.mean),
        data.train.labels,
        device=device,
        snapshots=snapshots,
        resume=resume,
        observers=observed,
    )
    solution.require_finite()
    network = network.to(device="cpu")
    test = choice.load_test(root)

    def quality(images: ImageSet | None) -> Quality | None:
        if images is None or not len(images):
            return None
        return measure(network, task, centred(images.images, data.mean), images.labels)

    trained = quality(data.train)
    assert trained is not None
    card = Card(
        network=described,
        task=task.name,
        input_shape=data.train.shape,
        recipe=recipe,
        data=choice,
        epochs=solution.steps,
        stopped=solution.reason.value,
        seconds=solution.seconds,
        train=trained,
        held_out=quality(data.held_out),
        test=quality(test),
        test_images=0 if test is None else len(test),
        versions=versions(),
    )
    if directory is not None:
        save_target(directory, network, card)
    target = Target(network, card)
    if cache is not None and key is not None:
        cache.keep(key, target)
    return target


def attack(
    chosen: Attack,
    *,
    seconds: float | None = None,
    directory: Path | None = None,
    model: str = "",
    resume: bool = False,
    snapshot_every: float = 20.0,
    observers: Sequence[Observer] = (),
    elsewhere: Elsewhere | None = None,
) -> tuple[Reconstruction, Solution]:
    """Reconstruct training images from the attack's view alone. `model` is only the name for run.json.

    What an attack leaves to other processes (`Attack.others`) runs `elsewhere`: by default on this machine.
    """
    if elsewhere is None:
        require_jobs(1 + len(chosen.others))
    chosen.begun(0.0)  # reading the weights counts too
    budget = _budget(chosen, seconds)
    observed, snapshots = list(observers), None
    if directory is not None:
        snapshots = _prepared(directory, resume, snapshot_every)
        if resume and snapshots.path.exists():
            snapshots.load(chosen.fingerprint())  # refuse another run's snapshot before replacing its run.json
        observed.append(MetricsLog(RunDirectory(directory).metrics, every=max(1, chosen.total_steps // 1000)))
        _record(directory, chosen, model, None)
    with sharing_threads(1 + len(chosen.others)) as threads:
        now = time.time()
        begin = in_processes(threads) if elsewhere is None else elsewhere
        kept = directory if elsewhere is None else None  # other machines may not have it
        wanted = [
            (number, other, seconds, None if kept is None else _beside(kept, number, snapshot_every), resume, now)
            for number, other in enumerate(chosen.others, start=1)
        ]
        others = begin(run_part, wanted) if wanted else iter(())
        own = run(chosen, budget, snapshots=snapshots, resume=resume, observers=observed)
        parts = [own, *(one for _, one in sorted(others, key=itemgetter(0)))]
    try:
        solution = _joined(chosen, parts)
        found = chosen.reconstruction(solution.state)
    except BAD_STATE as error:
        if snapshots is None or not resume:
            raise
        raise snapshots.damaged(error) from error  # no step looked at what the file contains
    if directory is not None:
        _record(directory, chosen, model, solution)
        solution.require_finite()
        found.save(RunDirectory(directory).reconstruction)
    return found, solution


def run_part(
    number: int, part: Attack, seconds: float | None, snapshots: Snapshots | None, resume: bool, since: float
) -> tuple[int, Solution]:
    """Part `number` of an attack, which another process makes; `since` is when the attack began, by the clock."""
    part.begun(max(0.0, time.time() - since))
    return number, run(part, _budget(part, seconds), snapshots=snapshots, resume=resume)


def _beside(directory: Path, number: int, snapshot_every: float) -> Snapshots:
    """Where the part of an attack that another process makes keeps its snapshots."""
    path = RunDirectory(files.prepare_directory(directory / "starts" / str(number))).snapshot
    return Snapshots(path=path, every_seconds=snapshot_every)


def _budget(chosen: Attack, seconds: float | None) -> Budget:
    given = seconds or getattr(chosen.settings, "seconds", None)
    limit = None if given is None else (1 - chosen.closing) * given
    return Budget(steps=chosen.total_steps, seconds=limit)


def _joined(chosen: Attack, parts: list[Solution]) -> Solution:
    """The outcome of an attack that several processes made; one that diverged stands for all."""
    first = parts[0]
    diverged = next((one for one in parts if one.reason is StopReason.DIVERGED), None)
    if len(parts) == 1 or diverged is not None:
        return diverged or first
    steps = sum(one.steps for one in parts)
    return replace(
        first,
        state=chosen.joined([one.state for one in parts]),
        steps=steps,
        seconds=max(one.seconds for one in parts),
        message=f"{first.reason.value} after {steps:,} steps in {len(parts)} processes, loss {first.loss:.3g}",
    )


def compare(
    found: Reconstruction,
    data: Split,
    *,
    network: Network | None = None,
    protocol: ScoringProtocol | None = None,
    assignment: Assignment = "nearest",
    seed: int = 0,
) -> ScoreReport:
    """Match candidates with training images and held-out images, and noise with training images.

    Vectors are scored by distance.
    """
    images = data.train.images
    if images.shape[1:] != found.images.shape[1:]:
        raise ConfigError(
            f"the candidates have shape {tuple(found.images.shape[1:])}, the data {tuple(images.shape[1:])}; "
            "give the data that the model was trained on"
        )
    outputs = None
    if network is not None:
        with torch.no_grad():
            outputs = network(centred(images, data.mean).to(network.weights[0].dtype)).squeeze(1)
    return evaluate(
        found.images,
        images,
        data.held_out.images,
        data.mean,
        protocol=protocol or default_protocol(images, network),
        generator=torch.Generator().manual_seed(seed),
        assignment=assignment,
        shown_mean=found.mean,
        labels=data.train.labels,
        model_outputs=outputs,
    )


def default_protocol(images: Tensor, network: Network | None) -> ScoringProtocol:
    """The 2023 paper's, with B = 1.5 for convolutional networks; vectors have their own."""
    if images.ndim != 4:
        return VectorProtocol()
    return Buzaglo2023Protocol(B=CONVOLUTIONAL_B) if isinstance(network, ConvNetwork) else Buzaglo2023Protocol()


def _prepared(directory: Path, resume: bool, snapshot_every: float) -> Snapshots:
    """Snapshots in a directory that is writable and contains no other run."""
    files.prepare_directory(directory)
    if not resume:
        require_free(directory)
    return Snapshots(path=RunDirectory(directory).snapshot, every_seconds=snapshot_every)


def _record(directory: Path, chosen: Attack, model: str, solution: Solution | None) -> None:
    outcome = (
        {"state": "running"}
        if solution is None
        else {
            "state": solution.reason.name.lower(),
            "message": solution.message,
            "steps": solution.steps,
            "seconds": solution.seconds,
        }
    )
    view = chosen.view
    record = {
        "schema_version": 1,
        "kind": "reconstruction",
        "recipe": chosen.recipe,
        "settings": asdict(chosen.settings),
        "model": model,
        "weights_sha256": view.network.digest(),
        "network": view.network.name,
        "architecture": view.network.architecture.text if isinstance(view.network, ConvNetwork) else None,
        "activation": str(view.network.activation),
        "head": view.head,
        "base": view.base,
        "normalization": None if view.normalization is None else view.normalization.text,
        "columns": None if view.features is None else list(view.features.columns),
        "input_shape": list(view.input_shape),
        "task": view.task.name,
        "outcome": outcome,
        "versions": versions(),
    }
    files.write_json(RunDirectory(directory).record, record)
