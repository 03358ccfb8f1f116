"""audit: the whole examination of one model, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engram.attacks.inversion import InversionSettings, pictures_of
from engram.attacks.reconstruction import Attack
from engram.attacks.registry import make_attack
from engram.attacks.settings import EngineSettings
from engram.auditing.comparison import (
    Comparison,
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
from engram.auditing.record import AttackSummary, AuditRecord, Illustration, Timeline
from engram.auditing.verdict import decide, judge
from engram.auditing.watch import GrowingReport
from engram.core.errors import ConfigError, require
from engram.core.loop import Progress, by_share, silent
from engram.core.processes import Elsewhere
from engram.core.runs import versions
from engram.data.sets import ImageSet, Split
from engram.members.kkt import dense_part
from engram.models.networks import Network
from engram.models.open.door import Model, model_name, open_view
from engram.models.open.modules import as_module
from engram.models.view import AttackerView
from engram.pipeline import attack, default_protocol

TIMELINE_FILE = "timeline.jsonl"
Embed = Callable[[Tensor], Any]
"""From images [b, *shape] to embeddings [b, d]: a function, or a torch module."""


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
    columns: Sequence[str] | str | None = None,
    activation: str | None = None,
    head: str | None = None,
    embed: Embed | None = None,
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

    model, input_shape, task, arch, activation, normalize, columns, head, base, base_seed   as for `open_view`
    train        (images [n, *shape] with pixels in [0, 1], labels [n]) that the model was trained on
    held_out     the same for records that it never saw: the control, without which no count means anything
    mean         [*shape], the mean subtracted from inputs before the network sees them; None is the mean of
                 `train`; use zeros if the network takes pixels as they are
    std          what inputs are then divided by; with `mean` this is the same as normalize=(mean, std)
    embed        what turns images [b, *shape] into what the model, a head, takes: records are embedded in batches,
                 attacked and asked as embeddings [b, d], by default as they are (mean zero). With a torch module,
                 the report also shows pictures with the embeddings that came back, as an illustration
    seconds      time for the attack; baselines and scoring come on top
    directory    where the run writes its files, so that it can `resume` after a kill
    """
    if std is not None:
        if normalize is not None or mean is None:
            raise ConfigError("std needs a mean; give both, or normalize=(mean, std)")
        normalize, mean = (mean, std), None
    pictures = None
    if embed is not None:
        if train is None:
            raise ConfigError("embed has no effect without train; give the training records too")
        shown = [None if one is None else images_of(one) for one in (train, held_out)]
        train = embedded(embed, train, "train")
        held_out = None if held_out is None else embedded(embed, held_out, "held_out")
        width = images_of(train).shape[1]
        input_shape = (width,) if input_shape is None else input_shape
        if mean is None and normalize is None:
            mean = torch.zeros(width)
        if isinstance(embed, nn.Module) and shown[0] is not None and shown[0].ndim == 4:
            pictures = partial(illustrated, embed, shown[0], shown[1])
    view = open_view(
        model,
        input_shape=input_shape,
        task=task,
        arch=arch,
        activation=activation,
        normalize=normalize,
        columns=columns,
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
        pictures=pictures,
    )


EMBEDDED_AT_ONCE = 64
MOST_ILLUSTRATED = 8


def images_of(samples: Samples) -> Tensor:
    """The images of an ImageSet or of (images, labels)."""
    found = samples.images if isinstance(samples, ImageSet) else samples[0]
    return torch.as_tensor(found).detach().cpu().float()


def embedded(embed: Embed, samples: Samples, name: str) -> Samples:
    """The same records as embeddings [n, d], made in batches; a module is in eval mode meanwhile."""
    images, parts = images_of(samples), []
    with torch.no_grad(), evaluating(embed):
        for some in torch.split(images, EMBEDDED_AT_ONCE):
            part = torch.as_tensor(embed(some))
            require(len(part) == len(some), "embed", "must give one embedding per image", tuple(part.shape))
            parts.append(part.detach().cpu().float().flatten(1))
    require(len(parts) > 0, name, "must contain at least one record", 0, "choose other data")
    if isinstance(samples, ImageSet):
        return replace(samples, images=torch.cat(parts), columns=())
    return torch.cat(parts), *samples[1:]


@contextmanager
def evaluating(embed: Embed) -> Iterator[None]:
    """A module in eval mode; every part's mode is restored afterwards."""
    modes = {part: part.training for part in embed.modules()} if isinstance(embed, nn.Module) else {}
    for part in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def illustrated(
    embed: nn.Module, images: Tensor, held_out: Tensor | None, comparison: Comparison
) -> Illustration | None:
    """Pictures with the embeddings that came back, best first, and with those nearest to held-out records."""
    threshold, tables = comparison.threshold, (comparison.score.train, comparison.score.held_out)
    hits = tables[0].passing(threshold.metric, threshold.value)
    order = [row for row in tables[0].distance.argsort(stable=True).tolist() if bool(hits[row])][:MOST_ILLUSTRATED]
    if not order:
        return None
    shape = tuple(images.shape[1:])
    others = near = images[:0]
    with evaluating(embed):
        made = pictures_of(embed, tables[0].reconstruction[order], shape)
        if tables[1] is not None and held_out is not None:
            rows = tables[1].distance.argsort(stable=True)[: len(order)]
            others, near = (
                held_out[tables[1].sample[rows]],
                pictures_of(embed, tables[1].reconstruction[rows], shape),
            )
    return Illustration(made, images[tables[0].sample[order]], near, others)


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
    pictures: Callable[[Comparison], Illustration | None] | None = None,
    elsewhere: Elsewhere | None = None,
) -> AuditRecord:
    """Audit with the chosen attack; with a directory, write the report and its files there.

    `pictures` illustrates embeddings that came back; `elsewhere` is where the attack's other processes run.
    """
    started = time.monotonic()
    view = chosen.view.to("cpu")
    part = dense_part(view)
    description = describe(view, samples=None if data is None else len(data.train), progress=progress)
    protocol = None if data is None else default_protocol(data.train.images, view.network)
    timeline = Timeline(chosen, data, protocol)
    if directory is not None:
        timeline.path, timeline.show = directory / TIMELINE_FILE, GrowingReport(directory, name)
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
        elsewhere=elsewhere,
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
        illustration=None if comparison is None or pictures is None else pictures(comparison),
    )
    if directory is not None:
        record.save(directory)
    return record
