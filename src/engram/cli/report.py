"""What is done with an audit: `engram policy` decides by it, `engram report` makes its page again, and
`engram compare` sets two side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli import options as opt

if TYPE_CHECKING:
    from engram.auditing.policy import Decision, Policy
    from engram.auditing.side_by_side import SideBySide
    from engram.render.html import Page

LEAK_EXIT_CODE, DOUBT_EXIT_CODE = 3, 4
EXIT_CODES = {"pass": 0, "fail": LEAK_EXIT_CODE, "not enough evidence": DOUBT_EXIT_CODE}
COLOURS = {"pass": "green", "fail": "red", "not enough evidence": "yellow"}
INIT_EXAMPLES = "Example: engram policy init policy.toml"
CHECK_EXAMPLES = "Example: engram policy check runs/audit --policy policy.toml --explain"
DEFAULT = """\
# What an audit must show before this model is published: engram audit MODEL ... --policy policy.toml
# Every rule is optional: put # before it to drop it. docs/guides/policy.md says how each is judged.
# Exit codes: 0 pass, 3 fail, 4 not enough evidence. Any rule that fails decides; then any that lacks evidence.

name = "publish"

# What may leak. A limit fails, or passes, only if chance can't explain the numbers.

# Training images that come back, beyond those that held-out images give by chance.
images_recovered = 0

# Share of the training records that an attacker identifies without a false alarm, and with 1 % false alarms.
# The upper bound at 95 % confidence must be below: 0 of 72 records are enough to show 5 %.
members_at_0_fpr = 0.05
members_at_1_fpr = 0.10

# The lower bound of epsilon in differential privacy that the weights prove.
epsilon = 1.0

# What must have been done. Where it was not, there is not enough evidence, whatever was found.

# The audit must have had the training records: a blind audit shows what comes back, not how much of it is true.
data = true

# Of reconstruction, membership, model inversion. For models that can't be reconstructed, such as transformers,
# drop reconstruction here, and with it images_recovered and smallest_budget.
tests = ["reconstruction", "membership"]

# Held-out records, at least.
smallest_control = 200

# Seconds that the attack must have had (--budget), at least.
smallest_budget = 60

# Share of the training records that the model must classify right, at least: the records of another model would
# show no leak. A model trained with strong privacy may need less.
smallest_accuracy = 0.7

# For audits without data, in place of the rules above: candidates that show a training image at 90 % confidence.
# confident_candidates = 0
"""
policy_app = opt.Commands(no_args_is_help=True, help="Decide by written rules whether a model may be released.")


@policy_app.command("init", epilog=INIT_EXAMPLES)
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("policy.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a policy with comments, strict enough for a model that everybody may download."""
    from engram.core.errors import ConfigError
    from engram.core.files import write_bytes

    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a file in it, e.g. {path / 'policy.toml'}")
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; replace it with --force, or name another file")
    write_bytes(path, DEFAULT.encode())
    typer.echo(f"Wrote {path}: edit it, then run engram audit MODEL ... --policy {path}")


@policy_app.command("check", epilog=CHECK_EXAMPLES)
def check(
    run: Annotated[
        Path, typer.Argument(help="The directory of a finished `engram audit` or `engram membership`.")
    ],
    policy: Annotated[Path, typer.Option("--policy", metavar="FILE", help="The policy.")],
    explain: opt.Explain = False,
    save: Annotated[bool, typer.Option("--save", help="Write decision.json into the run.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Judge a finished audit by a policy; nothing is computed again.

    The exit code is 0 for pass, 3 for fail, 4 for not enough evidence, 1 for an error.
    """
    decision = checked(policy).decide(finished(run))
    if save:
        saved(decision, run)
    if as_json:
        typer.echo(json.dumps(decision.to_json(), indent=2))
    else:
        show_decision(decision, explain=explain)
    raise typer.Exit(EXIT_CODES[decision.outcome])


def checked(path: Path) -> Policy:
    from engram.auditing.policy import Policy

    return Policy.load(path)


def finished(run: Path) -> Mapping[str, Any]:
    """The report of an audit, or of a membership test."""
    from engram.core.errors import CheckpointError
    from engram.core.files import read_json

    found = [run / name for name in ("report.json", "membership.json") if (run / name).is_file()]
    if not found:
        raise CheckpointError(f"{run} has no report.json; give the directory of a finished `engram audit`")
    report = read_json(found[0], cure="audit again")
    if not isinstance(report, dict):
        raise CheckpointError(f"{found[0]} is damaged: it must be a JSON object; audit again")
    return report


def chosen_policy(path: Path | None, *, explain: bool, fail_on_leak: bool) -> Policy | None:
    """The policy that a command was given, read before anything is computed."""
    from engram.core.errors import ConfigError

    if path is None:
        if explain:
            raise ConfigError("--explain does nothing without --policy; give a policy, or leave it out")
        return None
    if fail_on_leak:
        raise ConfigError("--policy and --fail-on-leak both set the exit code; leave --fail-on-leak out")
    return checked(path)


def apply_policy(policy: Policy, out: Path, report: Mapping[str, Any], *, explain: bool) -> None:
    """Decide, write decision.json and the report that shows it, print it, and leave with its exit code."""
    decision = policy.decide(report)
    saved(decision, out)
    show_decision(decision, explain=explain)
    typer.echo(f"For programs: {out / 'decision.json'}")
    raise typer.Exit(EXIT_CODES[decision.outcome])


def saved(decision: Decision, run: Path) -> None:
    """decision.json in the run, and its report with the decision first."""
    from engram.core import files
    from engram.render.html import PAGE_FILE, render

    decision.save(run)
    if (run / PAGE_FILE).exists():
        files.write_bytes(run / "report.html", render(stored_page(run)).encode())


def show_decision(decision: Decision, *, explain: bool) -> None:
    typer.secho(decision.sentence, fg=COLOURS[decision.outcome], bold=True)
    if not explain:
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("rule", "limit", "measured", "outcome", "why")
    for one in decision.rules:
        outcome = Text(one.outcome, style=COLOURS[one.outcome])
        table.add_row(Text(one.rule), Text(one.limit), Text(one.value), outcome, Text(one.reason))
    Console().print(table)


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
    from engram.core import files
    from engram.render.html import render

    text = render(stored_page(run)).encode()
    target = out or run / ("report.pdf" if pdf else "report.html")
    files.write_bytes(target, printed(text) if pdf else text)
    typer.echo(f"Wrote {target}")


def stored_page(run: Path) -> Page:
    """A run's page, with its decision if there is one."""
    from dataclasses import replace

    from engram.core.errors import ConfigError
    from engram.render.html import DECISION_FILE, PAGE_FILE, read_decision, read_page

    if not (run / PAGE_FILE).exists():
        raise ConfigError(_why_not(run))
    page = read_page(run / PAGE_FILE)
    if (run / DECISION_FILE).exists():
        page = replace(page, decision=read_decision(run / DECISION_FILE))
    return page


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
            *(browser, "--headless", "--disable-gpu", f"--user-data-dir={folder}/profile"),
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
