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
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: `make browser` installs Debian's where apt works"
)


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
