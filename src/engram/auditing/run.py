"""audit: the whole examination of one model, step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from engram.attacks.inversion import InversionSettings
from engram.attacks.reconstruction import Attack
from engram.attacks.registry import make_attack
from engram.attacks.settings import EngineSettings
from engram.auditing.comparison import (
    Samples,
    Scale,
    audit_data,
    blind_view,
    compare_with,
    inversion_settings,
    run_baselines,
)
from engram.auditing.inspect import describe
from engram.auditing.preprocessing import chosen_preprocessing, judged_mean
from engram.auditing.preprocessing import doubts as doubts_about
from engram.auditing.record import AttackSummary, AuditRecord, Timeline
from engram.auditing.verdict import decide, judge
from engram.core.errors import ConfigError
from engram.core.loop import Progress, by_share, silent
from engram.core.runs import versions
from engram.data.sets import Split
from engram.members.kkt import dense_part
from engram.models.networks import Network
from engram.models.open.door import Model, model_name, open_view
from engram.models.open.modules import as_module
from engram.models.view import AttackerView
from engram.pipeline import attack, default_protocol

TIMELINE_FILE = "timeline.jsonl"


def audit(
    model: Model,
    *,
    input_shape: Sequence[int] | str | None = None,
    arch: str | None = None,
    train: Samples | None = None,
    held_out: Samples | None = None,
    mean: Tensor | None = None,
    std: Any = None,
    normalize: Any = None,
    activation: str | None = None,
    head: str | None = None,
    base: Model | None = None,
    base_seed: int | None = None,
    task: str | None = None,
    settings: EngineSettings | None = None,
    seconds: float | None = None,
    baselines: Scale = "quick",
    directory: Path | None = None,
    resume: bool = False,
    progress: Progress = silent,
) -> AuditRecord:
    """Inspect, attack, score and judge a model; blind without `train`.

    model, input_shape, task, arch, activation, normalize, head, base, base_seed   as `engram.open_view` takes them
    train        (images [n, *shape] with pixels in [0, 1], labels [n]) that the model was trained on
    held_out     the same for records that it never saw: the control, without which no count means anything
    mean         [*shape], the mean subtracted from inputs before the network sees them; None is the mean of
                 `train`; use zeros if the network takes pixels as they are
    std          what inputs are then divided by; with `mean` this is the same as normalize=(mean, std)
    seconds      time for the attack; baselines and scoring come on top
    directory    where the run writes its files, so that it can `resume` after a kill
    """
    if std is not None:
        if normalize is not None or mean is None:
            raise ConfigError("std needs a mean; give both, or normalize=(mean, std)")
        normalize, mean = (mean, std), None
    view = open_view(
        model,
        input_shape=input_shape,
        task=task,
        arch=arch,
        activation=activation,
        normalize=normalize,
        head=head,
        base=base,
        base_seed=base_seed,
    )
    data = None
    if train is not None:
        data = audit_data(view, train, held_out, mean)
    elif held_out is not None or mean is not None:
        raise ConfigError("held_out and mean have no effect without train; give the training records too")
    inversion = inversion_settings(baselines)
    chosen = make_attack(view, settings=settings, budget=seconds, resume_from=directory if resume else None)
    return run_audit(
        chosen,
        data,
        inversion=inversion,
        name=model_name(model),
        seconds=seconds,
        directory=directory,
        resume=resume,
        progress=progress,
        doubts=() if data is None else data_doubts(view, data),
    )


def data_doubts(view: AttackerView[Network], data: Split) -> tuple[str, ...]:
    """What the records say about how the model was read."""
    module = as_module(view.network)
    if view.normalization is not None:
        chosen = chosen_preprocessing(
            module, view.task, data.train, data.held_out, "auto", view.normalization, view=view
        )
    else:
        chosen = judged_mean(module, view.task, data.train, data.mean, view=view)
    return doubts_about(view, chosen, data.train)


def run_audit(
    chosen: Attack,
    data: Split | None,
    *,
    inversion: InversionSettings | None,
    name: str,
    seconds: float | None = None,
    directory: Path | None = None,
    resume: bool = False,
    snapshot_every: float = 20.0,
    progress: Progress = silent,
    command: str | None = None,
    doubts: tuple[str, ...] = (),
) -> AuditRecord:
    """Audit with the chosen attack; with a directory, write the report and its files there."""
    started = time.monotonic()
    view = chosen.view.to("cpu")
    part = dense_part(view)
    description = describe(view, samples=None if data is None else len(data.train), progress=progress)
    protocol = None if data is None else default_protocol(data.train.images, view.network)
    timeline = Timeline(chosen, data, protocol, None if directory is None else directory / TIMELINE_FILE)
    if resume:
        timeline.resume()
    found, solution = attack(
        chosen,
        seconds=seconds,
        directory=directory,
        model=name,
        resume=resume,
        snapshot_every=snapshot_every,
        observers=[by_share(progress, "attacking", chosen.share_done), timeline],
    )
    solution.require_finite()
    spent = float(solution.state.get("step_seconds", solution.seconds))
    blind = blind_view(part, found, description.space.basis)
    comparison = None if data is None else compare_with(view, part, blind, data, description.space, doubts)
    timeline.add(solution.steps, spent, found, None if comparison is None else comparison.score)
    reach = judge(description, None if comparison is None else comparison.examination)
    record = AuditRecord(
        model=name,
        view=view,
        verdict=decide(blind, comparison, reach),
        description=description,
        reach=reach,
        attack=AttackSummary(chosen.recipe, asdict(chosen.settings), solution.steps, spent, solution.message),
        blind=blind,
        timeline=tuple(timeline.moments),
        comparison=comparison,
        baselines=run_baselines(view, inversion, data, progress=progress),
        versions=versions(),
        seconds=time.monotonic() - started,
        command=command,
    )
    if directory is not None:
        record.save(directory)
    return record
