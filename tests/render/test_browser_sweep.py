"""A sweep's page in a real browser, opened from disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engram.data.choice import DataChoice
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.render.html import render
from engram.sweep.executors import InProcess
from engram.sweep.page import sweep_page
from engram.sweep.summary import conclude
from engram.sweep.sweep import Sweep, drive
from tests.auditing.cases import memorising
from tests.render.browser import artefact, contrast, needs_browser, opened
from tests.sweep import small

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [needs_browser, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-four short trials on a network that has memorised its faces."""
    directory = tmp_path_factory.mktemp("sweep")
    view = AttackerView(memorising(), (1, 25, 25), Binary())
    sweep = Sweep(
        view=view, spec=small.spec(24, steps=40, candidates=20, keep=1.0), directory=directory, model="gate"
    )
    drive([sweep], InProcess())
    data = DataChoice(name="faces", labels="gate", n=20).load()
    path = directory / "sweep.html"
    path.write_text(render(sweep_page(conclude(sweep, data), data.train)), "utf-8")
    sweep.close()
    return path


def test_it_opens_from_disk_without_error_or_request(chromium: Browser, report: Path, tmp_path: Path) -> None:
    page, problems = opened(chromium, report)
    page.wait_for_load_state("networkidle")
    assert "training records were recovered" in page.locator("#verdict").inner_text()
    assert page.locator("#settings svg").get_attribute("aria-label")
    page.screenshot(path=artefact("sweep-light.png", tmp_path), full_page=True)
    page.locator("#pooled .thumb").first.click()
    assert page.locator("dialog#enlarged").is_visible()
    page.keyboard.press("Escape")
    assert problems == []


def test_a_line_shows_its_trial_and_stands_out_under_the_mouse(chromium: Browser, report: Path) -> None:
    page, problems = opened(chromium, report)
    lines = page.locator("#settings polyline")
    assert lines.count() >= 10
    assert "objective" in (lines.first.locator("title").text_content() or "")
    width = "line => getComputedStyle(line).strokeWidth"
    assert lines.last.evaluate(width) == "2px"
    lines.last.scroll_into_view_if_needed()
    middle = lines.last.evaluate(
        "line => { const at = [0, 1].map(i => line.points[i].matrixTransform(line.getScreenCTM()));"
        "return [(at[0].x + at[1].x) / 2, (at[0].y + at[1].y) / 2] }"
    )
    page.mouse.move(*middle)
    assert "4px" in lines.evaluate_all("lines => lines.map(line => getComputedStyle(line).strokeWidth)")
    assert problems == []


def test_the_table_of_trials_sorts_and_filters(chromium: Browser, report: Path) -> None:
    page, problems = opened(chromium, report)
    table = page.locator("#trials table")
    column = table.locator("th").all_inner_texts().index("objective") + 1

    def values() -> list[str]:
        cells = table.locator(f"tbody tr:visible td:nth-child({column})")
        return [str(value) for value in cells.evaluate_all("cells => cells.map(cell => cell.dataset.v)")]

    assert len(values()) == 24
    table.get_by_role("button", name="objective", exact=True).click()
    known = [float(value) for value in values() if value]
    assert known == sorted(known, reverse=True)
    assert values()[: len(known)] == [value for value in values() if value], (
        "trials without an objective come last"
    )
    page.locator("#trials .only").select_option(label="complete")
    assert len(values()) == len(known)
    page.locator("#trials .filter").fill("no such trial")
    assert values() == []
    assert problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_labels_of_the_chart_are_readable(chromium: Browser, report: Path, scheme: str, tmp_path: Path) -> None:
    page, _ = opened(chromium, report, scheme=scheme)
    ink, paper = page.evaluate(
        "[['#settings svg text', 'fill'], ['#settings .broad', 'backgroundColor']].map(([where, name]) => "
        "getComputedStyle(document.querySelector(where))[name].match(/\\d+/g).slice(0, 3).map(Number))"
    )
    assert contrast(ink, paper) >= 7
    page.locator("#settings").screenshot(path=artefact(f"sweep-settings-{scheme}.png", tmp_path))


def test_on_a_phone_only_the_chart_scrolls(chromium: Browser, report: Path, tmp_path: Path) -> None:
    page, problems = opened(chromium, report, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    scrolls = "box => [box.scrollWidth, box.clientWidth]"
    inside, shown = page.locator("#settings .broad").evaluate(scrolls)
    assert inside > shown, "it keeps a readable size"
    page.screenshot(path=artefact("sweep-phone.png", tmp_path))
    assert problems == []
