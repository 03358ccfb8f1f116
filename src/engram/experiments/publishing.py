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
        said = markdown(records, table, read_search(home))
    except (KeyError, TypeError, OSError) as error:
        raise CheckpointError(
            f"{home} holds a damaged experiment ({type(error).__name__}: {error}); run it again, "
            "which computes nothing that is finished"
        ) from error
    page, text = home / PAGE_FILE, markdown_path or home / MARKDOWN_FILE
    files.write_bytes(page, html.encode())
    files.write_bytes(text, said.encode())
    return page, text


def _exhibit(record: Record, figures: Path) -> Exhibit:
    one = chapter(record)
    names = {} if record["failed"] is not None else record["figures"]
    pictures = [(f"{record['id']} {part}".strip(), (figures / name).read_bytes()) for part, name in names.items()]
    anchor = record["id"].replace("/", "-")
    return Exhibit(anchor, one.title, record["command"], pictures, one.tables, one.notes)
