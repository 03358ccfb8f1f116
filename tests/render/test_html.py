"""The report as a file: self-contained, escaped, bounded in size."""

from __future__ import annotations

import re
import time
from importlib.resources import files

import pytest
import torch

from engram.render.html import Gallery, Page, Picture, Section, Table, Tile, data_uri, render
from engram.render.svg import Axis, Chart, Series

HOSTILE = "<img src=x onerror=alert(1)>\"'&"


def page(*sections: Section, title: str = "a model") -> Page:
    return Page(title, "leak found", "Leak found: 3 of 4.", [Tile("records", "3", "of 4")], sections)


def test_it_contains_everything_and_loads_nothing() -> None:
    pictures = [Picture(data_uri(torch.rand(3, 8, 8)), "one", "0.9", data_uri(torch.rand(3, 8, 8)), "other")]
    text = render(page(Section("pairs", "Pairs", gallery=Gallery(pictures, 1, has_originals=True))))
    assert "default-src 'none'" in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", text)
    assert not re.findall(r"https?://", text)
    assert text.count("data:image/png;base64,") == 2


def test_untrusted_names_are_escaped() -> None:
    table = Table([HOSTILE], [[HOSTILE]], HOSTILE, sortable=True)
    picture = Picture(data_uri(torch.zeros(1, 2, 2)), HOSTILE, HOSTILE)
    drawn = Chart(HOSTILE, Axis(HOSTILE, 0, 1), Axis("y", 0, 1), [Series(HOSTILE, [0], [1])], summary=HOSTILE)
    gallery = Gallery([picture], 1, has_originals=False)
    section = Section("x", HOSTILE, [HOSTILE], [drawn], gallery, [table], [HOSTILE])
    text = render(page(section, title=HOSTILE))
    assert "<img src=x" not in text
    assert text.count("&lt;img src=x") >= 10


def test_every_image_has_alternative_text_and_there_is_one_top_heading() -> None:
    picture = Picture(data_uri(torch.zeros(1, 2, 2)), "a face", "0.5")
    text = render(page(Section("x", "X", gallery=Gallery([picture], 1, has_originals=False))))
    assert all("alt=" in tag for tag in re.findall(r"<img[^>]*>", text))
    assert text.count("<h1>") == 1
    assert '<html lang="en">' in text


def test_pictures_are_exact_when_small_and_small_when_large() -> None:
    assert data_uri(torch.rand(3, 32, 32)).startswith("data:image/png;")
    large = data_uri(torch.rand(3, 500, 700))
    assert large.startswith("data:image/jpeg;")
    assert len(large) < 40_000
    assert data_uri(torch.rand(5, 8, 8)).startswith("data:image/png;")


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 224, 224)])
def test_a_hundredth_of_the_largest_report_takes_a_hundredth_of_the_space(shape: tuple[int, int, int]) -> None:
    """The whole is measured by `python -m benchmarks.report`: 500 images, 1,000 candidates, 15 MB, 20 s."""
    started = time.perf_counter()
    # As rough as photographs are: detail at every eighth pixel of a large one.
    images = torch.nn.functional.interpolate(torch.rand(12, 3, 32, 32), shape[1:], mode="bilinear")
    pictures = [Picture(data_uri(image), "one", "0.9") for image in images]
    text = render(page(Section("x", "X", gallery=Gallery(pictures, 12, has_originals=False))))
    frame = len(render(page(Section("x", "X"))))
    assert len(text) - frame < 15e6 / 100
    assert time.perf_counter() - started < 5


def test_the_templates_are_package_data() -> None:
    found = {entry.name for entry in (files("engram.render") / "templates").iterdir()}
    assert {"report.html", "report.css", "report.js", "parts.html", "gallery.html", "live.html"} <= found


def test_the_legend_is_inside_the_picture() -> None:
    series = [Series(name, [0, 1], [0, 1]) for name in ("training", "", "held-out")]
    drawn = Chart("t", Axis("x", 0, 1), Axis("y", 0, 1), series, summary="s").__html__()
    heights = [float(y) for y in re.findall(r'<text x="[^"]*" y="([^"]*)"', drawn)]
    found = re.search(r'viewBox="0 0 460 (\d+)"', drawn)
    assert found is not None
    assert drawn.count('class="key') == 2
    assert max(heights) + 8 <= int(found[1])


def test_charts_stay_within_their_frame() -> None:
    series = [Series("s", [0.1, 100], [-5, 7])]
    drawn = Chart("t", Axis("x", 1, 10, log=True), Axis("y", 0, 1), series, summary="s").__html__()
    numbers = [float(x) for pair in re.findall(r'points="([^"]+)"', drawn) for x in re.split("[ ,]", pair)]
    assert all(0 <= number <= 460 for number in numbers)
    assert Axis("x", 3.0, 3.0).place(3.0) == 0.5
    assert Axis("x", -3, 8).ticks()[0] >= -3
