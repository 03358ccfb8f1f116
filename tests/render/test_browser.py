"""The report in a real browser, opened from disk: no error, no request, and everything works."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.auditing.cases import leaking
from tests.render.browser import artefact, contrast, needs_browser, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [needs_browser, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(leaking().to_html(), "utf-8")
    return path


def test_it_opens_from_disk_without_error_or_request(chromium: Browser, report: Path, tmp_path: Path) -> None:
    page, problems = opened(chromium, report)
    page.wait_for_load_state("networkidle")
    assert page.locator("#verdict").inner_text().startswith("Leak found: ")
    broken = "images => images.filter(image => image.src && !image.naturalWidth).length"
    assert page.locator("main img").evaluate_all(broken) == 0
    page.screenshot(path=artefact("report-light.png", tmp_path), full_page=True)
    assert problems == []


def test_an_image_is_enlarged_by_mouse_and_by_keyboard(chromium: Browser, report: Path, tmp_path: Path) -> None:
    page, problems = opened(chromium, report)
    dialog, thumb = page.locator("dialog#enlarged"), page.locator("#pairs .thumb").first
    assert not dialog.is_visible()
    thumb.click()
    assert dialog.is_visible()
    small, large = thumb.locator("img").first.bounding_box(), page.locator("#enlarged-image").bounding_box()
    assert small is not None
    assert large is not None
    assert large["width"] > 2 * small["width"]
    assert page.locator("#enlarged-original").is_visible()
    assert "Training record" in page.locator("#enlarged-caption").inner_text()
    page.screenshot(path=artefact("report-enlarged.png", tmp_path))
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    page.locator("#candidates .thumb").first.focus()
    page.keyboard.press("Enter")
    assert dialog.is_visible()
    assert not page.locator("#enlarged-original").is_visible(), "a candidate has no original"
    page.get_by_role("button", name="Close").click()
    assert not dialog.is_visible()
    assert problems == []


def test_the_risk_table_sorts_and_filters(chromium: Browser, report: Path) -> None:
    page, problems = opened(chromium, report)
    table = page.locator("#risk table")
    heads = table.locator("th").all_inner_texts()
    column = heads.index("SSIM") + 1

    def values() -> list[float]:
        cells = table.locator(f"tbody tr:visible td:nth-child({column})")
        return [float(value) for value in cells.evaluate_all("cells => cells.map(cell => cell.dataset.v)")]

    head = table.get_by_role("button", name="SSIM", exact=True)
    head.click()
    assert len(values()) == 20
    assert values() == sorted(values(), reverse=True)
    assert table.locator("th").nth(column - 1).get_attribute("aria-sort") == "descending"
    head.click()
    assert values() == sorted(values())
    recovered = sum(risk.recovered for risk in leaking().risks)
    page.locator("#risk .only").select_option(label="recovered")
    assert len(values()) == recovered < 20
    assert page.locator("#risk .count").inner_text() == f"{recovered} of 20 rows"
    page.locator("#risk .only").select_option(label="all rows")
    page.locator("#risk .filter").fill("no such text")
    assert values() == []
    page.locator("#risk .filter").fill("")
    assert len(values()) == 20
    assert problems == []


def test_dark_mode_turns_the_page_dark(chromium: Browser, report: Path, tmp_path: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        page, _ = opened(chromium, report, scheme=scheme)
        colours[scheme] = page.evaluate(
            "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name].match(/\\d+/g)"
            ".slice(0, 3).map(Number))"
        )
    page.screenshot(path=artefact("report-dark.png", tmp_path))
    assert all(contrast(*pair) >= 7 for pair in colours.values())
    assert sum(colours["dark"][1]) < 150 < 600 < sum(colours["light"][1])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_quiet_text_and_the_verdict_are_readable(chromium: Browser, report: Path, scheme: str) -> None:
    page, _ = opened(chromium, report, scheme=scheme)
    for selector, behind in (
        ("#verdict", "#verdict"),
        (".tiles dt", ".tiles div"),
        ("caption", "body"),
        ("a", "body"),
    ):
        ink, paper = page.evaluate(
            "([text, paper]) => [[text, 'color'], [paper, 'backgroundColor']].map(([where, name]) => "
            "getComputedStyle(document.querySelector(where))[name].match(/\\d+/g).slice(0, 3).map(Number))",
            [selector, behind],
        )
        assert contrast(ink, paper) >= 4.5, selector


def test_a_phone_needs_no_sideways_scrolling(chromium: Browser, report: Path, tmp_path: Path) -> None:
    page, problems = opened(chromium, report, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#pairs .thumb").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.keyboard.press("Escape")
    page.screenshot(path=artefact("report-phone.png", tmp_path))
    assert problems == []


def test_a_printed_page_shows_no_controls(chromium: Browser, report: Path, tmp_path: Path) -> None:
    page, _ = opened(chromium, report, scheme="dark")
    page.emulate_media(media="print")
    assert not page.locator("#risk .controls").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf(path=artefact("report.pdf", tmp_path))) > 10_000
