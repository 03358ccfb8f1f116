"""What training under defences gave: rows of numbers, their table and frontier, and a page for people."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engram.core.runs import versions
from engram.defences.exposure import Exposure
from engram.defences.record import frontier_chart
from engram.defences.training import DEFENCES
from engram.render.html import Cell, Page, Section, Table, Tile


@dataclass(frozen=True, kw_only=True)
class DefenceRow:
    """One training under one defence, audited."""

    defence: str
    says: str
    seed: int
    exposure: Exposure
    unseen: Exposure | None
    """The same of records that training never saw: what the tool reports of nothing."""
    epsilon_bound: float | None
    """The accountant's epsilon, which the lower bound must not exceed."""
    n: int
    training_seconds: float

    @property
    def key(self) -> str:
        return f"{self.defence}/{self.seed}"

    @property
    def violates(self) -> bool:
        """Whether the attack found more than the accountant allows: a bug in one of the two."""
        return self.epsilon_bound is not None and self.exposure.epsilon > self.epsilon_bound

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "exposure": self.exposure.to_json(),
            "unseen": None if self.unseen is None else self.unseen.to_json(),
            "violates": self.violates,
        }

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> DefenceRow:
        def exposure(one: dict[str, Any] | None) -> Exposure | None:
            return None if one is None else Exposure(**{name: one[name] for name in Exposure.__dataclass_fields__})

        known = {name: told[name] for name in cls.__dataclass_fields__ if name in told}
        found = exposure(told["exposure"])
        assert found is not None
        return cls(**{**known, "exposure": found, "unseen": exposure(told["unseen"])})


@dataclass(frozen=True, eq=False)
class DefenceTable:
    """All rows of a target, by defence."""

    target: str
    says: str
    rows: tuple[DefenceRow, ...]
    command: str | None = None

    def by_defence(self) -> dict[str, list[DefenceRow]]:
        found: dict[str, list[DefenceRow]] = {}
        for row in self.rows:
            found.setdefault(row.defence, []).append(row)
        return found

    def means(self) -> dict[str, Exposure]:
        """Of every defence the mean over its seeds; images are rounded."""
        return {name: mean_exposure([row.exposure for row in rows]) for name, rows in self.by_defence().items()}

    @property
    def frontier(self) -> list[str]:
        """The defences that no other one beats in both accuracy and members identified, best accuracy first."""
        best: list[str] = []
        lowest = float("inf")
        for name, one in sorted(self.means().items(), key=lambda item: (-item[1].accuracy, item[1].members)):
            if one.members < lowest:
                best.append(name)
                lowest = one.members
        return best

    @property
    def sentence(self) -> str:
        means = self.means()
        plain = means.get("none")
        ways = [name for name in self.frontier if name != "none"]
        if plain is None or not ways:
            return f"{len(self.rows)} models of {self.target} were trained and attacked."
        best = min(ways, key=lambda name: (means[name].members, -means[name].accuracy))
        named = DEFENCES[best].says if best in DEFENCES else best
        return (
            f"Without a defence {plain.members:.0%} of the records are identified, at a held-out accuracy of "
            f"{plain.accuracy:.1%}; {named} leaves {means[best].members:.1%}, at {means[best].accuracy:.1%}. "
            f"{len(ways)} of {len(means)} ways are on the frontier."
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "kind": "defences",
            "target": self.target,
            "says": self.says,
            "sentence": self.sentence,
            "rows": [row.to_json() for row in self.rows],
            "means": {name: one.to_json() for name, one in self.means().items()},
            "frontier": self.frontier,
            "violations": [row.key for row in self.rows if row.violates],
            "versions": versions(),
            "command": self.command,
        }

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = [name for name in Exposure.__dataclass_fields__ if name != "seconds"]
        writer.writerow(["defence", "seed", "n", "epsilon_bound", "unseen_auc", *names])
        for row in self.rows:
            unseen = None if row.unseen is None else row.unseen.auc
            values = [getattr(row.exposure, name) for name in names]
            writer.writerow([row.defence, row.seed, row.n, row.epsilon_bound, unseen, *values])
        return text.getvalue()


def mean_exposure(found: Sequence[Exposure]) -> Exposure:
    """The mean of every number that all of them have."""

    def mean(name: str) -> Any:
        values = [getattr(one, name) for one in found]
        if any(value is None for value in values):
            return None
        middle = statistics.fmean(values)
        return round(middle) if isinstance(values[0], int) else middle

    return Exposure(**{name: mean(name) for name in Exposure.__dataclass_fields__})


ROW_HEADS = (
    "defence",
    "held-out accuracy",
    "training accuracy",
    "members identified",
    "spread",
    "at 1 % false alarms",
    "AUC",
    "epsilon, at least",
    "epsilon, at most",
    "images (held-out)",
    "AUC of unseen records",
)


def defence_page(table: DefenceTable) -> Page:
    """The page of `engram defend`."""
    means = table.means()
    rows: list[list[Cell]] = []
    for name, own in table.by_defence().items():
        one = means[name]
        members = [row.exposure.members for row in own]
        bounds = [row.epsilon_bound for row in own if row.epsilon_bound is not None]
        unseen = [row.unseen.auc for row in own if row.unseen is not None]
        rows.append(
            [
                own[0].says,
                one.accuracy,
                one.train_accuracy,
                one.members,
                f"{min(members):.1%} to {max(members):.1%}",
                one.members_at_1,
                one.auc,
                one.epsilon,
                max(bounds) if bounds else None,
                None if one.images is None else f"{one.images} ({one.held_out_images})",
                statistics.fmean(unseen) if unseen else None,
            ]
        )
    private = [row for row in table.rows if row.epsilon_bound is not None]
    said = [f"Means over {max(map(len, table.by_defence().values()))} seeds; the spread is over seeds."]
    if private:
        broken = sum(row.violates for row in private)
        said.append(
            f"In {len(private) - broken} of {len(private)} trainings by DP-SGD the attack's lower bound of "
            "epsilon is below the accountant's upper bound, as it must be."
        )
    risky = {name: one for name, one in means.items() if name != "none"}
    chart = frontier_chart(
        "Risk against accuracy",
        {"without a defence": [means["none"]] if "none" in means else [], "with one": list(risky.values())},
        [means[name] for name in table.frontier],
    )
    return Page(
        title=f"{table.target}: what each defence costs, and what it gives",
        outcome="accepted" if not any(row.violates for row in table.rows) else "not accepted",
        sentence=table.sentence,
        tiles=[
            Tile("models trained and attacked", str(len(table.rows)), table.says),
            Tile("on the frontier", str(len(table.frontier)), ", ".join(table.frontier)),
        ],
        sections=[
            Section(
                "table", "Risk and accuracy", said, [chart], tables=[Table(ROW_HEADS, rows, "", sortable=True)]
            ),
            Section("limits", "What the numbers do not say", DEFEND_LIMITS),
            Section(
                "reproduce",
                "Settings and how to reproduce",
                tables=[Table(("software", "version"), list(versions().items()), "Versions")],
                code=[] if table.command is None else [table.command],
            ),
        ],
        product="engram defend",
    )


DEFEND_LIMITS = (
    "A defence that leaves less to this attack is not a proof; only DP-SGD bounds every attack, by its epsilon.",
    "Accuracies and risks are of this target. Train your own model under the defences with engram.defend(train).",
    "The last column asks the same tests about records that training never saw: 0.5 means that nothing is "
    "reported of them.",
)
