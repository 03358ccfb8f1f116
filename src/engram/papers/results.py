"""Page and Markdown of the experiments in a directory, with the papers' numbers next to ours, from their JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from engram.core import files
from engram.core.errors import CheckpointError
from engram.papers.catalogue import AS_PUBLISHED, CATALOGUE, read_records
from engram.papers.records import GOOD, NEAR
from engram.render.figures import is_chart
from engram.render.html import Cell, Table, render_template
from engram.training.presets import DECAYS

Row = Mapping[str, Any]
Rows = Mapping[tuple[str, str], Row]
"""Rows by preset and attack."""
HANDFUL = 5
FEW = 10


@dataclass(frozen=True)
class Trend:
    """A statement with our numbers; `holds` is None if its cases have not been run."""

    statement: str
    numbers: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "not run"}[self.holds]


@dataclass(frozen=True)
class Statement:
    """A statement, the cases it is about (attack None: the run's own), and how to judge them."""

    words: str
    cases: Sequence[tuple[str, str | None]]
    judge: Callable[[Sequence[Row]], tuple[str, bool]]

    def trend(self, rows: Rows, attack: str) -> Trend:
        keys = [(preset, named or attack) for preset, named in self.cases]
        missing = [f"{preset} ({named})" for preset, named in keys if (preset, named) not in rows]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            return Trend(self.words, f"not run: {', '.join(missing[:3])}{more}", None)
        return Trend(self.words, *self.judge([rows[key] for key in keys]))


def trends(records: Sequence[Mapping[str, Any]]) -> list[Trend]:
    """Every trend, in the order of the papers, from records that share scale and recipe."""
    finished = [record for record in records if record["failed"] is None]
    rows = {(row["preset"], row["attack"]): row for record in finished for row in record["rows"]}
    return [statement.trend(rows, records[0]["recipe"]) for statement in STATEMENTS]


def trends_table(records: Sequence[Mapping[str, Any]]) -> Table | None:
    """The trends as a table; None at scale smoke, whose numbers mean nothing."""
    if any(record["scale"] == "smoke" for record in records):
        return None
    cells = [[one.statement, one.numbers, one.verdict] for one in trends(records)]
    return Table(("trend", "here", "verdict"), cells, "What the papers say about their results")


def recovered(row: Row) -> float:
    """Good images beyond held-out; all good images if none were held out."""
    count = row["counts"][GOOD]
    return float(count["train"] if count["excess"] is None else count["excess"])


def _shares_fall(rows: Sequence[Row]) -> tuple[str, bool]:
    shares = [recovered(row) / row["n"] for row in rows]
    numbers = ", ".join(f"n = {row['n']}: {share:.1%}" for row, share in zip(rows, shares, strict=True))
    return numbers, all(more > fewer for more, fewer in pairwise(shares))


def _good_have_smaller_margins(rows: Sequence[Row]) -> tuple[str, bool]:
    good, others = (rows[0]["median_margin"][name] for name in ("good", "others"))
    if good is None or others is None:
        return ("no good reconstructions" if good is None else "all are good"), False
    return f"median margin of good images {good:.3g}, of the others {others:.3g}", good < others


def _at_most(limit: int) -> Callable[[Sequence[Row]], tuple[str, bool]]:
    def judge(rows: Sequence[Row]) -> tuple[str, bool]:
        return _listed(rows), all(recovered(row) <= limit for row in rows)

    return judge


def _last_beats_first(rows: Sequence[Row]) -> tuple[str, bool]:
    return _listed(rows), recovered(rows[-1]) > recovered(rows[0])


def _any_beats_first(rows: Sequence[Row]) -> tuple[str, bool]:
    none, *decayed = rows
    best = max(decayed, key=recovered)
    return f"{_listed([none])}; best {_listed([best])}", recovered(best) > recovered(none)


def _listed(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row['preset']}: {recovered(row):g}" for row in rows)


def _attacked(*presets: str) -> list[tuple[str, str | None]]:
    return [(preset, None) for preset in presets]


_DECAYED = tuple(f"decay-{value}" for value in DECAYS)
_PER_CLASS = (*(f"classes{count}x50" for count in (2, 3, 4, 5)), "classes10")
_FIXED = tuple(f"classes{count}" for count in (2, 3, 4, 5, 10))
STATEMENTS: tuple[Statement, ...] = (
    Statement(
        "more samples are harder: the share of good images falls",
        _attacked("cifar50", "cifar100", "cifar500"),
        _shares_fall,
    ),
    Statement("good images lie on the margin", _attacked("cifar500"), _good_have_smaller_margins),
    Statement(
        "model inversion gives at most a handful",
        [("cifar500", "inversion"), ("mnist500", "inversion")],
        _at_most(HANDFUL),
    ),
    Statement("first-layer weights give a few", [("cifar500", "weights"), ("mnist500", "weights")], _at_most(FEW)),
    Statement("more classes give more, 50 images each", _attacked(*_PER_CLASS), _last_beats_first),
    Statement("more classes give more, 500 images in all", _attacked(*_FIXED), _last_beats_first),
    Statement(
        "some weight decay gives more than none from a standard start",
        _attacked("decay-0", *_DECAYED),
        _any_beats_first,
    ),
    Statement(
        "some weight decay gives more than none from a small start (1e-3)",
        _attacked("cifar100-init1e-3", *_DECAYED),
        _any_beats_first,
    ),
)


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
    "compared",
)
CLAIM_HEADS = ("what", "paper", "here", "compared")


@dataclass(frozen=True)
class Chapter:
    """One experiment in readable form."""

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
    tables = [Table(COUNT_HEADS, [_count_cells(row) for row in rows], "Recovered images and their nulls")]
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
    """How the test accuracy compares; if it falls short, also what was cut.

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


def markdown(
    records: Sequence[Record],
    trends: Table | None,
    figures: Mapping[str, Sequence[tuple[str, bool]]],
) -> str:
    """The whole of docs/results.md.

    For each id, `figures` has the names of its figures and whether each is in the folder `figures` next to it.
    """
    parts = ["# Results", _preamble(records), "## Compared with the papers", _bullets(beside(records))]
    if trends is not None:
        parts += ["## Published trends", markdown_table(trends)]
    for one in map(chapter, records):
        parts += [f"## {one.title}", f"`{one.record['command']}`, commit {', '.join(_commits(one.record))}"]
        parts += [markdown_table(table) for table in one.tables]
        parts += [_figure(name, is_here) for name, is_here in figures[one.record["id"]]]
        if one.notes:
            parts.append(_bullets(one.notes))
    return "\n\n".join(parts) + "\n"


def beside(records: Sequence[Record]) -> list[str]:
    """How much is as published, each number that is not, with what was cut, and all failures."""
    failed = [f"{record['id']} failed: {record['failed']}" for record in records if record["failed"] is not None]
    if any(record["scale"] == "smoke" for record in records):
        return ["Not compared: scale smoke only shows that everything runs; its numbers mean nothing.", *failed]
    remarks: dict[str, str] = {}  # experiments share cases, so list each once
    for record in records:
        for row in record.get("rows", ()):
            published, here = row["published"]["accuracy"], row["training"]["test_accuracy"]
            remark = accuracy_remark(published, here, row["cuts"])
            if remark is not None:
                remarks[f"{row['preset']}, test accuracy"] = remark
        for claim in record.get("claims", ()):
            text = f"{claim['beside']}; the paper: {claim['paper']}; here: {claim['here']}"
            remarks[f"{record['id']}, {claim['what']}"] = (
                claim["beside"] if claim["beside"] == AS_PUBLISHED else text
            )
    same = sum(remark == AS_PUBLISHED for remark in remarks.values())
    other = [f"{what}: {remark}" for what, remark in remarks.items() if remark != AS_PUBLISHED]
    total = f"{same} of {len(remarks)} numbers and statements of the papers come out as published."
    return [total, *other, *failed]


def _preamble(records: Sequence[Record]) -> str:
    scales = ", ".join(sorted({record["scale"] for record in records}))
    rows = {row["key"]: row for record in records for row in record.get("rows", ())}.values()
    hours = sum(row["training"]["seconds"] + row["attack_seconds"] for row in rows) / 3600
    attacks = [row["attack_seconds"] for row in rows if row["attack"] == records[0]["recipe"]]
    lines = [
        "Generated by `engram reproduce results` from the JSON of the runs; do not edit.",
        f"{len(records)} experiments at scale {scales}; {len(rows)} targets and attacks, {hours:.2g} hours.",
        "Good means SSIM > 0.4 (points in the plane: within 0.1). Held-out is the same count for images that "
        "the network never saw; what was recovered is the excess over it. The papers report no such null.",
    ]
    if attacks:
        lines.append(
            f"An attack took {median(attacks):.0f} s (median); the papers report 20 to 30 minutes on a V100 for "
            "each of 100 runs per target."
        )
    return " ".join(lines)


def _commits(record: Record) -> list[str]:
    """Commits of the code that computed the cases; the figures may have been drawn again since."""
    return sorted({row["commit"] or "unknown" for row in record.get("rows", [record])})


def _figure(name: str, is_here: bool) -> str:
    if is_here:
        return f"![{name.removesuffix('.png')}](figures/{name})"
    return f"Figure: `DIR/figures/{name}`, not included here because it shows images of the data set."


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def markdown_table(table: Table) -> str:
    from engram.render.html import shown

    def line(cells: Sequence[Cell]) -> str:
        return "| " + " | ".join(shown(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(table.heads), "|" + "---|" * len(table.heads), *map(line, table.rows)])


PAGE_FILE, MARKDOWN_FILE = "index.html", "results.md"


def publish(home: Path, markdown_path: Path | None = None) -> tuple[Path, Path]:
    """Write the page and the Markdown into the directory, or the Markdown elsewhere; return both paths."""
    records = read_records(home, CATALOGUE)
    try:
        table = trends_table(records)
        exhibits = [_exhibit(record, home / "figures") for record in records]
        lead = f"{len(records)} figures and tables, scale {records[0]['scale']}; each with what the paper says."
        html = render_template(
            "papers.html",
            title="The papers' figures and tables",
            lead=lead,
            differences=beside(records),
            trends=table,
            exhibits=exhibits,
        )
        text = markdown_path or home / MARKDOWN_FILE
        kept = {record["id"]: _figures_beside(text, record, home / "figures") for record in records}
        written = markdown(records, table, kept)
    except (KeyError, TypeError, OSError) as error:
        raise CheckpointError(
            f"{home} contains a damaged experiment ({type(error).__name__}: {error}); run it again; "
            "finished cases are not computed again"
        ) from error
    page = home / PAGE_FILE
    files.write_bytes(page, html.encode())
    files.write_bytes(text, written.encode())
    return page, text


@dataclass(frozen=True)
class Exhibit:
    """One figure or table of a paper: pictures as (alternative text, PNG)."""

    anchor: str
    title: str
    command: str
    pictures: Sequence[tuple[str, bytes]]
    tables: Sequence[Table]
    notes: Sequence[str]


def _exhibit(record: Record, figures: Path) -> Exhibit:
    one = chapter(record)
    pictures = [
        (f"{record['id']} {part}".strip(), (figures / name).read_bytes()) for part, name in _named(record).items()
    ]
    anchor = record["id"].replace("/", "-")
    return Exhibit(anchor, one.title, record["command"], pictures, one.tables, one.notes)


def _named(record: Record) -> dict[str, str]:
    """File names of the figures by part."""
    return {} if record["failed"] is not None else dict(record["figures"])


def _figures_beside(text: Path, record: Record, figures: Path) -> list[tuple[str, bool]]:
    """Names of the figures and whether each is in `figures` next to the Markdown, where charts are copied.

    Other figures show images of the data set, which must not be redistributed.
    """
    names, own = _named(record).values(), text.parent / "figures"
    if own.resolve() == figures.resolve():
        return [(name, True) for name in names]
    contents = {name: (figures / name).read_bytes() for name in names}
    charts = {name: content for name, content in contents.items() if is_chart(content)}
    for name, content in charts.items():
        files.write_bytes(own / name, content)
    return [(name, name in charts) for name in names]
