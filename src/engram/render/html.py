"""Reports as one self-contained HTML file: the content of a page as values, and the templates that lay it out."""

from __future__ import annotations

import base64
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from engram.core.errors import CheckpointError
from engram.core.files import read_bounded
from engram.render.svg import Drawing

LARGEST_PNG = 64 * 64
"""Images up to this many pixels are stored exactly, larger ones as JPEG."""
LARGEST_SIDE = 112
"""Larger images are shrunk: a report with a thousand of them must stay small enough to send."""
JPEG_QUALITY = 85


def data_uri(image: Tensor, *, largest_side: int = LARGEST_SIDE) -> str:
    """An image [C, H, W] in [0, 1] as a data URI; other numbers of channels than 1 or 3 are averaged.

    One with a longer side than `largest_side` is shrunk.

    >>> import torch
    >>> data_uri(torch.zeros(1, 2, 2))[:22]
    'data:image/png;base64,'
    """
    pixels = image.detach().cpu().float().clamp(0, 1)
    if len(pixels) not in (1, 3):
        pixels = pixels.mean(0, keepdim=True)
    values = (pixels * 255).round().numpy().astype(np.uint8)
    picture = Image.fromarray(values[0] if len(values) == 1 else values.transpose(1, 2, 0))
    exact = picture.width * picture.height <= LARGEST_PNG and max(picture.size) <= max(largest_side, 64)
    if not exact or max(picture.size) > largest_side:
        picture.thumbnail((largest_side, largest_side))
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
    """Pictures in order, and how many there are in all; those after the `first` are folded away."""

    pictures: Sequence[Picture]
    total: int
    has_originals: bool
    first: int = 20


@dataclass(frozen=True)
class Table:
    """Rows of cells under their heads; `sortable` ones sort on click and filter by text or a yes/no column."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str
    sortable: bool = False
    links: Sequence[str | None] = ()
    """Where the first cell of each row links to, if anywhere."""
    thumbnails: Sequence[str | None] = ()
    """A small picture before the first cell of each row."""


Reader = Literal["review", "engineer"]
"""Who a section is for; whoever decides reads the brief."""


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, then any of charts, a gallery and tables."""

    anchor: str
    title: str
    paragraphs: Sequence[str] = ()
    charts: Sequence[Drawing] = ()
    gallery: Gallery | None = None
    tables: Sequence[Table] = ()
    code: Sequence[str] = ()
    reader: Reader | None = None


@dataclass(frozen=True)
class Brief:
    """What one screen tells whoever decides, beside verdict and tiles."""

    tried: Sequence[tuple[str, str]]
    """What, and how: the attack, its budget, the control, the tests."""
    pictures: Gallery | None
    pictures_title: str
    advice: Sequence[str]
    advice_anchor: str
    """The section that says more."""


class JudgedRule(Protocol):
    """One rule of a policy, judged."""

    @property
    def rule(self) -> str: ...
    @property
    def limit(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Decided(Protocol):
    """A release decision, as any module may make it."""

    @property
    def outcome(self) -> str: ...
    @property
    def sentence(self) -> str: ...
    @property
    def decided_by(self) -> str: ...
    @property
    def rules(self) -> Sequence[JudgedRule]: ...


@dataclass(frozen=True)
class ShownRule:
    """One row of a decision's table."""

    rule: str
    limit: str
    value: str
    outcome: Literal["pass", "fail", "not enough evidence"]
    reason: str


@dataclass(frozen=True)
class ShownDecision:
    """A release decision, as the page shows it."""

    outcome: Literal["pass", "fail", "not enough evidence"]
    sentence: str
    decided_by: str
    rules: Sequence[ShownRule]

    @classmethod
    def of(cls, decision: Decided) -> ShownDecision:
        """The same, of any decision."""
        names = ("rule", "limit", "value", "outcome", "reason")
        rules = [ShownRule(**{name: getattr(one, name) for name in names}) for one in decision.rules]
        return cls(decision.outcome, decision.sentence, decision.decided_by, rules)  # type: ignore[arg-type]

    @property
    def counted(self) -> str:
        """How many rules there are of each outcome."""
        counts = Counter(one.outcome for one in self.rules)
        listed = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        return f"{len(self.rules)} rule{'s' * (len(self.rules) != 1)}: {listed}"

    @property
    def table(self) -> Table:
        rows = [(one.rule, one.limit, one.value, one.outcome, one.reason) for one in self.rules]
        return Table(("rule", "limit", "measured", "outcome", "why"), rows, f"Decided by {self.decided_by}")


PARTS = {
    "review": ("Review", "Is the evidence sound? Controls, false alarms, and what was not tried."),
    "engineer": ("Engineer", "Record by record, layer by layer, and how to repeat it."),
}


@dataclass(frozen=True)
class Page:
    """The whole report; `product` is the command that made it. With a brief, sections are grouped by reader."""

    title: str
    outcome: Literal[
        "leak found",
        "leak suspected",
        "no leak found",
        "not enough evidence",
        "accepted",
        "not accepted",
        "more than chance",
        "no more than chance",
    ]
    sentence: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    product: str = "engram audit"
    brief: Brief | None = None
    decision: ShownDecision | None = None

    @property
    def parts(self) -> list[tuple[str, str, str, list[Section]]]:
        """Anchor, title, lead and sections of each reader's part; none if the sections are not grouped."""
        if self.brief is None:
            return []
        return [
            (name, title, lead, [one for one in self.sections if one.reader == name])
            for name, (title, lead) in PARTS.items()
        ]


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
    charts: Sequence[Drawing],
    pictures: Sequence[Picture],
    note: str | None,
    refresh: int | None,
    product: str = "engram watch",
) -> str:
    """The page of a run that is under way; it reloads itself after `refresh` seconds and runs no script."""
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
            product=product,
            style=Markup(_asset("report.css")),
        )
    )


def render_template(name: str, **values: Any) -> str:
    """Another page with the same look; its template also gets `style`, and `uri`, which shows a PNG."""
    style = Markup(_asset("report.css"))
    return _environment().get_template(name).render(style=style, uri=png_uri, **values)


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


def png_uri(content: bytes) -> str:
    """A PNG as a data URI.

    >>> png_uri(b"abc")
    'data:image/png;base64,YWJj'
    """
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


PAGE_FILE, DECISION_FILE = "page.json", "decision.json"
PAGE_VERSION = 1
MOST_BYTES, MOST_CELLS, MOST_PICTURES = 64 * 2**20, 2_000_000, 10_000
LARGEST_NUMBER = 10**15
DAMAGED = "copy the run again, or repeat the audit"
Kind = TypeVar("Kind")
UNREADABLE = (StopIteration, SyntaxError, Image.DecompressionBombError)
"""What odd axes and pictures raise beside the usual errors: Pillow calls a broken PNG a syntax error."""
_ANCHOR = re.compile(r"[a-z][a-z0-9-]{0,63}")
_URI = re.compile(r"data:image/(png|jpeg);base64,([A-Za-z0-9+/]+=*)")


def page_bytes(page: Page) -> bytes:
    """The content of page.json: values alone, from which `read_page` makes the same page again."""
    stored = {"schema_version": PAGE_VERSION, "page": asdict(page)}
    return json.dumps(stored, allow_nan=False, default=list).encode()


def read_page(path: Path) -> Page:
    """The page in a file that a stranger may have sent: every value is of its type and within bounds."""
    stored = _validated(path, _StoredPage, MOST_BYTES)
    if stored.schema_version != PAGE_VERSION:
        raise CheckpointError(
            f"{path} has version {stored.schema_version}, and this engram reads {PAGE_VERSION}; use the engram "
            "that wrote it, or repeat the audit"
        )
    try:
        _check(stored.page)
    except (ArithmeticError, LookupError, RuntimeError, ValueError, OSError, *UNREADABLE) as error:
        raise CheckpointError(f"{path} is damaged ({error}); {DAMAGED}") from error
    return stored.page


def read_decision(path: Path) -> ShownDecision:
    """The decision in a decision.json, which a stranger may have sent."""
    return _validated(path, ShownDecision, 2**20)


@dataclass(frozen=True)
class _StoredPage:
    schema_version: int
    page: Page


def _validated(path: Path, kind: type[Kind], most: int) -> Kind:
    content = read_bounded(path, most, cure=DAMAGED)
    try:
        return TypeAdapter(kind).validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise CheckpointError(f"{path} is damaged ({where}: {first['msg']}); {DAMAGED}") from error


def _check(page: Page) -> None:
    """Raise ValueError for what has the right type but no page of ours holds."""
    galleries = [one.gallery for one in page.sections if one.gallery is not None]
    pictures = [picture for gallery in galleries for picture in gallery.pictures]
    anchors = [*(one.anchor for one in page.sections), *(one.anchor for one in pictures if one.anchor is not None)]
    reserved = {"main", "decide", "verdict", "decision", *PARTS}
    for anchor in anchors:
        if not _ANCHOR.fullmatch(anchor) or anchor in reserved or anchor.startswith("enlarged"):
            raise ValueError(f"the anchor {anchor[:40]!r} is not one of ours")
    if len(set(anchors)) < len(anchors):
        raise ValueError("an anchor occurs twice")
    tables = [table for section in page.sections for table in section.tables]
    if sum(len(row) for table in tables for row in table.rows) > MOST_CELLS:
        raise ValueError(f"tables have more than {MOST_CELLS:,} cells")
    for table in tables:
        if any(len(row) != len(table.heads) for row in table.rows):
            raise ValueError("a table has rows of another width than its head")
        for many in (table.links, table.thumbnails):
            if many and len(many) != len(table.rows):
                raise ValueError("a table has another number of links or thumbnails than rows")
        for cell in (cell for row in table.rows for cell in row):
            if isinstance(cell, int | float) and not abs(cell) <= LARGEST_NUMBER:
                raise ValueError("a cell has too large a number")
    uris = list(_uris(page, pictures, tables))
    if len(uris) > MOST_PICTURES:
        raise ValueError(f"there are more than {MOST_PICTURES:,} pictures")
    for uri in uris:
        _check_uri(uri)
    for drawing in (drawing for section in page.sections for drawing in section.charts):
        drawing.__html__()


def _uris(page: Page, pictures: Sequence[Picture], tables: Sequence[Table]) -> Iterator[str]:
    shown = () if page.brief is None or page.brief.pictures is None else page.brief.pictures.pictures
    for picture in (*pictures, *shown):
        yield picture.image
        if picture.original is not None:
            yield picture.original
    for table in tables:
        yield from (uri for uri in table.thumbnails if uri is not None)


def _check_uri(uri: str) -> None:
    """A small PNG or JPEG, and nothing else: a browser may not load or unpack anything large for it."""
    found = _URI.fullmatch(uri)
    if found is None:
        raise ValueError(f"a picture is no PNG or JPEG: {uri[:30]!r}")
    with Image.open(io.BytesIO(base64.b64decode(found[2], validate=True)), formats=[found[1].upper()]) as picture:
        if picture.width * picture.height > max(LARGEST_PNG, LARGEST_SIDE**2):
            raise ValueError(f"a picture has {picture.width}x{picture.height} pixels")
        picture.load()
