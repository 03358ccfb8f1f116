"""The pool: records in question and controls together, read batch by batch as often as a test needs.

One scan at the start counts the records, keeps their labels, and looks for two mistakes that make every count
meaningless: a control that contains records in question, and a control that differs from them in kind.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engram.core.errors import ConfigError, require
from engram.core.loop import Progress, silent
from engram.scoring.curves import Roc, roc

Batches = Iterable[Sequence[Tensor]]
Records = tuple[Any, Any] | Batches
"""(inputs [n, ...] as the model takes them, labels [n]), tensors or arrays; or batches of such, e.g. a DataLoader
that does not shuffle."""
DIFFERS = 0.6
"""The AUC of a classifier between records and controls from which they count as different in kind..."""
BY_CHANCE = 1e-3
"""... if chance gives it with less than this probability."""
FOLDS = 5
CHUNK = 1024
_SIDE, _VALUES, _KINDS = 8, 256, 251


@dataclass(frozen=True, eq=False)
class Control:
    """How well the records in question and the controls can be told apart without the model."""

    roc: Roc
    labels_p: float
    """Probability of label counts this different if both sets were drawn alike."""

    @property
    def warnings(self) -> tuple[str, ...]:
        found = []
        if self.roc.auc > DIFFERS and self.roc.p_value < BY_CHANCE:
            found.append(
                "THE CONTROL DIFFERS FROM THE RECORDS IN KIND: a simple classifier tells them apart without the "
                f"model (AUC {self.roc.auc:.2f}, should be 0.50). What looks like membership may be that "
                "difference; use held-out records from the same source, prepared in the same way."
            )
        if self.labels_p < BY_CHANCE:
            found.append(
                "The control has other shares of labels than the records, which the scores may reflect; use "
                "held-out records with the same shares."
            )
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        return {"auc": self.roc.auc, "labels_p_value": self.labels_p, "warnings": list(self.warnings)}


@dataclass(frozen=True, eq=False)
class Pool:
    """Records in question, then controls; iterating gives batches of inputs and labels."""

    sources: tuple[Batches, Batches]
    labels: Tensor
    records: int
    """How many of them are in question; the others are controls."""
    control: Control
    lengths: tuple[int, ...]
    """Of the batches."""
    digest: bytes
    """Of all records and labels in their order."""
    chunk: int
    """Records in a chunk, rounded up to whole batches."""

    @classmethod
    def of(cls, records: Records, held_out: Records, *, batch: int = 64, progress: Progress = silent) -> Pool:
        """Read both once."""
        require(batch > 0, "batch", "must be positive", batch)
        sources = _batches("records", records, batch), _batches("held_out", held_out, batch)
        labels: list[Tensor] = []
        digests: list[set[bytes]] = []
        traits: list[Tensor] = []
        lengths: list[int] = []
        batches = sum(len(source) if isinstance(source, Sized) else 0 for source in sources)
        whole = hashlib.blake2b(digest_size=16)
        for name, source in zip(("records", "held_out"), sources, strict=True):
            own_labels, own_traits, seen = [], [], set[bytes]()
            for inputs, some in source:
                require(
                    inputs.ndim > 1 and some.ndim == 1 and len(inputs) == len(some),
                    name,
                    "must have inputs [n, ...] and as many labels [n]",
                    f"{tuple(inputs.shape)} and {tuple(some.shape)}",
                )
                require(
                    not inputs.is_floating_point() or bool(inputs.isfinite().all()),
                    name,
                    "must contain only finite numbers",
                    "NaN or infinity",
                )
                if not len(some):
                    continue
                own_labels.append(some.detach().cpu().long())
                own_traits.append(kind_traits(inputs))
                lengths.append(len(some))
                own = _digests(inputs)
                whole.update(b"".join(own) + some.detach().cpu().long().numpy().tobytes())
                seen |= set(own)
                progress("looking at the records", min(len(lengths) / batches, 1.0) if batches else 0.0)
            count = sum(map(len, own_labels))
            require(count > 0, name, "must contain records", 0, "give at least one, better a hundred")
            labels.append(torch.cat(own_labels))
            traits.append(torch.cat(own_traits))
            digests.append(seen)
        if shared := len(digests[0] & digests[1]):
            raise ConfigError(
                f"held_out must contain no training record: it is the control; got {shared:,} that are also in "
                "records; give records that training never saw"
            )
        progress("looking at the records", 1.0)
        control = Control(told_apart(*traits), _labels_p(*labels))
        return cls(sources, torch.cat(labels), len(labels[0]), control, tuple(lengths), whole.digest(), CHUNK)

    def __len__(self) -> int:
        return len(self.labels)

    def spread(self, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """At most so many records, evenly spread, so that records in question and controls have the same share."""
        at = 0
        for inputs, labels in self:
            taken = self._taken(at, len(labels), most)
            at += len(labels)
            if bool(taken.any()):
                yield inputs[taken.to(inputs.device)], labels[taken]

    def chunk_count(self, most: int) -> int:
        """How many chunks there are, without reading the records."""
        count = waiting = at = 0
        for length in self.lengths:
            waiting += int(self._taken(at, length, most).sum())
            at += length
            if waiting >= self.chunk:
                count, waiting = count + 1, 0
        return count + (waiting > 0)

    def _taken(self, at: int, length: int, most: int) -> Tensor:
        """Which of the records from number `at` on are among `most` evenly spread ones, [length] bool."""
        places = torch.arange(at, at + length) * most
        # a record is taken where the whole part of place * most / n rises
        return (places // len(self) != (places - most) // len(self)) | (len(self) <= most)

    def chunks(self, most: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """The records of `spread` in lists of batches: what a run computes, stores and sends at a time."""
        waiting: list[tuple[Tensor, Tensor]] = []
        for batch in self.spread(most):
            waiting.append(batch)
            if sum(len(labels) for _, labels in waiting) >= self.chunk:
                yield waiting
                waiting = []
        if waiting:
            yield waiting

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        at = 0
        for source in self.sources:
            for inputs, labels in source:
                labels = labels.detach().cpu().long()
                if not torch.equal(labels, self.labels[at : at + len(labels)]):
                    raise ConfigError(
                        "the records come in another order each time they are read; use a DataLoader with "
                        "shuffle=False"
                    )
                at += len(labels)
                yield inputs, labels


@dataclass(frozen=True, eq=False)
class _Arrays:
    """Arrays as batches; read as often as needed."""

    inputs: Tensor
    labels: Tensor
    batch: int

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(self.inputs, self.batch), torch.split(self.labels, self.batch), strict=True)


def _batches(name: str, records: Records, batch: int) -> Batches:
    if isinstance(records, tuple | list) and len(records) == 2:
        inputs, labels = (torch.as_tensor(part) for part in records)
        require(len(inputs) == len(labels), name, "must have as many labels as inputs", len(labels))
        return _Arrays(inputs.detach(), labels.detach(), batch)
    if isinstance(records, Iterator) or not isinstance(records, Iterable):
        raise ConfigError(
            f"{name} must be (inputs, labels) or batches of them that can be read more than once, such as a "
            f"DataLoader, got {type(records).__name__}"
        )
    return records


def _digests(inputs: Tensor) -> list[bytes]:
    rows = inputs.detach().cpu().contiguous().flatten(1).numpy()
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows]


def kind_traits(inputs: Tensor) -> Tensor:
    """What gives away where records come from, [b, traits]: coarse content, contrast, sharpness, clipping."""
    values = inputs.detach().cpu().double()
    flat = values.flatten(1)
    spread = flat.std(1, unbiased=False)
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    traits = [flat.mean(1), spread, low[:, 0], high[:, 0], (flat == low).double().mean(1)]
    if values.ndim == 4 and min(values.shape[2:]) > 2:
        for step in (1, 2):
            for axis in (2, 3):
                change = values.narrow(axis, step, values.shape[axis] - step)
                change = change - values.narrow(axis, 0, values.shape[axis] - step)
                traits.append((change.square().flatten(1).mean(1) + 1e-12).log())
        sides = min(_SIDE, values.shape[2]), min(_SIDE, values.shape[3])
        content = functional.adaptive_avg_pool2d(values, sides).flatten(1)
    elif values.ndim == 2 and not inputs.is_floating_point():
        # indices, such as tokens: their size says nothing, how often each occurs does
        kinds = torch.arange(_KINDS)
        content = torch.stack([(row[:, None] == kinds).double().mean(0) for row in values.long() % _KINDS])
    else:
        content = flat
    if content.shape[1] > _VALUES:  # a fixed projection keeps distances
        generator = torch.Generator().manual_seed(0)
        content = content @ torch.randn(content.shape[1], _VALUES, generator=generator, dtype=torch.float64)
        content /= math.sqrt(_VALUES)
    return torch.cat([torch.stack(traits, 1), content], 1)


def told_apart(first: Tensor, second: Tensor) -> Roc:
    """How well a ridge classifier, fitted on four fifths, tells the rest of two sets [n, t], [k, t] apart."""
    both = torch.cat([first, second])
    if min(len(first), len(second)) < 2 * FOLDS:  # too few to fit and to judge
        return roc(torch.zeros(len(first)), torch.zeros(len(second)))
    both = (both - both.mean(0)) / both.std(0).clamp(min=1e-9)
    both = torch.cat([both, torch.ones(len(both), 1, dtype=both.dtype)], 1)
    is_first = torch.arange(len(both)) < len(first)
    # each set counts the same, however large it is
    weight = torch.where(is_first, 0.5 / len(first), 0.5 / len(second)).to(both.dtype)
    aim = torch.where(is_first, 1.0, -1.0).to(both.dtype)
    generator = torch.Generator().manual_seed(0)
    fold = torch.empty(len(both), dtype=torch.int64)
    for some in (is_first, ~is_first):
        order = torch.randperm(int(some.sum()), generator=generator)
        fold[some] = order % FOLDS
    scores = torch.zeros(len(both), dtype=both.dtype)
    ridge = both.shape[1] / len(both) * torch.eye(both.shape[1], dtype=both.dtype)
    for part in range(FOLDS):
        fitted, judged = fold != part, fold == part
        weighted = both[fitted] * weight[fitted, None]
        solved = torch.linalg.solve(weighted.T @ both[fitted] + ridge, weighted.T @ aim[fitted])
        scores[judged] = both[judged] @ solved
    return roc(scores[is_first], scores[~is_first])


def _labels_p(first: Tensor, second: Tensor) -> float:
    from scipy.stats import chi2_contingency

    kinds = int(max(first.max(), second.max())) + 1
    counts = torch.stack([torch.bincount(some, minlength=kinds) for some in (first, second)])
    counts = counts[:, counts.sum(0) > 0]
    if counts.shape[1] < 2:
        return 1.0
    return float(chi2_contingency(counts.numpy()).pvalue)
