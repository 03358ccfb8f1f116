"""From a page to text: the templates beside this file, everything in them escaped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from engram.report.html.page import Cell, Page, Picture

NOTEBOOK_PICTURES = 40


def render(page: Page) -> str:
    """The whole report as one self-contained HTML document."""
    script, style = (Markup(_asset(name)) for name in ("report.js", "report.css"))
    return _environment().get_template("report.html").render(page=page, script=script, style=style)


def render_gallery(page: Page) -> str:
    """Verdict and first gallery, for notebooks; no script, and styles in place."""
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
    """The page of `engram watch --web`; it asks for itself again after `refresh` seconds, and runs no script."""
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
    """Another page of the same look; its template also gets `style`."""
    return _environment().get_template(name).render(style=Markup(_asset("report.css")), **values)


def shown(cell: Cell) -> str:
    """A cell as a person reads it.

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
    """A cell as the script sorts it: numbers in full, nothing for what is not known."""
    if cell is None:
        return ""
    return str(int(cell)) if isinstance(cell, bool) else str(cell)


@cache
def _environment() -> Environment:
    loader = PackageLoader("engram.report.html")
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(shown=shown, sort_key=sort_key)
    return made


def _asset(name: str) -> str:
    return (files("engram.report.html") / "templates" / name).read_text("utf-8")
