"""A real browser for tests: Debian's chromium through playwright, or a reason why there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: `make browser` installs Debian's where apt works"
)


PATIENCE = 180_000
"""Milliseconds that a step may take on a machine that does much else; a page takes well under a second."""


@contextmanager
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's own sandbox needs rights that root in a container lacks; the pages are our own.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


def artefact(name: str, default: Path) -> str:
    """Where a screenshot is kept: ENGRAM_ARTEFACTS if set (by `make test`), else the test's own folder."""
    folder = Path(os.environ.get("ENGRAM_ARTEFACTS", default))
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / name)


def opened(chromium: Browser, report: Path, *, width: int = 1200, scheme: str = "light") -> tuple[Page, list[str]]:
    """The page, and every error that it reported and request that it made."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE)
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith("data:") or request.url == report.as_uri()
            else problems.append(f"request: {request.url}")
        ),
    )
    page.goto(report.as_uri())
    return page, problems


def contrast(ink: list[int], paper: list[int]) -> float:
    """WCAG's ratio of two colours."""

    def light(colour: list[int]) -> float:
        parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    high, low = sorted((light(ink), light(paper)), reverse=True)
    return (high + 0.05) / (low + 0.05)
