"""One experiment as a person reads it: the tables that its JSON makes, with ours beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engram.experiments.experiment import AS_PUBLISHED
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
CLAIM_HEADS = ("what", "paper", "here", "beside the paper")


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
        cells = [[claim[name] for name in ("what", "paper", "here", "beside")] for claim in record["claims"]]
        tables.append(Table(CLAIM_HEADS, cells, "What the paper says"))
    cuts = [f"{cut}." for cut in record["cuts"]]
    cuts += [f"{row['preset']}: {'; '.join(row['cuts'])}." for row in rows if row["cuts"]]
    return Chapter(record, tables, cuts)


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
        accuracy_remark(paper["accuracy"], here["test_accuracy"], row["cuts"]),
    ]


def accuracy_remark(paper: float | None, here: float | None, cuts: Sequence[str]) -> str | None:
    """How the test accuracy compares, and where it falls short what was cut.

    >>> accuracy_remark(0.78, 0.775, []), accuracy_remark(0.78, 0.81, [])
    ('as published', '3.0 points above')
    >>> accuracy_remark(0.78, 0.70, ["fewer epochs"])
    '8.0 points short; cut: fewer epochs'
    """
    if paper is None or here is None:
        return None
    if abs(here - paper) <= ACCURACY_TOLERANCE:
        return AS_PUBLISHED
    if here > paper:
        return f"{100 * (here - paper):.1f} points above"
    return f"{100 * (paper - here):.1f} points short" + (f"; cut: {'; '.join(cuts)}" if cuts else "")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"
