"""What a report shows, as values: finished texts, numbers and pictures; the templates only lay them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Tile:
    """One number that stands behind the verdict, with a word on what it is."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """An image as a data URI, with the original beneath it where there is one."""

    image: str
    alt: str
    caption: str
    original: str | None = None
    original_alt: str = ""
    anchor: str | None = None


@dataclass(frozen=True)
class Gallery:
    """Pictures in order, and how many there would have been."""

    pictures: Sequence[Picture]
    total: int
    has_originals: bool


@dataclass(frozen=True)
class Table:
    """Rows of cells under their heads; `sortable` ones sort by a click and filter by text or a yes/no column."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str
    sortable: bool = False
    links: Sequence[str | None] = ()
    """Where the first cell of each row leads, if anywhere."""


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, then any of a chart (SVG), a gallery and tables."""

    anchor: str
    title: str
    paragraphs: Sequence[str] = ()
    charts: Sequence[Markup] = ()
    gallery: Gallery | None = None
    tables: Sequence[Table] = ()
    code: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """The whole report; `product` is the command that made it."""

    title: str
    outcome: Literal["leak found", "leak suspected", "no leak found"]
    sentence: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    product: str = "engram audit"
