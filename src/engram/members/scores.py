"""The scores of every record at every layer: the pool read two or three times, chunk by chunk.

What a chunk gives is a few named tensors, which are merged in the order of the chunks. So it does not matter where
a chunk is computed, and a run that was killed goes on after the last chunk that it stored.

One score from many, without asking who is a member.

Every record has a vector of scores, a few per layer. Over the pool these are a mixture: records that were not in
training, around zero by construction, and members, shifted by an unknown amount at each score. Expectation
maximisation finds both, and the best direction between them is Fisher's: C_0⁻¹ (m_1 - m_0). How often the model is
right about either kind follows, and adds a log-odds. Where nobody was in training the direction is
arbitrary, and then members and controls score alike in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engram.core import files
from engram.core.errors import CheckpointError, ConfigError, require, require_jobs
from engram.core.loop import Progress, part, silent
from engram.members.layers import Layer, LayerPass, Margin, layers_read, parameters_left_out, passes, record_axes
from engram.members.matched_filter import (
    INTERFERENCE,
    MOST_RECORDS,
    MOST_VALUES,
    WIDEST,
    IndexFilter,
    IndexFit,
    LayerFilter,
    PooledFit,
)
from engram.members.pool import Pool

ROUNDS = 30
SHRINKAGE = 0.1
"""How far covariances are drawn to their diagonal, and further by the number of scores per record of the pool."""
EVERYONE = 0.9
"""A pool has controls. Where more than this share of it would be members, the others are not around zero, as on
small networks of few classes: then their mean is found too."""
SURENESS = 3.0
"""How steeply the first guess at who is a member follows the sum of the scores."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """The combined score [n], the weight of every standardised score [k], and the share of members found."""

    scores: Tensor
    weights: Tensor
    share: float
    answers: tuple[float, float] | None
    """What is added to the score of a record if the model is wrong about it, and if it is right."""


def combine(scores: Tensor, centred: Tensor | None = None, right: Tensor | None = None) -> Mixture:
    """One score from k for each of n records, [n, k].

    Where `centred` [k] is set (everywhere by default), records that were not in training have mean 0. `right` [n]
    says about which records the model is right: one that it gets wrong was hardly in a training that it fits.

    >>> drawn = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    >>> drawn[:200, 0] += 4
    >>> found = combine(drawn.double())
    >>> [round(weight, 1) for weight in found.weights.abs().tolist()], round(found.share, 1)
    ([1.0, 0.0], 0.5)
    >>> wrong = torch.arange(400) >= 300
    >>> heard = combine(drawn.double(), right=~wrong).scores
    >>> bool((heard[wrong] < found.scores[wrong]).all() and (heard[~wrong] > found.scores[~wrong]).all())
    True
    """
    known = torch.ones(scores.shape[1], dtype=torch.bool) if centred is None else centred
    found = _mixture(scores, known, right)
    if found.share > EVERYONE and bool(known.any()):
        return _mixture(scores, torch.zeros_like(known), right)
    return found


def _mixture(scores: Tensor, known: Tensor, right: Tensor | None) -> Mixture:
    unit = scores / scores.std(0).clamp(min=1e-12)
    unit = torch.where(known, unit, unit - unit.median(0).values)
    direction = unit.mean(0).clamp(min=0)
    first = unit @ direction
    members = torch.sigmoid(SURENESS * (first - first.mean()) / first.std().clamp(min=1e-12))
    shrinkage = min(1.0, SHRINKAGE + scores.shape[1] / len(scores))
    for _ in range(ROUNDS):
        share = members.mean().clamp(1e-3, 1 - 1e-3)
        others = 1 - members
        centre = (members[:, None] * unit).sum(0) / members.sum().clamp(min=1e-9)
        rest = (others[:, None] * unit).sum(0) / others.sum().clamp(min=1e-9)
        rest = torch.where(known, torch.zeros_like(rest), rest)
        here, there = _covariance(unit, rest, others, shrinkage), _covariance(unit, centre, members, shrinkage)
        odds = _log_density(unit, centre, there) - _log_density(unit, rest, here)
        members = torch.sigmoid(odds + torch.log(share / (1 - share))).clamp(1e-6, 1 - 1e-6)
        direction = torch.linalg.solve(here, centre - rest)
    size = direction.abs().sum().clamp(min=1e-12)
    weights, share_found = direction / size, float(members.mean())
    if right is None:
        return Mixture(unit @ weights, weights, share_found, None)
    # not within the rounds, where every record that the model is right about would soon count as a member
    added = _log_odds(right.to(members), members) / size
    return Mixture(unit @ weights + added[right.long()], weights, share_found, (float(added[0]), float(added[1])))


def _log_odds(right: Tensor, members: Tensor) -> Tensor:
    """How much likelier members are wrong, and right, than others, [2]; one more of each kind is assumed."""
    rates = torch.stack([((some * right).sum() + 1) / (some.sum() + 2) for some in (members, 1 - members)])
    return torch.stack([1 - rates, rates]).log().diff(dim=1).neg()[:, 0]


def _covariance(points: Tensor, centre: Tensor, weights: Tensor, shrinkage: float) -> Tensor:
    away = points - centre
    found = (away * weights[:, None]).T @ away / weights.sum().clamp(min=1e-9)
    diagonal = torch.diag(torch.diag(found))
    return (1 - shrinkage) * found + shrinkage * diagonal + 1e-6 * torch.eye(len(found), dtype=found.dtype)


def _log_density(points: Tensor, centre: Tensor, covariance: Tensor) -> Tensor:
    """Of a normal distribution, up to a constant, [n]."""
    lower = torch.linalg.cholesky(covariance)
    away = torch.linalg.solve_triangular(lower, (points - centre).T, upper=False)
    density: Tensor = -0.5 * away.square().sum(0) - torch.log(torch.diag(lower)).sum()
    return density


REFERENCES = 4000
"""Covariances are estimated from this many records of a larger pool; more do not sharpen the scores."""
FILTER, FIT = "filter", "fit"
"""The tests: the matched filter, the pooled fit."""
MARGINS = ":margins"
"""Beside the names of layers, which have no colon."""
State = dict[str, Tensor]
"""What a chunk gave, by name; the names of layers come first."""
Chunk = list[tuple[Tensor, Tensor]]
Runner = Callable[[Callable[[Chunk], State], Pool, int, int], Iterator[State]]
"""Computes `work(chunk)` for the chunks of `pool.chunks(most)` from number `first` on, in their order."""


def in_process(work: Callable[[Chunk], State], pool: Pool, most: int, first: int) -> Iterator[State]:
    """One chunk after another, here."""
    return (work(chunk) for chunk in islice(pool.chunks(most), first, None))


_FORKED: dict[str, Any] = {}


@dataclass(frozen=True)
class Forked:
    """Chunks in `jobs` processes of one thread each, which inherit the model and the records."""

    jobs: int

    def __post_init__(self) -> None:
        require_jobs(self.jobs)

    def __call__(self, work: Callable[[Chunk], State], pool: Pool, most: int, first: int) -> Iterator[State]:
        _FORKED["job"] = (work, pool, most)
        try:
            context, alone = get_context("fork"), (1,)
            with ProcessPoolExecutor(self.jobs, context, torch.set_num_threads, alone) as executor:
                for found in executor.map(_forked, range(first, pool.chunk_count(most))):
                    yield {name: files.aligned(torch.from_numpy(value)) for name, value in found.items()}
        finally:
            _FORKED.clear()


def _forked(index: int) -> dict[str, Any]:
    work, pool, most = _FORKED["job"]
    return chunk_result(work, pool, most, index)


def chunk_result(work: Callable[[Chunk], State], pool: Pool, most: int, index: int) -> dict[str, Any]:
    """What one chunk gives, as arrays, which every kind of process can send."""
    chunk = next(islice(pool.chunks(most), index, None))
    return {name: value.cpu().numpy() for name, value in work(chunk).items()}


@dataclass(frozen=True, eq=False)
class LayerScores:
    """The scores [n] of every record by layer and test, the margins [n], and what was left out or simplified."""

    margins: Tensor
    scores: dict[tuple[str, str], Tensor]
    left_out: dict[str, str]
    notes: tuple[str, ...]


@dataclass(eq=False)
class Reading:
    """A model and the filters and fits of its layers, and what a chunk of records gives for them."""

    model: nn.Module
    margin: Margin
    layers: dict[str, Layer]
    axes: dict[str, int]
    filters: dict[str, LayerFilter]
    fits: dict[str, PooledFit]

    def covariances(self, chunk: Chunk) -> State:
        filters = {name: one.emptied() for name, one in self.filters.items()}
        fits = {name: type(one)(one.weight) for name, one in self.fits.items()}
        for inputs, labels in chunk:
            for name, one in self._passes(inputs, labels)[1].items():
                filters[name].add_covariances(one)
                if name in fits:
                    fits[name].add(one)
        return replace(self, filters=filters, fits=fits).state()

    def state(self) -> State:
        """What all chunks gave so far."""
        found: State = {}
        for test, parts in ((FILTER, self.filters), (FIT, self.fits)):
            for name, one in parts.items():
                found |= {f"{name}/{test}/{key}": value for key, value in one.state().items()}
        return found

    def merge_covariances(self, state: State) -> None:
        for test, parts in ((FILTER, self.filters), (FIT, self.fits)):
            for name, one in parts.items():
                start = f"{name}/{test}/"
                one.merge(
                    {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
                )

    def moments(self, chunk: Chunk) -> State:
        parts = {
            name: replace(one, moments=torch.zeros_like(one.moments))
            for name, one in self.filters.items()
            if one.has_positions
        }
        for inputs, labels in chunk:
            seen = self._passes(inputs, labels)[1]
            for name, one in parts.items():
                one.add_moments(seen[name])
        return {name: one.moments for name, one in parts.items()}

    def moments_state(self) -> State:
        return {name: one.moments.clone() for name, one in self.filters.items() if one.has_positions}

    def merge_moments(self, state: State) -> None:
        for name, value in state.items():
            self.filters[name].moments += value

    def scores(self, chunk: Chunk) -> State:
        parts: dict[str, list[Tensor]] = {name: [] for name in (MARGINS, *self.filters)}
        for inputs, labels in chunk:
            margins, seen = self._passes(inputs, labels)
            parts[MARGINS].append(margins)
            for name, one in self.filters.items():
                parts[name].append(one.scores(seen[name]))
        return {name: torch.cat(some).cpu() for name, some in parts.items()}

    def _passes(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, LayerPass]]:
        return passes(self.model, self.layers, inputs, labels, self.margin, self.axes)


@dataclass(eq=False)
class ChunkStore:
    """What the chunks of each phase gave together, stored from time to time, so that a run survives a kill."""

    path: Path | None = None
    identity: bytes = b""
    """A digest of the model and the records; another run's snapshot is refused."""
    every: float = 20.0
    """Seconds; large states are stored less often, so that storing takes at most a tenth of the time."""
    states: dict[str, State] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    """How many chunks of each phase the states contain."""
    last: float = field(default_factory=time.monotonic)

    def resume(self) -> None:
        if self.path is None or not self.path.exists():
            return
        tensors = files.read_tensors(self.path)
        if bytes(tensors.pop("identity", torch.zeros(0)).tolist()) != self.identity:
            raise CheckpointError(
                f"{self.path} belongs to another model or to other records; choose another directory with -o, or "
                "leave --resume out"
            )
        for name, value in tensors.items():
            phase, _, rest = name.partition("/")
            if rest:
                self.states.setdefault(phase, {})[rest] = value
            else:
                self.done[phase] = int(value)

    def keep(self, phase: str, chunks: int, state: Callable[[], State], *, is_last: bool) -> None:
        """Keep what the first chunks of a phase gave, and store it if it is time."""
        started = time.monotonic()
        is_time = self.path is not None and started - self.last > self.every
        if self.path is None or not (is_last or is_time):
            return
        self.states[phase], self.done[phase] = state(), chunks
        if is_time:
            flat = {
                f"{phase}/{name}": value for phase, some in self.states.items() for name, value in some.items()
            }
            flat |= {phase: torch.tensor(count) for phase, count in self.done.items()}
            flat["identity"] = torch.tensor(list(self.identity), dtype=torch.uint8)
            files.write_tensors(self.path, flat)
            self.last = time.monotonic()
            self.every = max(self.every, 10 * (self.last - started))


def score_layers(
    model: nn.Module,
    pool: Pool,
    margin: Margin,
    *,
    interference: float = INTERFERENCE,
    widest: int = WIDEST,
    only: Collection[str] | None = None,
    run: Runner = in_process,
    store: ChunkStore | None = None,
    progress: Progress = silent,
) -> LayerScores:
    """Score every record of the pool at every layer of a model in eval mode.

    The pool holds the records in question and the controls, so that all of them are treated alike. `only` names
    the layers to ask, if training left the others as they were.
    """
    if model.training:
        raise ConfigError("the model is in training mode, where records influence each other; call model.eval()")
    require(interference > 0, "interference", "must be positive", interference)
    reading, left_out = _prepared(model, pool, margin, widest, only)
    kept = ChunkStore() if store is None else store
    references = min(len(pool), REFERENCES)
    whole = 2 * references + len(pool)
    early, late = references / whole, 2 * references / whole

    def read(
        phase: str,
        most: int,
        share: tuple[float, float],
        work: Callable[[Chunk], State],
        merge: Callable[[State], None],
        state: Callable[[], State],
    ) -> None:
        report = part(progress, *share)
        if phase in kept.states:
            merge(kept.states[phase])
        first, count = kept.done.get(phase, 0), pool.chunk_count(most)
        for number, found in enumerate(run(work, pool, most, first), first + 1):
            merge(found)
            report(f"reading records: {phase}", number / count)
            kept.keep(phase, number, state, is_last=number == count)

    read("covariances", references, (0.0, early), reading.covariances, reading.merge_covariances, reading.state)
    scores: dict[tuple[str, str], Tensor] = {}
    for name in list(reading.fits):
        scores[name, FIT] = reading.fits.pop(name).scores().cpu()
    for one in reading.filters.values():
        one.find_bases()
    if any(one.has_positions for one in reading.filters.values()):
        read("moments", references, (early, late), reading.moments, reading.merge_moments, reading.moments_state)
    for one in reading.filters.values():
        one.close(interference)
    parts: list[State] = []

    def all_scores() -> State:
        return {name: torch.cat([some[name] for some in parts]) for name in parts[0]}

    read("scores", len(pool), (late, 1.0), reading.scores, parts.append, all_scores)
    found = all_scores()
    margins = found.pop(MARGINS)
    fitted = {name for name, _ in scores}
    scores |= {(name, FILTER): value for name, value in found.items()}
    return LayerScores(margins, scores, left_out, _notes(reading.filters, fitted, len(pool)))


def _prepared(
    model: nn.Module, pool: Pool, margin: Margin, widest: int, only: Collection[str] | None
) -> tuple[Reading, dict[str, str]]:
    """Empty filters and fits of the layers that one record reaches, and why others are left out."""
    layers = layers_read(model)
    if only is not None:
        layers = {name: layer for name, layer in layers.items() if name in only}
    if not layers:
        raise ConfigError(
            f"no layer of {type(model).__name__} can be read: it has no Linear, Conv or Embedding layer"
        )
    inputs, labels = next(iter(pool))
    axes = record_axes(model, layers, torch.cat([inputs, inputs])[:2])
    _, seen = passes(model, layers, inputs[:1], labels[:1], margin, axes)
    left_out = parameters_left_out(model, layers)
    unused = "the outputs do not depend on it, or it is not called as a module"
    left_out |= {name: unused for name in layers if name not in seen}
    shared = "what it sees can't be told apart by records"
    left_out |= {name: shared for name in seen if name not in axes}
    layers = {name: layer for name, layer in layers.items() if name not in left_out}
    if not layers:
        raise ConfigError(f"no layer of {type(model).__name__} can be read: its outputs depend on none")
    fits: dict[str, PooledFit] = {}
    room = MOST_VALUES
    for name, layer in layers.items() if len(pool) <= min(MOST_RECORDS, REFERENCES) else ():
        if seen[name].positions > 1:
            each = layer.weight.numel()
            if isinstance(layer, nn.Embedding):
                each = min(each, seen[name].positions * layer.embedding_dim)
            needed = len(pool) * each
            if needed > room:
                continue
            room -= needed
        fits[name] = (IndexFit if isinstance(layer, nn.Embedding) else PooledFit).of(layer)
    filters = {
        name: (IndexFilter if isinstance(layer, nn.Embedding) else LayerFilter).of(layer, len(pool), widest)
        for name, layer in layers.items()
    }
    return Reading(model, margin, layers, axes, filters, fits), left_out


def _notes(filters: Mapping[str, LayerFilter], fitted: set[str], records: int) -> tuple[str, ...]:
    notes = []
    if records > REFERENCES:
        notes.append(
            f"covariances were estimated from {REFERENCES:,} of {records:,} records, the same share of both sets"
        )
    notes += [f"{name} is {layer.note}" for name, layer in filters.items() if layer.note is not None]
    if records > MOST_RECORDS:
        notes.append(
            f"the pooled fit takes at most {MOST_RECORDS:,} records, got {records:,}: the filter is used alone"
        )
    elif unfitted := [name for name in filters if name not in fitted]:
        notes.append(
            f"the pooled fit would take too much memory at {', '.join(unfitted)}: the filter is used alone there"
        )
    return tuple(notes)
