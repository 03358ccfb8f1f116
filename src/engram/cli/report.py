"""`engram report`: an audit's report again, from what its run stored; `engram compare`: two, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from engram.auditing.side_by_side import SideBySide

EXAMPLES = "Examples: engram report runs/audit; engram report runs/audit --pdf -o audit.pdf"
COMPARE_EXAMPLES = "Example: engram compare runs/before runs/after -o runs/compared"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PRINTING_SECONDS = 180.0


def report(
    run: Annotated[Path, typer.Argument(help="Directory of `engram audit` or `engram membership`.")],
    pdf: Annotated[bool, typer.Option("--pdf", help="Print it as PDF, with Chromium or Chrome.")] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File to write; by default report.html or .pdf in the run.")
    ] = None,
) -> None:
    """Make an audit's report again from what its run stored; nothing is computed.

    Reads page.json, and decision.json if there is one, which is then shown first.
    """
    from dataclasses import replace

    from engram.core import files
    from engram.core.errors import ConfigError
    from engram.render.html import DECISION_FILE, PAGE_FILE, read_decision, read_page, render

    if not (run / PAGE_FILE).exists():
        raise ConfigError(_why_not(run))
    page = read_page(run / PAGE_FILE)
    if (run / DECISION_FILE).exists():
        page = replace(page, decision=read_decision(run / DECISION_FILE))
    target = out or run / ("report.pdf" if pdf else "report.html")
    text = render(page).encode()
    files.write_bytes(target, printed(text) if pdf else text)
    typer.echo(f"Wrote {target}")


def _why_not(run: Path) -> str:
    if not run.is_dir():
        return f"{run} is not a directory; give the directory of `engram audit` or `engram membership`"
    if (run / "report.json").exists() or (run / "membership.json").exists():
        return (
            f"{run} was written by an older engram, which did not store its page (page.json); its report.html is "
            "as it was, and a new audit stores it"
        )
    if (run / "hardening.json").exists():
        return f"{run} is of `engram harden`; give the audit in it: {run / 'before'} or {run / 'after'}"
    return f"{run} has no finished audit; give the directory of `engram audit` or `engram membership`"


def printed(html: bytes) -> bytes:
    """A page as PDF, printed by a browser that is installed."""
    import os
    import shutil
    import subprocess
    import tempfile

    from engram.core.errors import ConfigError

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise ConfigError(
            f"--pdf needs Chromium or Chrome, and there is no {', '.join(BROWSERS)}; install one, or open the "
            "report in any browser and print it"
        )
    with tempfile.TemporaryDirectory(prefix="engram-", ignore_cleanup_errors=True) as folder:
        page, target = Path(folder, "report.html"), Path(folder, "report.pdf")
        page.write_bytes(html)
        command = [
            *(
                browser,
                "--headless",
                "--disable-gpu",
                "--no-pdf-header-footer",
                f"--user-data-dir={folder}/profile",
            ),
            # The sandbox needs rights that root in a container lacks. The page is ours and loads nothing.
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            *("--no-pdf-header-footer", f"--print-to-pdf={target}", page.as_uri()),
        ]
        try:
            done = subprocess.run(command, capture_output=True, timeout=PRINTING_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"{browser} can't print ({error}); print the report.html yourself") from error
        if not target.exists():
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            reason = lines[-1][:200] if lines else f"it ended with {done.returncode}"
            raise ConfigError(f"{browser} wrote no PDF ({reason}); print the report.html yourself")
        return target.read_bytes()


def compare(
    before: Annotated[Path, typer.Argument(help="Directory of `engram audit` or `engram membership`.")],
    after: Annotated[Path, typer.Argument(help="Another one, of the same kind of records.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Directory for compare.html and compare.json.")
    ] = None,
) -> None:
    """Two audits side by side, before and after a change: what differs, and whether chance explains it.

    Reads report.json (or membership.json) and decision.json of both runs; nothing is computed anew.
    """
    from engram.auditing.side_by_side import SideBySide, read_side, side_by_side_page
    from engram.core import files
    from engram.core.errors import ConfigError
    from engram.render.html import render

    if before.resolve() == after.resolve():
        raise ConfigError(f"{before} and {after} are the same run; give two")
    found = SideBySide(read_side(before), read_side(after))
    _show(found)
    if out is not None:
        files.prepare_directory(out)
        files.write_json(out / "compare.json", found.to_json())
        files.write_bytes(out / "compare.html", render(side_by_side_page(found)).encode())
        typer.echo(f"Open {out / 'compare.html'}; for programs: {out / 'compare.json'}")


def _show(found: SideBySide) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("", *(escape(side.run) for side in (found.before, found.after)))
    for row in found.rows():
        table.add_row(*map(escape, row))
    for name, one, two in found.differing_settings:
        table.add_row(escape(f"setting {name}"), escape(one), escape(two))
    Console().print(table)
    said = {True: "yes", False: "no", None: "unknown"}
    typer.echo(f"Same weights: {said[found.same_weights]}. Same records: {said[found.same_records]}.")
    typer.secho(found.sentence, bold=True)
