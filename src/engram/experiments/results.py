"""docs/results.md: the papers' numbers beside ours, made from the JSON of experiments alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from engram.experiments.chapters import Record, accuracy_remark, chapter
from engram.experiments.experiment import AS_PUBLISHED
from engram.experiments.searched import SEARCH_COMMAND, search_notes, search_table
from engram.report.html import Cell, Table


def markdown(
    records: Sequence[Record],
    trends: Table | None,
    figures: Mapping[str, Sequence[tuple[str, bool]]],
    search: dict[str, Any] | None = None,
) -> str:
    """The whole of docs/results.md.

    `figures` has for each id the names of its figures and whether each lies in the folder `figures` beside it;
    `search` is what `searched.read_search` found.
    """
    parts = ["# Results", _preamble(records), "## Beside the papers", _bullets(beside(records))]
    if trends is not None:
        parts += ["## Published trends", _markdown_table(trends)]
    for one in map(chapter, records):
        parts += [f"## {one.title}", f"`{one.record['command']}`, commit {', '.join(_commits(one.record))}"]
        parts += [_markdown_table(table) for table in one.tables]
        parts += [_figure(name, lies_here) for name, lies_here in figures[one.record["id"]]]
        if one.notes:
            parts.append(_bullets(one.notes))
    if search is not None:
        parts += ["## The papers' search", f"`{SEARCH_COMMAND}`"]
        parts += [_markdown_table(search_table(search)), _bullets(search_notes(search))]
    return "\n\n".join(parts) + "\n"


def beside(records: Sequence[Record]) -> list[str]:
    """How much is as published, and each number that is not, with what was cut; failures in any case."""
    failed = [f"{record['id']} failed: {record['failed']}" for record in records if record["failed"] is not None]
    if any(record["scale"] == "smoke" for record in records):
        return ["Not compared: scale smoke shows that everything runs, and its numbers mean nothing.", *failed]
    remarks: dict[str, str] = {}  # cases are shared, so each is said once
    for record in records:
        for row in record.get("rows", ()):
            published, here = row["published"]["accuracy"], row["training"]["test_accuracy"]
            remark = accuracy_remark(published, here, row["cuts"])
            if remark is not None:
                remarks[f"{row['preset']}, test accuracy"] = remark
        for claim in record.get("claims", ()):
            said = f"{claim['beside']}; the paper: {claim['paper']}; here: {claim['here']}"
            remarks[f"{record['id']}, {claim['what']}"] = (
                claim["beside"] if claim["beside"] == AS_PUBLISHED else said
            )
    same = sum(remark == AS_PUBLISHED for remark in remarks.values())
    other = [f"{what}: {remark}" for what, remark in remarks.items() if remark != AS_PUBLISHED]
    return [f"{same} of {len(remarks)} numbers and statements of the papers are as published.", *other, *failed]


def _preamble(records: Sequence[Record]) -> str:
    scales = ", ".join(sorted({record["scale"] for record in records}))
    rows = {row["key"]: row for record in records for row in record.get("rows", ())}.values()
    hours = sum(row["training"]["seconds"] + row["attack_seconds"] for row in rows) / 3600
    attacks = [row["attack_seconds"] for row in rows if row["attack"] == records[0]["recipe"]]
    lines = [
        "Made by `engram reproduce results` from the JSON of the runs; not edited by hand.",
        f"Experiments: {len(records)}, at scale {scales}; targets and attacks: {len(rows)}, {hours:.2g} hours.",
        "Good is SSIM > 0.4 (points of the plane: within 0.1). Held-out counts the same for images that the "
        "network never saw; what was recovered is what goes beyond. The papers print no such null.",
    ]
    if attacks:
        lines.append(
            f"An attack took {median(attacks):.0f} s (median); the papers tell of 20 to 30 minutes on a V100 for "
            "each of 100 runs a target."
        )
    return " ".join(lines)


def _commits(record: Record) -> list[str]:
    """Of the code that computed the cases, which may have been drawn again since."""
    return sorted({row["commit"] or "unknown" for row in record.get("rows", [record])})


def _figure(name: str, lies_here: bool) -> str:
    if lies_here:
        return f"![{name.removesuffix('.png')}](figures/{name})"
    return f"Figure: `DIR/figures/{name}`, which shows images of the data set and is therefore not kept here."


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _markdown_table(table: Table) -> str:
    from engram.report.html.render import shown

    def line(cells: Sequence[Cell]) -> str:
        return "| " + " | ".join(shown(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(table.heads), "|" + "---|" * len(table.heads), *map(line, table.rows)])
