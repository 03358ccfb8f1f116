"""audit: the whole examination of one model, in order."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from torch import Tensor, nn

from engram.attacks.inversion import InversionSettings
from engram.attacks.reconstruction import Attack
from engram.attacks.registry import choose_scheme
from engram.attacks.settings import EngineSettings
from engram.auditing.baselines import Scale, inversion_settings, run_baselines
from engram.auditing.blind import blind_view
from engram.auditing.comparison import compare_with
from engram.auditing.inspect import describe_either
from engram.auditing.reach import judge_either
from engram.auditing.record import AttackSummary, AuditRecord
from engram.auditing.samples import AuditData, Samples, audit_data
from engram.auditing.timeline import Milestones, Timeline
from engram.auditing.verdict import decide
from engram.core.errors import ConfigError
from engram.core.loop import Observer
from engram.core.runs import versions
from engram.members.boundaries import dense_part
from engram.models.architecture import Architecture
from engram.models.networks import Network
from engram.models.open.described import described_network
from engram.models.open.state_dict import dense_network
from engram.models.tasks.names import infer_task, task_named
from engram.models.view import AttackerView
from engram.pipeline import attack, default_protocol
from engram.training.target import Card, open_target

Model = nn.Module | Network | Mapping[str, Tensor] | Path | str
TIMELINE_FILE = "timeline.jsonl"


def audit(
    model: Model,
    *,
    input_shape: Sequence[int] | None = None,
    arch: str | None = None,
    train: Samples | None = None,
    held_out: Samples | None = None,
    mean: Tensor | None = None,
    task: str | None = None,
    settings: EngineSettings | None = None,
    seconds: float | None = None,
    baselines: Scale = "quick",
    directory: Path | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> AuditRecord:
    """Inspect, attack, score and judge a model; blind without `train`.

    model        a module, a state_dict, or a path to either's file or to a directory of `engram train`
    arch         the layers of one with convolutions, e.g. "conv3x32 relu flatten 1000 relu 1"; a .pt2 file and a
                 directory of `engram train` know theirs
    train        (images [n, *shape] with pixels in [0, 1], labels [n]) that the model was trained on
    held_out     the same of records that it never saw: the control, without which no count means anything
    mean         [*shape], what is subtracted before the network sees an image; None is the mean of `train`,
                 zeros if the network takes pixels as they are
    seconds      time for the attack; baselines and scoring come on top
    directory    where the run leaves its files, so that `resume` can go on after a kill
    """
    view, name = view_of(model, input_shape, task, arch)
    data = None
    if train is not None:
        data = audit_data(view, train, held_out, mean)
    elif held_out is not None or mean is not None:
        raise ConfigError("held_out and mean say nothing without train; give the training records too")
    inversion = inversion_settings(baselines)
    scheme = choose_scheme(view, settings=settings, seconds=seconds, resumed=directory if resume else None)
    return run_audit(
        scheme,
        data,
        inversion=inversion,
        name=name,
        seconds=seconds,
        directory=directory,
        resume=resume,
        observers=observers,
    )


def run_audit(
    scheme: Attack,
    data: AuditData | None,
    *,
    inversion: InversionSettings | None,
    name: str,
    seconds: float | None = None,
    directory: Path | None = None,
    resume: bool = False,
    snapshot_every: float = 20.0,
    observers: Sequence[Observer] = (),
    inversion_observers: Sequence[Observer] = (),
    command: str | None = None,
) -> AuditRecord:
    """The audit by an attack that was chosen; with a directory, the report and its files are written there."""
    started = time.monotonic()
    view = replace(scheme.view, network=scheme.view.network.to(device="cpu"))
    part = dense_part(view)
    description = describe_either(view, samples=None if data is None else len(data.train))
    protocol = None if data is None else default_protocol(data.train.images, view.network)
    timeline = Timeline(data, protocol, None if directory is None else directory / TIMELINE_FILE)
    if resume:
        timeline.resume()
    found, solution = attack(
        Milestones(scheme, timeline.add),
        seconds=seconds,
        directory=directory,
        model=name,
        resume=resume,
        snapshot_every=snapshot_every,
        observers=observers,
    )
    solution.require_finite()
    spent = float(solution.state.get("audit_seconds", solution.seconds))
    timeline.add(solution.steps, spent, found)
    blind = blind_view(part, found, description.space.basis)
    comparison = None if data is None else compare_with(view, part, blind, data, description.space)
    reach = judge_either(description, None if comparison is None else comparison.examination)
    record = AuditRecord(
        model=name,
        view=view,
        verdict=decide(blind, comparison, reach),
        description=description,
        reach=reach,
        attack=AttackSummary(scheme.recipe, asdict(scheme.settings), solution.steps, spent, solution.message),
        blind=blind,
        timeline=tuple(timeline.moments),
        comparison=comparison,
        baselines=run_baselines(view, inversion, data, observers=inversion_observers),
        versions=versions(),
        seconds=time.monotonic() - started,
        command=command,
    )
    if directory is not None:
        record.save(directory)
    return record


def view_of(
    model: Model, input_shape: Sequence[int] | None, task: str | None, arch: str | None = None
) -> tuple[AttackerView[Network], str]:
    """What a stranger sees of a model given in any form, and a name for it."""
    shape = None if input_shape is None else tuple(input_shape)
    if arch is not None and shape is None:
        raise ConfigError("arch needs input_shape, the shape of one input, e.g. input_shape=(3, 32, 32)")
    layers = None if arch is None or shape is None else Architecture.parse(arch, shape)
    network, card, name = _opened(model, layers)
    shape = shape or (network.input_shape if card is None else card.input_shape)
    if shape is None:
        raise ConfigError("input_shape must be given for this model, e.g. input_shape=(3, 32, 32)")
    chosen = task or (None if card is None else card.task)
    outputs = network.sizes[-1]
    known = infer_task(outputs) if chosen is None else task_named(chosen, outputs)
    return AttackerView(network, shape, known), name


def _opened(model: Model, layers: Architecture | None) -> tuple[Network, Card | None, str]:
    """The network, its card if engram trained it, and a name."""
    is_whole = isinstance(model, Network) or (isinstance(model, str | Path) and Path(model).is_dir())
    if layers is not None and is_whole:
        raise ConfigError("this model says which layers it has; leave arch out")
    if isinstance(model, str | Path):
        target = open_target(Path(model), layers)
        return target.network, target.card, str(model)
    if isinstance(model, Network):
        return model, None, model.name
    state = model.state_dict() if isinstance(model, nn.Module) else model
    network = dense_network(state) if layers is None else described_network(state, layers)
    return network, None, type(model).__name__
