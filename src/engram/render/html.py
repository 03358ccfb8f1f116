"""Reports as one self-contained HTML file: the content of a page as values, and the templates that lay it out."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image
from torch import Tensor

LARGEST_PNG = 64 * 64
"""Images up to this many pixels are stored exactly, larger ones as JPEG."""
LARGEST_SIDE = 112
"""Larger images are shrunk: a report with a thousand of them must stay small enough to send."""
JPEG_QUALITY = 85


def data_uri(image: Tensor) -> str:
    """An image [C, H, W] in [0, 1] as a data URI; other numbers of channels than 1 or 3 are averaged.

    >>> import torch
    >>> data_uri(torch.zeros(1, 2, 2))[:22]
    'data:image/png;base64,'
    """
    pixels = image.detach().cpu().float().clamp(0, 1)
    if len(pixels) not in (1, 3):
        pixels = pixels.mean(0, keepdim=True)
    values = (pixels * 255).round().numpy().astype(np.uint8)
    picture = Image.fromarray(values[0] if len(values) == 1 else values.transpose(1, 2, 0))
    exact = picture.width * picture.height <= LARGEST_PNG
    if not exact:
        picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    stream = io.BytesIO()
    if exact:
        picture.save(stream, "PNG")
    else:
        picture.save(stream, "JPEG", quality=JPEG_QUALITY)
    kind = "png" if exact else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Tile:
    """One number behind the verdict, with a note on what it is."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """An image as a data URI, with the original below it where there is one."""

    image: str
    alt: str
    caption: str
    original: str | None = None
    original_alt: str = ""
    anchor: str | None = None


@dataclass(frozen=True)
class Gallery:
    """Pictures in order, and how many there are in all."""

    pictures: Sequence[Picture]
    total: int
    has_originals: bool


@dataclass(frozen=True)
class Table:
    """Rows of cells under their heads; `sortable` ones sort on click and filter by text or a yes/no column."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str
    sortable: bool = False
    links: Sequence[str | None] = ()
    """Where the first cell of each row links to, if anywhere."""


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
    outcome: Literal[
        "leak found", "leak suspected", "no leak found", "not enough evidence", "accepted", "not accepted"
    ]
    sentence: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    product: str = "engram audit"


NOTEBOOK_PICTURES = 40


def render(page: Page) -> str:
    """The whole report as one self-contained HTML document."""
    script, style = (Markup(_asset(name)) for name in ("report.js", "report.css"))
    return _environment().get_template("report.html").render(page=page, script=script, style=style)


def render_gallery(page: Page) -> str:
    """Verdict and first gallery, for notebooks; no script, and inline styles."""
    gallery = next((section.gallery for section in page.sections if section.gallery is not None), None)
    pictures = [] if gallery is None else gallery.pictures[:NOTEBOOK_PICTURES]
    return _environment().get_template("gallery.html").render(page=page, pictures=pictures)


def render_live(
    *,
    title: str,
    summary: str,
    share: float | None,
    charts: Sequence[Markup],
    pictures: Sequence[Picture],
    note: str | None,
    refresh: int | None,
) -> str:
    """The page of `engram watch --web`; it reloads itself after `refresh` seconds and runs no script."""
    return (
        _environment()
        .get_template("live.html")
        .render(
            title=title,
            summary=summary,
            share=share,
            charts=charts,
            pictures=pictures,
            note=note,
            refresh=refresh,
            style=Markup(_asset("report.css")),
        )
    )


def render_template(name: str, **values: Any) -> str:
    """Another page with the same look; its template also gets `style`."""
    return _environment().get_template(name).render(style=Markup(_asset("report.css")), **values)


def shown(cell: Cell) -> str:
    """A cell as the reader sees it.

    >>> shown(0.12345), shown(None), shown(True), shown(1200)
    ('0.123', '–', 'yes', '1,200')
    """
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def sort_key(cell: Cell) -> str:
    """A cell as the script sorts it: numbers in full, empty for what is unknown."""
    if cell is None:
        return ""
    return str(int(cell)) if isinstance(cell, bool) else str(cell)


@cache
def _environment() -> Environment:
    loader = PackageLoader("engram.render")
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(shown=shown, sort_key=sort_key)
    return made


def _asset(name: str) -> str:
    return (files("engram.render") / "templates" / name).read_text("utf-8")


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
