"""The page of all experiments: figures and tables one after the other, everything inside the file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from engram.report.html.page import Table
from engram.report.html.render import render_template


@dataclass(frozen=True)
class Exhibit:
    """One figure or table of a paper: pictures as (alternative text, PNG)."""

    anchor: str
    title: str
    command: str
    pictures: Sequence[tuple[str, bytes]]
    tables: Sequence[Table]
    notes: Sequence[str]


def render_papers(
    title: str, lead: str, differences: Sequence[str], trends: Table | None, exhibits: Sequence[Exhibit]
) -> str:
    """The page as one self-contained HTML document."""
    return render_template(
        "papers.html",
        title=title,
        lead=lead,
        differences=differences,
        trends=trends,
        exhibits=exhibits,
        uri=png_uri,
    )


def png_uri(content: bytes) -> str:
    """A PNG as a data URI.

    >>> png_uri(b"abc")
    'data:image/png;base64,YWJj'
    """
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
