"""page.json: the same page again, and nothing that a stranger put into it."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from engram.core.errors import CheckpointError
from engram.render.html import (
    Brief,
    Gallery,
    Page,
    Picture,
    Section,
    Table,
    Tile,
    data_uri,
    page_bytes,
    read_decision,
    read_page,
    render,
)
from engram.render.svg import Axis, BarChart, Chart, Choices, Drawing, ParallelChart, Series, TrialLine

SURROGATE = b'{"schema_version": 1, "page": {"title": "\\ud800"}}'
HOSTILE = "<script>alert(1)</script>\"'&</style>"


def page() -> Page:
    picture = Picture(
        data_uri(torch.rand(3, 8, 8)), HOSTILE, HOSTILE, data_uri(torch.rand(1, 90, 90)), "b", "pair-1"
    )
    gallery = Gallery([picture], 1, has_originals=True)
    charts: list[Drawing] = [
        Chart(HOSTILE, Axis("x", 1, 10, log=True), Axis("y", 0, 1), [Series(HOSTILE, [1, 2.5], [0, 1])], "s"),
        BarChart("bars", {"one": 0.5}, "s"),
        ParallelChart("lines", [Axis("x", 0, 1), Choices("y", ["a"])], [TrialLine([0.5, "a"], HOSTILE)], "s"),
    ]
    rows = [(1, 2.5, True, None, HOSTILE)]
    table = Table(list("abcde"), rows, HOSTILE, True, ["pair-1"], [data_uri(torch.rand(1, 4, 4))])
    sections = [
        Section("pairs", HOSTILE, [HOSTILE], charts, gallery, [table], [HOSTILE], "engineer"),
        Section("limits", "Limits", [HOSTILE], reader="review"),
    ]
    brief = Brief([("Attack", HOSTILE)], gallery, HOSTILE, [HOSTILE], "limits")
    return Page(HOSTILE, "leak found", HOSTILE, [Tile(HOSTILE, "1", HOSTILE)], sections, brief=brief)


def test_a_stored_page_is_the_same_again_and_text_stays_text(tmp_path: Path) -> None:
    (tmp_path / "page.json").write_bytes(page_bytes(made := page()))
    again = render(read_page(tmp_path / "page.json"))
    assert again == render(made)
    assert "<script>alert" not in again
    assert again.count("&lt;script&gt;alert(1)") >= 15


def bomb() -> str:
    stream = io.BytesIO()
    Image.new("L", (5_000, 5_000)).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(stored: dict[str, Any]) -> None:
        inner: Any = stored
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value

    return change


SECTION = ("page", "sections", 0)
PICTURE = (*SECTION, "gallery", "pictures", 0)
TABLE = (*SECTION, "tables", 0)
CHART = (*SECTION, "charts", 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (put("schema_version", value=2), "has version 2"),
        (put("page", value=[]), "page"),
        (put("page", "outcome", value="x onload=alert(1)"), "outcome"),
        (put("page", "title", value=7), "title"),
        (put(*PICTURE, "image", value="https://example.org/track.png"), "no PNG or JPEG"),
        (put(*PICTURE, "image", value="data:image/svg+xml;base64,PHN2Zz4="), "no PNG or JPEG"),
        (put(*PICTURE, "image", value="data:image/png;base64,AAAA"), "damaged"),
        (put(*PICTURE, "image", value=bomb()), "5000x5000 pixels"),
        (put(*PICTURE, "anchor", value="enlarged"), "anchor"),
        (put(*PICTURE, "anchor", value='x" onclick="'), "anchor"),
        (put(*PICTURE, "anchor", value="limits"), "occurs twice"),
        (put(*TABLE, "rows", value=[[1]]), "another width"),
        (put(*TABLE, "rows", 0, 0, value=10**400), "damaged"),
        (put(*TABLE, "thumbnails", value=["data:text/html;base64,PHN2Zz4="]), "no PNG or JPEG"),
        (put(*TABLE, "links", value=["a", "b"]), "another number of links"),
        (put(*CHART, "series", 0, "kind", value='line" onload="'), "charts"),
        (put(*CHART, "series", 0, "x", value=[1]), "damaged"),
        (put(*CHART, "x", "low", value=-1), "damaged"),
        (put(*SECTION, "charts", value=["<svg onload=alert(1)>"]), "charts"),
        (put("page", "brief", "pictures", "pictures", 0, "image", value="x"), "no PNG or JPEG"),
    ],
)
def test_what_no_page_of_ours_holds_is_refused(
    change: Callable[[dict[str, Any]], None], problem: str, tmp_path: Path
) -> None:
    stored = json.loads(page_bytes(page()))
    change(stored)
    path = tmp_path / "page.json"
    path.write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match=problem):
        read_page(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[" * 100_000,
        b'{"schema_version": 1, "page": {"title": "\\ud800"}}',
        b"\xff\xfe",
        b"NaN",
    ],
)
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    for name, read in (("page.json", read_page), ("decision.json", read_decision)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=r"is damaged"):
            read(tmp_path / name)


def test_a_pipe_a_directory_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "huge").open("wb") as stream:
        stream.truncate(2**31)
    for name, problem in (("pipe", "is not a file"), ("folder", "is not a file"), ("huge", "more than")):
        with pytest.raises(CheckpointError, match=problem):
            read_page(tmp_path / name)


def test_a_decision_is_read_with_its_rules(tmp_path: Path) -> None:
    rule = {"rule": "images", "limit": "at most 0", "value": "3", "outcome": "fail", "reason": HOSTILE}
    stored = {"outcome": "fail", "sentence": HOSTILE, "decided_by": "images", "rules": [rule], "policy": {"a": 1}}
    path = tmp_path / "decision.json"
    path.write_text(json.dumps(stored))
    decision = read_decision(path)
    assert decision.counted == "1 rule: 1 fail"
    text = render(replace(page(), decision=decision))
    assert 'class="verdict fail" id="decision"' in text
    assert "<script>alert" not in text
    path.write_text(json.dumps({**stored, "outcome": "maybe"}))
    with pytest.raises(CheckpointError, match="outcome"):
        read_decision(path)
