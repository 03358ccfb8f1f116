"""`harden`: mend a model that exists until the attack finds no more than its owner accepts, at the least cost.

Of every kind of mend the gentlest form is looked for that the owner accepts, judged by who can be identified as a
member. Those found are then attacked in full, the most accurate first, until one holds.
Every judgement is a new attack on the mended weights, by an attacker who may know how they were mended.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from engram.auditing.comparison import Samples
from engram.core import files
from engram.core.errors import CheckpointError, ConfigError, require
from engram.core.loop import Progress, part, silent
from engram.data.sets import ImageSet
from engram.defences.exposure import Exposure, Opened, Subject, Wish, distinct, worst
from engram.defences.mends import families, parse_mend
from engram.defences.record import ENOUGH, Hardening, Parts, Point, found_notes
from engram.defences.weights import Mend, Mended, Public
from engram.members.layers import readable_layers
from engram.models.open.door import Model, model_name

ACCEPT = "members identified <= 5%, images = 0"
SEARCH_FILE = "search.json"


@dataclass(eq=False)
class Search:
    """Judges mends of one model, each once; what was judged survives a kill."""

    model: nn.Module
    subject: Subject
    parts: Parts
    wish: Wish
    seed: int = 0
    seconds: float | None = None
    name: str = ""
    directory: Path | None = None
    key: str = ""
    precision: torch.dtype | None = None
    progress: Progress = silent
    points: dict[tuple[str, bool], Point] = field(default_factory=dict)

    @property
    def public(self) -> Public:
        return Public(self.subject.inputs(self.parts.public), self.parts.public.labels, self.subject.task)

    def resume(self) -> None:
        """Read what an earlier part of the run judged."""
        path = None if self.directory is None else self.directory / SEARCH_FILE
        if path is None or not path.exists():
            return
        stored = files.read_json(path)
        if not isinstance(stored, dict) or stored.get("key") != self.key:
            raise CheckpointError(
                f"{path} belongs to another model, other records or other settings; choose another directory"
            )
        try:
            for one in stored["points"]:
                told = {name: one["exposure"][name] for name in Exposure.__dataclass_fields__}
                point = Point(one["kind"], one["mend"], Exposure(**told), one["whole"])
                self.points[point.mend, point.whole] = point
        except (LookupError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged ({error!r}); choose another directory with -o") from error

    def mended(self, mend: Mend) -> Mended:
        """The mend's result in the precision in which it will be published."""
        found = mend.apply(self.model, self.public, self.seed)
        if self.precision is not None:
            with torch.no_grad():
                for value in found.model.parameters():
                    value.copy_(value.to(self.precision))
        return found

    def judged(self, kind: str, mend: Mend) -> Point:
        """By who is identified among the controls that choose."""
        if (mend.text, False) not in self.points:
            found = [self.subject.members(one, self.parts.choosing) for one in self.mended(mend).readings()]
            self._keep(Point(kind, mend.text, worst(found)))
        return self.points[mend.text, False]

    def attacked(self, kind: str, mend: Mend, report: str) -> Point:
        """By the whole audit, on the controls that judge; that of the model as it is is kept as a `report`."""
        if (mend.text, True) not in self.points:
            readings, found = self.mended(mend).readings(), []
            seen: list[nn.Module] = []
            for place, one in enumerate(readings):
                if self.wish.wants_images and not _same(one, seen):
                    within = part(self.progress, place / len(readings), (place + 1) / len(readings))
                    kept = None if place or self.directory is None else _emptied(self.directory / report)
                    found.append(
                        self.subject.attacked(
                            one,
                            self.parts.judging,
                            seconds=self.seconds,
                            name=f"{self.name}, {mend.text}",
                            directory=kept,
                            progress=within,
                        )
                    )
                else:
                    found.append(self.subject.members(one, self.parts.judging))
                seen.append(one)
            self._keep(Point(kind, mend.text, worst(found), whole=True))
        return self.points[mend.text, True]

    def _keep(self, point: Point) -> None:
        self.points[point.mend, point.whole] = point
        if self.directory is not None:
            stored = {"schema_version": 1, "key": self.key, "points": list(map(asdict, self.points.values()))}
            files.write_json(self.directory / SEARCH_FILE, stored)

    def gentlest(self, kind: str, ladder: Sequence[Mend], wish: Wish) -> int | None:
        """The first rung from which on the wish holds, by halving; None if not even the strongest is enough.

        With few controls the numbers jump from rung to rung, and are quick to get: then it is the first of all.
        """
        if len(self.parts.choosing) < ENOUGH // 2:
            accepted = (wish.holds(self.judged(kind, one).exposure) for one in ladder)
            return next((rung for rung, holds in enumerate(accepted) if holds), None)
        if not wish.holds(self.judged(kind, ladder[-1]).exposure):
            return None
        low, high = 0, len(ladder) - 1
        while low < high:
            middle = (low + high) // 2
            if wish.holds(self.judged(kind, ladder[middle]).exposure):
                high = middle
            else:
                low = middle + 1
        return high

    def best(self, ladders: Sequence[tuple[str, Sequence[Mend]]], before: Exposure) -> tuple[Mend, Point] | None:
        """The mend that is worth most among those that the owner accepts, attacked in full."""
        quick = self.wish.without_images()
        waiting: list[tuple[str, Sequence[Mend], int]] = []
        for place, (kind, ladder) in enumerate(ladders):
            self.progress(f"trying {kind}", 0.7 * place / len(ladders))
            if (rung := self.gentlest(kind, ladder, quick)) is not None:
                waiting.append((kind, ladder, rung))
        while waiting:
            points = [self.judged(kind, ladder[rung]) for kind, ladder, rung in waiting]
            waiting = _by_worth(waiting, points, generalises=before.generalises(self.subject.task))
            kind, ladder, rung = waiting.pop(0)
            self.progress(f"attacking after {ladder[rung].text}", 0.7)
            point = self.attacked(kind, ladder[rung], "after")
            if self.wish.holds(point.exposure):
                return ladder[rung], point
            stronger = next(
                (
                    place
                    for place in range(rung + 1, len(ladder))
                    if quick.holds(self.judged(kind, ladder[place]).exposure)
                ),
                None,
            )
            if stronger is not None:
                waiting.append((kind, ladder, stronger))
        return None


def _by_worth(
    waiting: Sequence[tuple[str, Sequence[Mend], int]], points: Sequence[Point], *, generalises: bool
) -> list[tuple[str, Sequence[Mend], int]]:
    """Most accurate first. Those within a standard error of the best are alike on held-out records; of these the
    one that is best on the training records comes first. A model that does no better on held-out records than a
    guess is worth what it knows of its training records."""
    top = max(point.exposure.accuracy for point in points)
    error = math.sqrt(top * (1 - top) / points[0].exposure.controls)

    def worth(pair: tuple[Any, Point]) -> tuple[bool, float]:
        found = pair[1].exposure
        alike = not generalises or found.accuracy >= top - error
        return not alike, -found.train_accuracy if alike else -found.accuracy

    return [one for one, _ in sorted(zip(waiting, points, strict=True), key=worth)]


def _emptied(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    return directory


def _same(model: nn.Module, others: Sequence[nn.Module]) -> bool:
    """Whether another model has the same weights, so that an attack on them would find the same images."""
    own = [layer.weight for layer in readable_layers(model).values()]
    return any(
        all(torch.equal(a, b.weight) for a, b in zip(own, readable_layers(one).values(), strict=True))
        for one in others
    )


@dataclass(frozen=True)
class Untouched:
    """The model as it is."""

    text: ClassVar[str] = "as it is"

    def apply(self, model: nn.Module, public: Public, seed: int) -> Mended:
        return Mended(model)


def chosen_ladders(only: str | None) -> list[tuple[str, tuple[Mend, ...]]]:
    """All kinds of mends, those named in `only`, or a single mend with its strength.

    >>> [kind for kind, _ in chosen_ladders("noise, rank")]
    ['noise', 'rank']
    >>> chosen_ladders("directions 80% + tune 20 epochs")[0][1][0].text
    'directions 80% + tune 20 epochs'
    """
    known = dict(families())
    if only is None:
        return list(known.items())
    chosen: dict[str, tuple[Mend, ...]] = {}
    for name in (" ".join(one.split()) for one in only.split(",")):
        if name in known:
            chosen[name] = known[name]
            continue
        try:
            mend = parse_mend(name)
        except ConfigError as error:
            raise ConfigError(f"{error}; or a kind: {', '.join(known)}") from None
        chosen[mend.text] = (mend,)
    return list(chosen.items())


def harden(
    model: nn.Module | Model,
    train: Samples,
    held_out: Samples,
    *,
    public: Samples | None = None,
    accept: str = ACCEPT,
    only: str | None = None,
    seconds: float | None = 60.0,
    seed: int = 0,
    precision: torch.dtype | None = None,
    input_shape: Sequence[int] | str | None = None,
    task: str | None = None,
    arch: str | None = None,
    activation: str | None = None,
    normalize: Any = None,
    head: str | None = None,
    mean: str = "auto",
    directory: Path | None = None,
    resume: bool = False,
    progress: Progress = silent,
    name: str | None = None,
    command: str | None = None,
) -> Hardening:
    """Mend a model until the attack finds no more than `accept`, at the least cost in accuracy.

    model       any module, or what `engram.open_view` opens, with its input_shape, task, arch, ...
    train       (images [n, *shape] with pixels in [0, 1], labels [n]) that the model was trained on
    held_out    the same for records that it never saw: the control, several hundred if possible
    public      records of the same kind that may be known, to mend with; default: half of `held_out`
    accept      bounds on what the attack may find, e.g. "members identified <= 5%, images = 0"
    only        kinds of mends or single mends to try, e.g. "directions, tune" or "noise 0.5"
    seconds     time for each attack that reconstructs images
    precision   of the weights that will be published, if lower than that of the model
    directory   where the reports before and after, and what was tried, are written, so that it can `resume`
    """
    wish, ladders = Wish.parse(accept), chosen_ladders(only)
    told = name or (type(model).__name__ if isinstance(model, nn.Module) else model_name(model))
    opened = Opened.of(
        model,
        _shape_of(train) if input_shape is None else input_shape,
        task=task,
        arch=arch,
        activation=activation,
        normalize=normalize,
        head=head,
    )
    sets = {"train": train, "held_out": held_out, **({} if public is None else {"public": public})}
    records = distinct({name: opened.records(samples, name) for name, samples in sets.items()})
    parts = Parts.of(records["held_out"], records.get("public"), seed)
    subject = opened.subject(records["train"], records["held_out"], task, mean)
    if opened.view is None and wish.wants_images:
        wish = wish.without_images()
        require(len(wish.bounds) > 0, "accept", "bounds images alone", accept, f"but {opened.reason}")
    search = Search(
        opened.module,
        subject,
        parts,
        wish,
        seed,
        seconds,
        told,
        None if directory is None else files.prepare_directory(directory),
        _key(opened.module, records, wish, seconds, seed),
        precision,
        part(progress, 0.1, 1.0),
    )
    if resume:
        search.resume()
    progress("attacking the model as it is", 0.0)
    before = search.attacked("", Untouched(), "before").exposure
    untouched = search.points[Untouched.text, True]
    found = (Untouched(), untouched) if wish.holds(before) else search.best(ladders, before)
    mend, mended = (None, None) if found is None else (found[0].text, search.mended(found[0]).model)
    notes = () if opened.reason is None else (f"Images were not attacked: {opened.reason}.",)
    return Hardening(
        name=told,
        wish=wish,
        before=before,
        after=None if found is None else found[1].exposure,
        mend=mend,
        model=None if mended is None else opened.filled(mended),
        changes=() if mended is None else changed_tensors(opened.module, mended),
        task=subject.task,
        points=tuple(point for point in search.points.values() if point.mend != Untouched.text),
        parts=parts,
        preprocessing=subject.preprocessing,
        seed=seed,
        notes=(*notes, *found_notes(parts, before, mend, subject.task)),
        command=command,
    )


def changed_tensors(before: nn.Module, after: nn.Module) -> tuple[tuple[Tensor, Tensor], ...]:
    """Pairs of the tensors of two modules with the same layers that differ."""
    new = after.state_dict()
    pairs = ((value, new[name]) for name, value in before.state_dict().items())
    return tuple((one, other) for one, other in pairs if not torch.equal(one, other))


def _shape_of(samples: Samples) -> tuple[int, ...]:
    images = samples.images if isinstance(samples, ImageSet) else torch.as_tensor(samples[0])
    return tuple(images.shape[1:])


def _key(module: nn.Module, records: Mapping[str, ImageSet], wish: Wish, seconds: float | None, seed: int) -> str:
    """Of all that the search depends on."""
    digest = hashlib.sha256(repr((wish.text, seconds, seed, sorted(records))).encode())
    tensors = [*module.state_dict().values()]
    tensors += [value for one in records.values() for value in (one.images, one.labels)]
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
