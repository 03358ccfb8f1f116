"""The page of the papers' figures in a real browser, opened from disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from engram.papers.cases import Setting
from engram.papers.catalogue import CATALOGUE, Run
from engram.papers.results import publish
from tests.render.browser import artefact, browser, needs_browser, opened

pytestmark = [needs_browser, pytest.mark.timeout(400)]


def test_it_opens_from_disk_without_error_or_request(tmp_path: Path) -> None:
    run = Run(tmp_path, Setting(scale="smoke"), lambda line: None, lambda share, what: None)
    run.experiments([CATALOGUE["haim/fig3"], CATALOGUE["haim/table1"]], keep_going=False)
    report, _ = publish(tmp_path)
    with browser() as chromium:
        page, problems = opened(chromium, report, width=700)
        page.wait_for_load_state("networkidle")
        pictures = page.locator("img.exhibit")
        assert pictures.count() == 2
        widths = [pictures.nth(index).evaluate("image => image.naturalWidth") for index in range(2)]
        assert min(widths) > 100, "both are drawn"
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert "Not compared: scale smoke" in page.locator("#compared + ul").inner_text()
        page.screenshot(path=artefact("papers.png", tmp_path), full_page=True)
    assert problems == []
