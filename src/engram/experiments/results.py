"""The papers' numbers beside ours, as Markdown and as a page; made from the JSON of experiments alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engram.experiments.records import GOOD, NEAR
from engram.report.html import Cell, Table

Record = Mapping[str, Any]
ACCURACY_TOLERANCE = 0.02
COUNT_HEADS = (
    "target",
    "n",
    "network",
    "good",
    "held-out",
    "from noise",
    "NCC > 0.8 (held-out)",
    "top-10 SSIM",
    "candidates",
    "training s",
    "attack s",
)
QUALITY_HEADS = (
    "target",
    "train loss: paper",
    "here",
    "test accuracy: paper",
    "here",
    "test loss: paper",
    "here",
    "beside the paper",
)
CLAIM_HEADS = ("what", "paper", "here")


@dataclass(frozen=True)
class Chapter:
    """One experiment as a person reads it."""

    record: Record
    tables: Sequence[Table]
    notes: Sequence[str]

    @property
    def title(self) -> str:
        return f"{self.record['id']}: {self.record['title']}"


def chapter(record: Record) -> Chapter:
    """Tables and notes of one record."""
    if record["failed"] is not None:
        return Chapter(record, (), (f"Failed: {record['failed']}",))
    rows = record["rows"]
    tables = [Table(COUNT_HEADS, [_count_cells(row) for row in rows], "Images that came back, beside their nulls")]
    published = [row for row in rows if any(value is not None for value in row["published"].values())]
    if published:
        cells = [_quality_cells(row) for row in published]
        tables.append(Table(QUALITY_HEADS, cells, "The targets: paper and here"))
    if record["claims"]:
        cells = [[claim["what"], claim["paper"], claim["here"]] for claim in record["claims"]]
        tables.append(Table(CLAIM_HEADS, cells, "What the paper says"))
    cuts = [f"{cut}." for cut in record["cuts"]]
    cuts += [f"{row['preset']}: {'; '.join(row['cuts'])}." for row in rows if row["cuts"]]
    return Chapter(record, tables, cuts)


def markdown(records: Sequence[Record], trends: Table | None) -> str:
    """The whole of docs/results.md."""
    parts = ["# Results", _preamble(records)]
    if trends is not None:
        parts += ["## Published trends", _markdown_table(trends)]
    for one in map(chapter, records):
        parts += [f"## {one.title}", f"`{one.record['command']}`, commit {one.record['commit'] or 'unknown'}"]
        parts += [_markdown_table(table) for table in one.tables]
        if one.notes:
            parts.append("\n".join(f"- {note}" for note in one.notes))
    return "\n\n".join(parts) + "\n"


def _preamble(records: Sequence[Record]) -> str:
    scales = ", ".join(sorted({record["scale"] for record in records}))
    seconds = sum(seconds_by_case(records).values())
    lines = [
        "Made by `engram reproduce results` from the JSON of the runs; not edited by hand.",
        f"{len(records)} experiments at scale {scales}, {seconds / 3600:.1f} hours of training and attacks.",
        "Good is SSIM > 0.4 (points of the plane: within 0.1). Held-out counts the same for images that the "
        "network never saw; what was recovered is what goes beyond. The papers print no such null.",
    ]
    if "smoke" in scales:
        lines.append("Scale smoke shows that everything runs; its numbers mean nothing.")
    return " ".join(lines)


def seconds_by_case(records: Sequence[Record]) -> dict[str, float]:
    """Cases are shared, so each counts once."""
    rows = (row for record in records if record["failed"] is None for row in record["rows"])
    return {row["key"]: row["training"]["seconds"] + row["attack_seconds"] for row in rows}


def _count_cells(row: Record) -> list[Cell]:
    counts = row["counts"]
    good, alike = counts[GOOD if GOOD in counts else NEAR], counts.get("ncc>0.8")
    seconds = f"{row['attack_seconds']:.0f}" + (" or more" if row["resumed"] else "")
    return [
        f"{row['preset']} ({row['attack']})",
        row["n"],
        row["network"],
        good["train"],
        good["held_out"],
        good["noise"],
        None if alike is None else f"{alike['train']} ({alike['held_out']})",
        row["top10"] if GOOD in counts else None,
        row["candidates"],
        round(row["training"]["seconds"]),
        seconds,
    ]


def _quality_cells(row: Record) -> list[Cell]:
    paper, here = row["published"], row["training"]
    return [
        row["preset"],
        paper["loss"],
        here["loss"],
        _percent(paper["accuracy"]),
        _percent(here["test_accuracy"]),
        paper["test_loss"],
        here["test_loss"],
        _remark(paper["accuracy"], here["test_accuracy"], row["cuts"]),
    ]


def _remark(paper: float | None, here: float | None, cuts: Sequence[str]) -> str | None:
    """How the test accuracy compares, and where it falls short what was cut.

    >>> _remark(0.78, 0.775, []), _remark(0.78, 0.81, []), _remark(0.78, 0.70, ["fewer epochs"])
    ('as published', '3.0 points above', '8.0 points short; cut: fewer epochs')
    """
    if paper is None or here is None:
        return None
    if abs(here - paper) <= ACCURACY_TOLERANCE:
        return "as published"
    if here > paper:
        return f"{100 * (here - paper):.1f} points above"
    return f"{100 * (paper - here):.1f} points short" + (f"; cut: {'; '.join(cuts)}" if cuts else "")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"


def _markdown_table(table: Table) -> str:
    from engram.report.html.render import shown

    def line(cells: Sequence[Cell]) -> str:
        return "| " + " | ".join(shown(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(table.heads), "|" + "---|" * len(table.heads), *map(line, table.rows)])
