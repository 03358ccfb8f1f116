"""Page and Markdown of the experiments in a directory, from their JSON and figures alone."""

from __future__ import annotations

from pathlib import Path

from engram import files
from engram.errors import CheckpointError
from engram.experiments.catalogue import CATALOGUE
from engram.experiments.chapters import Record, chapter
from engram.experiments.results import beside, markdown
from engram.experiments.runner import read_records
from engram.experiments.searched import read_search
from engram.experiments.trends import trends_table
from engram.report.figures import is_chart
from engram.report.html.papers import Exhibit, render_papers

PAGE_FILE, MARKDOWN_FILE = "index.html", "results.md"


def publish(home: Path, markdown_path: Path | None = None) -> tuple[Path, Path]:
    """Write the page into the directory and the Markdown beside it, or where it is wanted; tell where they are."""
    records = read_records(home, CATALOGUE)
    try:
        table = trends_table(records)
        exhibits = [_exhibit(record, home / "figures") for record in records]
        lead = f"{len(records)} figures and tables, scale {records[0]['scale']}; each beside what the paper says."
        html = render_papers("The papers' figures and tables", lead, beside(records), table, exhibits)
        text = markdown_path or home / MARKDOWN_FILE
        kept = {record["id"]: _figures_beside(text, record, home / "figures") for record in records}
        said = markdown(records, table, kept, read_search(home))
    except (KeyError, TypeError, OSError) as error:
        raise CheckpointError(
            f"{home} holds a damaged experiment ({type(error).__name__}: {error}); run it again, "
            "which computes nothing that is finished"
        ) from error
    page = home / PAGE_FILE
    files.write_bytes(page, html.encode())
    files.write_bytes(text, said.encode())
    return page, text


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
    """Names of the figures and whether each lies in `figures` beside the Markdown, where charts are copied.

    Other figures show images of the data set, which are nobody's to hand on with a document.
    """
    names, own = _named(record).values(), text.parent / "figures"
    if own.resolve() == figures.resolve():
        return [(name, True) for name in names]
    contents = {name: (figures / name).read_bytes() for name in names}
    charts = {name: content for name, content in contents.items() if is_chart(content)}
    for name, content in charts.items():
        files.write_bytes(own / name, content)
    return [(name, name in charts) for name in names]
