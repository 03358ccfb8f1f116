"""`engram policy`: write a policy, and judge a finished audit by one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli import options as opt

if TYPE_CHECKING:
    from engram.auditing.policy import Decision, Policy

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
app = typer.Typer(no_args_is_help=True, help="Decide by written rules whether a model may be released.")


@app.command("init", epilog=INIT_EXAMPLES)
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


@app.command("check", epilog=CHECK_EXAMPLES)
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
        decision.save(run)
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
    """Decide, write decision.json, print the decision, and leave with its exit code."""
    decision = policy.decide(report)
    decision.save(out)
    show_decision(decision, explain=explain)
    typer.echo(f"For programs: {out / 'decision.json'}")
    raise typer.Exit(EXIT_CODES[decision.outcome])


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
