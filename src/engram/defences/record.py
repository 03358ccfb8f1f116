"""What defences gave: a mend and what was tried on the way, as numbers for programs and as a page for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from engram.auditing.preprocessing import Preprocessing
from engram.core.errors import require
from engram.core.runs import versions
from engram.data.sets import ImageSet
from engram.defences.exposure import Exposure, Wish
from engram.members.layers import as_fed
from engram.models.tasks import Task
from engram.render.html import Page, Section, Table, Tile
from engram.render.svg import Axis, Chart, Series

Worth = Literal["accuracy", "train_accuracy"]
ENOUGH = 200
"""With this many held-out records, one half of the controls chooses and the other half judges."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Held-out records by what they are used for; public ones are not controls, since mends learn from them."""

    public: ImageSet
    choosing: ImageSet
    judging: ImageSet

    @classmethod
    def of(cls, held_out: ImageSet, public: ImageSet | None, seed: int = 0) -> Parts:
        """Without public records, half of the held-out ones are; no record is in two parts, except that few
        controls both choose and judge."""
        require(len(held_out) >= 4, "held_out", "must contain at least 4 records", len(held_out), "give more")
        order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(seed))
        if public is None:
            half = len(held_out) // 2
            public, order = held_out.take(order[:half].sort().values), order[half:]
        if len(order) < ENOUGH:
            own = held_out.take(order.sort().values)
            return cls(public, own, own)
        middle = len(order) // 2
        first, second = order[:middle].sort().values, order[middle:].sort().values
        return cls(public, held_out.take(first), held_out.take(second))


@dataclass(frozen=True)
class Point:
    """A mend that was tried: its kind, its text, and how exposed the records are after it."""

    kind: str
    mend: str
    exposure: Exposure
    whole: bool = False
    """Whether it was attacked in full, on the controls that judge."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "mend": self.mend, "whole": self.whole, **self.exposure.to_json()}


@dataclass(frozen=True, eq=False)
class Hardening:
    """What `harden` found; `model` is the mended model, None if nothing that was tried is accepted."""

    name: str
    wish: Wish
    before: Exposure
    after: Exposure | None
    mend: str | None
    model: nn.Module | None
    changes: tuple[tuple[Tensor, Tensor], ...]
    """Every tensor of the model that was changed, before and after."""
    task: Task
    points: tuple[Point, ...]
    parts: Parts
    preprocessing: Preprocessing
    seed: int
    notes: tuple[str, ...] = ()
    command: str | None = None
    written: str | None = None
    """The file that was written, and ..."""
    written_accuracy: float | None = None
    """... the held-out accuracy of the model in it, opened again."""

    @torch.no_grad()
    def accuracy_of(self, module: nn.Module) -> float:
        """Of a module that takes what the model takes, on the controls that judge."""
        records = self.parts.judging
        outputs = module(as_fed(module, self.preprocessing(records.images)))
        return float(self.task.correct(outputs.reshape(len(records), -1), records.labels).double().mean())

    @property
    def reached(self) -> bool:
        return self.after is not None

    @property
    def cost(self) -> float | None:
        """Points of held-out accuracy that were lost, in [0, 1]; negative for a gain."""
        return None if self.after is None else self.before.accuracy - self.after.accuracy

    @property
    def sentence(self) -> str:
        if self.after is None or self.cost is None:
            return f"Not reached: none of the {len(self.points)} mends that were tried gives {self.wish.text}."
        if not self.points:
            return (
                f"Accepted as it is: {self.before.members:.1%} of the records are identified, at a held-out "
                f"accuracy of {self.before.accuracy:.1%}. Nothing was changed."
            )
        change = f"{abs(100 * self.cost):.1f} points {'lower' if self.cost > 0 else 'higher'}"
        return (
            f"Reached with {self.mend}: {self.after.members:.1%} of the records are identified instead of "
            f"{self.before.members:.0%}{_images(self.before, self.after)}; held-out accuracy "
            f"{self.after.accuracy:.1%} instead of {self.before.accuracy:.1%} ({change}), on the training records "
            f"{self.after.train_accuracy:.1%} instead of {self.before.train_accuracy:.1%}."
        )

    @property
    def worth(self) -> Worth:
        """Which accuracy counts: a model that does no better than a guess on held-out records is worth what it
        knows of its training records."""
        return "accuracy" if self.before.generalises(self.task) else "train_accuracy"

    @property
    def frontier(self) -> list[Point]:
        """The points that no other one beats in both accuracy and members identified, best accuracy first."""
        best: list[Point] = []
        for point in sorted(self.points, key=lambda one: (-self._worth(one), one.exposure.members)):
            if not best or point.exposure.members < best[-1].exposure.members:
                best.append(point)
        return best

    def _worth(self, point: Point) -> float:
        return float(getattr(point.exposure, self.worth))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "kind": "hardening",
            "model": self.name,
            "accept": self.wish.text,
            "reached": self.reached,
            "sentence": self.sentence,
            "mend": self.mend,
            "seed": self.seed,
            "before": self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
            "accuracy_lost": self.cost,
            "points": [point.to_json() for point in self.points],
            "frontier": [point.mend for point in self.frontier],
            "records": {
                "public": {"name": self.parts.public.name, "records": len(self.parts.public)},
                "choosing": len(self.parts.choosing),
                "judging": len(self.parts.judging),
                "judged_apart": self.parts.choosing is not self.parts.judging,
            },
            "preprocessing": self.preprocessing.described,
            "notes": list(self.notes),
            "written": self.written,
            "written_accuracy": self.written_accuracy,
            "versions": versions(),
            "command": self.command,
        }


def _images(before: Exposure, after: Exposure) -> str:
    if before.images is None or after.images is None:
        return ""
    return f", {after.images} come back as images instead of {before.images}"


def improved(before: Exposure, after: Exposure) -> Iterator[tuple[str, str, str]]:
    """Row by row: what, before, after."""

    def count(value: int | None, held_out: int | None) -> str:
        return "not tried" if value is None else f"{value} ({held_out})"

    yield "members identified, no false alarm", f"{before.members:.1%}", f"{after.members:.1%}"
    yield "members identified, 1 % false alarms", f"{before.members_at_1:.1%}", f"{after.members_at_1:.1%}"
    yield "AUC", f"{before.auc:.3f}", f"{after.auc:.3f}"
    yield "epsilon, at least", f"{before.epsilon:.2f}", f"{after.epsilon:.2f}"
    yield (
        "images back (held-out)",
        count(before.images, before.held_out_images),
        count(after.images, after.held_out_images),
    )
    yield "held-out accuracy", f"{before.accuracy:.1%}", f"{after.accuracy:.1%}"
    yield "accuracy on the training records", f"{before.train_accuracy:.1%}", f"{after.train_accuracy:.1%}"


def found_notes(parts: Parts, before: Exposure, mend: str | None, task: Task) -> tuple[str, ...]:
    """What a reader has to know to read the numbers."""
    notes = [
        f"{len(parts.public):,} public records were used to mend, and are no controls; {len(parts.judging):,} "
        "other held-out records are."
    ]
    if parts.choosing is parts.judging:
        notes.append(
            f"There are fewer than {ENOUGH} controls, so the same ones chose the mend and judge it: the numbers "
            "after it are somewhat too good. Give more held-out records."
        )
    chance = 1 / (1 + len(parts.judging))
    notes.append(
        f"With {len(parts.judging):,} controls, chance alone identifies {chance:.1%} of the records on average."
    )
    if mend is not None and any(word in mend for word in ("tune", "distil", "relabel")):
        notes.append(
            "The mended model was trained on the public records. They are now its training records: use only ones "
            "that may be known."
        )
    if not before.generalises(task):
        notes.append(
            f"The model gets {before.accuracy:.0%} of the held-out records right, no better than a guess: it has "
            "learnt its training records by heart. So mends were chosen by the accuracy on those."
        )
    return tuple(notes)


def frontier_chart(
    title: str, groups: Mapping[str, Sequence[Exposure]], goal: Sequence[Exposure], worth: Worth = "accuracy"
) -> Chart:
    """Members identified against accuracy; down and right is where an owner wants to be."""

    def at(found: Sequence[Exposure]) -> list[float]:
        return [float(getattr(one, worth)) for one in found]

    every = [one for group in groups.values() for one in group]
    label = "held-out accuracy" if worth == "accuracy" else "accuracy on the training records"
    low, high = min(at([*every, *goal])), max(at([*every, *goal]))
    x = Axis(label, low, high if high > low else low + 0.01)
    y = Axis("members identified", 0, max(0.01, *(one.members for one in [*every, *goal])))
    series = [
        Series(name, at(group), [one.members for one in group], kind="dots", colour=place)
        for place, (name, group) in enumerate(groups.items())
    ]
    ordered = sorted(goal, key=lambda one: at([one]))
    line = Series("frontier", at(ordered), [one.members for one in ordered], kind="dashed", colour=4)
    summary = f"{len(every)} points; the frontier has {len(goal)}."
    return Chart(title, x, y, [*series, line], summary=summary)


HEADS = (
    "mend",
    "held-out accuracy",
    "training accuracy",
    "members identified",
    "at 1 % false alarms",
    "AUC",
    "epsilon",
    "images (held-out)",
    "accepted",
)
LIMITS = (
    "Not accepted means that this attack finds too much. Accepted means that it does not; a better attack may.",
    "Each mend was attacked anew: by an attacker who reads the weights as they are, and, where there is a way, by "
    "one who knows how they were mended and undoes what can be undone. The worse number counts.",
    "Whoever has the model as it was before gains nothing from a mended one being published later, and loses "
    "nothing either: publish only the mended one.",
)


def hardening_page(found: Hardening) -> Page:
    """The page of `engram harden`."""
    after = found.after
    tiles = [Tile("accepted", found.wish.text, "the owner's wish")]
    if after is not None:
        tiles += [
            Tile("members identified", f"{after.members:.1%}", f"{found.before.members:.0%} before"),
            Tile("held-out accuracy", f"{after.accuracy:.1%}", f"{found.before.accuracy:.1%} before"),
        ]
        if after.images is not None:
            tiles.append(
                Tile(
                    "images back",
                    f"{after.images}",
                    f"{found.before.images} before; control {after.held_out_images}",
                )
            )
    sections = [_change_section(found), _tried_section(found)]
    sections += [Section("notes", "What was used, and how sure it is", found.notes)]
    sections += [Section("limits", "What the numbers do not say", LIMITS), _settings_section(found)]
    return Page(
        title=f"{found.name}: mended",
        outcome="accepted" if found.reached else "not accepted",
        sentence=found.sentence,
        tiles=tiles,
        sections=sections,
        product="engram harden",
    )


def _change_section(found: Hardening) -> Section:
    if found.after is None:
        closest = min(found.points, key=lambda point: len(found.wish.broken(point.exposure)), default=None)
        said = (
            []
            if closest is None
            else [f"{closest.mend} misses it by {'; '.join(found.wish.broken(closest.exposure))}."]
        )
        return Section("change", "Nothing that was tried is enough", [*said, NEXT])
    return Section(
        "change",
        "Before and after",
        [
            f"The weights were changed once, by: {found.mend}. The audits are beside this report, in before and "
            "after."
        ],
        tables=[Table(("what", "before", "after"), list(improved(found.before, found.after)), "The whole attack")],
    )


NEXT = (
    "Accept more (--accept), give public records to learn from (--public), or train again under a defence that "
    "bounds what any record can leave in the weights: `engram defend`."
)


def _tried_section(found: Hardening) -> Section:
    rows = [
        (
            point.mend + (", in full" if point.whole else ""),
            *exposure_cells(point.exposure),
            found.wish.holds(point.exposure) if point.whole else found.wish.without_images().holds(point.exposure),
        )
        for point in sorted(found.points, key=lambda one: -found._worth(one))
    ]
    kinds: dict[str, list[Exposure]] = {"as it is": [found.before]}
    for point in found.points:
        kinds.setdefault("mended", []).append(point.exposure)
    return Section(
        "tried",
        "What each mend costs, and what it gives",
        ["Of every kind, several strengths were tried. The frontier is what no other point beats in both."],
        [frontier_chart("Risk against accuracy", kinds, [one.exposure for one in found.frontier], found.worth)],
        tables=[Table(HEADS, rows, "Most accurate first", sortable=True)],
    )


def exposure_cells(one: Exposure) -> tuple[float | str | None, ...]:
    """The cells of a row: accuracies, members, AUC, epsilon, images."""
    images = None if one.images is None else f"{one.images} ({one.held_out_images})"
    return (one.accuracy, one.train_accuracy, one.members, one.members_at_1, one.auc, one.epsilon, images)


def _settings_section(found: Hardening) -> Section:
    rows = [
        ("accepted", found.wish.text),
        ("mend", found.mend or "none"),
        ("seed", str(found.seed)),
        ("preprocessing", found.preprocessing.described),
        ("written", found.written or "nothing"),
    ]
    return Section(
        "reproduce",
        "Settings and how to reproduce",
        tables=[
            Table(("setting", "value"), rows, "What was asked"),
            Table(("software", "version"), list(versions().items()), "Versions"),
        ],
        code=[] if found.command is None else [found.command],
    )
