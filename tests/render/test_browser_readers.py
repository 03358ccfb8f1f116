"""The report for its three readers in a real browser: one screen, pages of rows, keys alone, paper, axe."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engram.auditing.membership_report import page_of as membership_page
from engram.auditing.membership_report import run_membership
from engram.auditing.page import page_of
from engram.auditing.run import audit
from engram.auditing.side_by_side import SideBySide, read_side, side_by_side_page
from engram.cli.report import printed
from engram.models.open.modules import as_module
from engram.render.html import Page, Section, ShownDecision, ShownRule, Table, render
from tests.auditing.cases import QUICK, SHAPE, faces, innocent, leaking, memorising
from tests.render.browser import PATIENCE, artefact, needs_browser, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api import Page as Screen

pytestmark = [needs_browser, pytest.mark.timeout(400)]

RULES = [
    ShownRule("images recovered", "at most 0 beyond the control", "9", "fail", "9 of 20 records came back."),
    ShownRule("smallest control", "at least 100", "20", "not enough evidence", "Give 80 more held-out records."),
]
DECISION = ShownDecision("fail", "Fail: 9 images beyond the control.", "images recovered", RULES)
A4_PIXELS = (210 - 2 * 13) / 25.4 * 96
"""The width between the margins."""


def audited() -> Page:
    return page_of(leaking(), DECISION)


def blind() -> Page:
    return page_of(audit(memorising(), input_shape=SHAPE, settings=QUICK, baselines="none"))


def asked() -> Page:
    found = run_membership(as_module(memorising()), faces(0), faces(20), name="gate", not_tried="it has a loop")
    return membership_page(found, DECISION)


def compared(folder: Path) -> Page:
    leaking().save(folder / "before")
    innocent().save(folder / "after")
    return side_by_side_page(SideBySide(read_side(folder / "before"), read_side(folder / "after")))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind."""
    folder = tmp_path_factory.mktemp("readers")
    pages = {"audit": audited(), "blind": blind(), "membership": asked(), "compare": compared(folder)}
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(render(page), "utf-8")
    return {name: folder / f"{name}.html" for name in pages}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit's page with a table of 70 rows in place of its own 20."""
    path = tmp_path_factory.mktemp("long") / "report.html"
    rows = [(index, index % 2 == 0, index * index % 71) for index in range(70)]
    table = Table(("record", "even", "value"), rows, "Many rows", sortable=True)
    page = audited()
    sections = [
        Section(one.anchor, one.title, tables=[table], reader="engineer") if one.anchor == "risk" else one
        for one in page.sections
    ]
    path.write_text(render(replace(page, sections=sections)), "utf-8")
    return path


KINDS = ["audit", "blind", "membership", "compare"]


@pytest.mark.parametrize("name", ["audit", "blind", "membership"])
def test_whoever_decides_reads_one_screen(
    chromium: Browser, reports: dict[str, Path], name: str, tmp_path: Path
) -> None:
    page, problems = opened(chromium, reports[name], width=1280)
    page.set_viewport_size({"width": 1280, "height": 800})
    page.screenshot(path=artefact(f"{name}-first-screen.png", tmp_path))
    box = page.locator("#decide").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 800
    assert 1 <= page.locator("#decide .thumb").count() <= 5
    assert page.locator("#decide h2").all_inner_texts()[1:] == ["What was tried", "What to do"]
    assert page.locator(".readers a").all_inner_texts() == ["Decide", "Review", "Engineer"]
    assert [page.locator(f"#{part} > h2").inner_text() for part in ("review", "engineer")] == [
        "Review",
        "Engineer",
    ]
    assert problems == []


def test_a_decision_comes_first_and_unfolds_its_rules(chromium: Browser, reports: dict[str, Path]) -> None:
    page, _ = opened(chromium, reports["audit"])
    decision, verdict = page.locator("#decision").bounding_box(), page.locator("#verdict").bounding_box()
    assert decision is not None
    assert verdict is not None
    assert decision["y"] < verdict["y"]
    assert page.locator(".rules summary").inner_text() == "2 rules: 1 fail, 1 not enough evidence"
    assert not page.locator("#rules").is_visible()
    page.locator(".rules summary").click()
    assert page.locator("#rules tbody tr").count() == 2
    assert "Give 80 more" in page.locator("#rules").inner_text()


def test_hits_come_first_and_a_link_unfolds_the_rest(chromium: Browser, reports: dict[str, Path]) -> None:
    page, problems = opened(chromium, reports["audit"])
    recovered = [risk.index for risk in leaking().risks if risk.recovered]
    missed = [risk.index for risk in leaking().risks if not risk.recovered]
    shown = page.locator("#pairs > .gallery > li")
    assert set(shown.evaluate_all("all => all.map(one => one.id)")) == {f"pair-{index}" for index in recovered}
    hidden = page.locator(f"#pair-{missed[0]}")
    assert not hidden.is_visible()
    page.locator(f'#risk a[href="#pair-{missed[0]}"]').click()
    hidden.wait_for(state="visible")
    small = page.locator("#risk td img.small")
    assert small.count() == 20, "a thumbnail for every record"
    assert problems == []


def values(table: Locator, column: int) -> list[int]:
    cells = table.locator(f"tbody tr:visible td:nth-child({column})")
    return [int(value) for value in cells.evaluate_all("cells => cells.map(cell => cell.dataset.v)")]


def test_many_rows_come_in_pages_that_sort_and_filter(chromium: Browser, long: Path) -> None:
    page, problems = opened(chromium, long)
    table, place = page.locator("#risk table"), page.locator("#risk .place")
    next_, previous = (page.get_by_role("button", name=name) for name in ("Next", "Previous"))
    assert values(table, 1) == list(range(25))
    assert place.inner_text() == "1 to 25 of 70"
    next_.click()
    next_.click()
    assert values(table, 1) == list(range(50, 70))
    next_.click(force=True)
    assert place.inner_text() == "51 to 70 of 70", "there is no page after the last"
    previous.click()
    assert values(table, 1) == list(range(25, 50))
    table.get_by_role("button", name="value").click()
    assert values(table, 3) == sorted((index * index % 71 for index in range(70)), reverse=True)[:25]
    page.locator("#risk .only").select_option(label="even")
    assert place.inner_text() == "1 to 25 of 35"
    assert all(value % 2 == 0 for value in values(table, 1))
    page.locator("#risk .filter").fill("no such row")
    assert (values(table, 1), place.inner_text()) == ([], "no rows")
    assert problems == []


def test_paper_has_every_page_of_rows(chromium: Browser, long: Path) -> None:
    page, _ = opened(chromium, long)
    page.emulate_media(media="print")
    assert len(values(page.locator("#risk table"), 1)) == 60
    assert page.get_by_text("Printed: the first 60 of 70 rows.").is_visible()


def test_without_scripts_everything_can_be_read(chromium: Browser, long: Path) -> None:
    context = chromium.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(long.as_uri())
    assert page.locator("#risk tbody tr:visible").count() == 70
    assert not page.locator("#risk .controls").first.is_visible()
    page.locator("#pairs details summary").click()
    assert page.locator("#pairs details .thumb").first.is_visible()


def tab_to(page: Screen, wanted: Callable[[], bool], most: int = 400) -> None:
    for _ in range(most):
        page.keyboard.press("Tab")
        if wanted():
            return
    raise AssertionError("the focus never gets there")


def focused(page: Screen, selector: str) -> Callable[[], bool]:
    return lambda: bool(page.evaluate("where => document.activeElement.matches(where)", selector))


def test_keys_alone_reach_and_work_everything(chromium: Browser, long: Path) -> None:
    page, problems = opened(chromium, long)
    page.keyboard.press("Tab")
    skip = page.locator(".skip")
    assert focused(page, ".skip")()
    assert skip.bounding_box()["x"] >= 0, "it shows itself"  # type: ignore[index]
    page.keyboard.press("Enter")
    assert focused(page, "#main")()
    tab_to(page, focused(page, "#decide .thumb"))
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid", "the focus can be seen"
    page.keyboard.press("Enter")
    assert page.locator("dialog#enlarged").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog#enlarged").is_visible()
    assert focused(page, "#decide .thumb")(), "the focus is back where it was"
    table = page.locator("#risk table")
    page.locator("#risk .filter").focus()
    tab_to(page, focused(page, "#risk .sort"))
    page.keyboard.press("Enter")
    assert values(table, 1)[:3] == [69, 68, 67]
    tab_to(page, focused(page, "#risk .next"))
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Space")
    page.keyboard.press("Space")
    page.keyboard.press("Space")
    assert values(table, 1)[-1] == 0
    assert focused(page, "#risk .next")(), "the last page keeps the focus"
    assert problems == []


@pytest.mark.parametrize("name", KINDS)
def test_a_phone_needs_no_sideways_scrolling(
    chromium: Browser, reports: dict[str, Path], name: str, tmp_path: Path
) -> None:
    page, problems = opened(chromium, reports[name], width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.screenshot(path=artefact(f"{name}-phone.png", tmp_path))
    assert problems == []


@pytest.mark.parametrize(("name", "scheme"), [*((name, "light") for name in KINDS), ("audit", "dark")])
def test_axe_finds_no_violation(chromium: Browser, reports: dict[str, Path], name: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

    page, _ = opened(chromium, reports[name], width=1280, scheme=scheme)
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["impact"], [node["html"][:120] for node in one["nodes"][:3]]) for one in found] == []


@pytest.mark.parametrize("name", KINDS)
def test_nothing_reaches_beyond_the_margin_of_paper(
    chromium: Browser, reports: dict[str, Path], name: str
) -> None:
    page, _ = opened(chromium, reports[name], width=int(A4_PIXELS), scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    beyond = (
        "width => [...document.querySelectorAll('main *')]"
        ".filter(one => one.getBoundingClientRect().right > width + 1).map(one => one.outerHTML.slice(0, 80))"
    )
    assert page.evaluate(beyond, int(A4_PIXELS)) == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav:visible, .controls:visible, summary:visible").count()


def test_the_pdf_is_a_short_document_with_nothing_folded(reports: dict[str, Path], tmp_path: Path) -> None:
    from pypdf import PdfReader

    path = Path(artefact("report.pdf", tmp_path))
    path.write_bytes(printed(reports["audit"].read_bytes()))
    pages = PdfReader(path).pages
    assert 3 <= len(pages) <= 8
    assert all(
        (round(one.mediabox.width), round(one.mediabox.height)) in {(595, 842), (594, 842)} for one in pages
    )
    text = unicodedata.normalize("NFKC", " ".join(" ".join(one.extract_text().split()) for one in pages))
    assert "Give 80 more held-out records." in text, "the rules are unfolded"
    for section in audited().sections:
        assert section.title in text
    missed = next(risk for risk in leaking().risks if not risk.recovered and risk.ssim is not None)
    assert f"{missed.ssim:.2f}" in text, "and so are the pictures that are no hits"
