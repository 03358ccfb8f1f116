"""`engram`: the command line. Commands import what they need when they run, so that help is instant."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from engram.cli import (
    audit,
    data,
    defences,
    inspect,
    membership,
    reconstruct,
    report,
    score,
    sweep,
    train,
)
from engram.cli.options import Commands

app = Commands(
    name="engram",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Measure which training images an attacker could read out of a classifier's weights. "
    "Audit models that you own or may test.",
    epilog="Start with: engram demo",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"engram {version('engram')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command("demo", epilog=audit.DEMO_EXAMPLES)(audit.demo)
app.command("audit", epilog=audit.EXAMPLES)(audit.audit)
app.command("membership", epilog=membership.EXAMPLES)(membership.membership)
app.add_typer(report.policy_app, name="policy")
app.command("report", epilog=report.EXAMPLES)(report.report)
app.command("compare", epilog=report.COMPARE_EXAMPLES)(report.compare)
app.command("harden", epilog=defences.EXAMPLES)(defences.harden)
app.command("defend", epilog=defences.DEFEND_EXAMPLES)(defences.defend)
app.add_typer(data.app, name="data")
app.command("train", epilog=train.EXAMPLES)(train.train)
app.command("inspect", epilog=inspect.EXAMPLES)(inspect.inspect)
app.command("reconstruct", epilog=reconstruct.EXAMPLES)(reconstruct.reconstruct)
app.command("watch", epilog=reconstruct.WATCH_EXAMPLES)(reconstruct.watch)
app.command("score", epilog=score.EXAMPLES)(score.score)
app.command("sweep", epilog=sweep.EXAMPLES)(sweep.sweep)
app.command("reproduce", epilog=score.REPRODUCE_EXAMPLES)(score.reproduce)


def _spin_briefly() -> None:
    """Threads that wait for each other spin while another program occupies a core: a step of the engine took
    1,100 ms instead of 50. So let them spin briefly and then sleep. OpenMP reads this once, when torch is first
    loaded; a policy that the user has set is kept."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def main() -> None:
    """Run the command line; an expected failure is one message and exit code 1, without a traceback."""
    _spin_briefly()
    from engram.core.errors import EngramError

    try:
        app()
    except EngramError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output is gone (`engram ... | head`), which is not our error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
