"""Every command in README and docs is accepted by the command line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from engram.cli import app as command_line
from engram.cli import (
    audit,
    defences,
    inspect,
    membership,
    reconstruct,
    report,
    score,
    sweep,
    train,
)

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
HELP = {
    f"help of {module.__name__.rpartition('.')[2]}": module.EXAMPLES
    for module in (audit, inspect, membership, reconstruct, score, sweep, train)
} | {"help of demo": audit.DEMO_EXAMPLES, "help of watch": reconstruct.WATCH_EXAMPLES}
HELP |= {"help of reproduce": score.REPRODUCE_EXAMPLES}
HELP |= {"help of report": report.EXAMPLES, "help of compare": report.COMPARE_EXAMPLES}
HELP |= {"help of harden": defences.EXAMPLES, "help of defend": defences.DEFEND_EXAMPLES}
HELP |= {"help of policy init": report.INIT_EXAMPLES, "help of policy check": report.CHECK_EXAMPLES}
PLACEHOLDERS = {"N": "10", "NUMBER": "10", "...": "10"}


def blocks(text: str) -> list[str]:
    """Commands in indented blocks, also in lists, their lines joined, without comments; not those in a fence."""
    plain = re.sub(r"(?ms)^ *```.*?^ *```", "", text)
    lines = re.sub(r"\\\n\s*", " ", plain).splitlines()
    return [line.strip().partition("  #")[0] for line in lines if re.match(" {4,}engram ", line)]


def mentions(text: str) -> list[str]:
    """Commands between backticks, with options; those broken over two lines too."""
    found = re.findall(r"`(engram [^`]+)`", text)
    return [" ".join(one.split()) for one in found]


def examples(text: str) -> list[str]:
    """Commands in an epilog of --help."""
    without_remarks = re.sub(r" \([^)]*\)", "", text)
    return [one.strip() for one in re.sub(r"^Examples?: ", "", without_remarks).split("; ")]


def found() -> list[tuple[str, str]]:
    listed = [(path.name, command) for path in DOCUMENTS for command in blocks(path.read_text())]
    listed += [(path.name, command) for path in DOCUMENTS for command in mentions(path.read_text())]
    listed += [(name, command) for name, text in HELP.items() for command in examples(text)]
    return [(where, command) for where, command in listed if "|" not in command]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the words after it."""
    command: Any = typer.main.get_command(command_line.app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def require_options(line: str) -> None:
    """Every word that looks like an option is one of the command."""
    command, words = command_of(shlex.split(re.sub(r"[\[\]]", "", line))[1:])
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if re.match(r"--?[a-z]", word) and word not in options | {"--help"}]
    assert not unknown, f"{unknown} are not options of {command.name}"


@pytest.mark.parametrize(("where", "line"), found())
def test_options_exist(where: str, line: str) -> None:
    require_options(line)


BLOCKS = [(path.name, line) for path in DOCUMENTS for line in blocks(path.read_text()) if "[" not in line]
WHOLE = BLOCKS + [(name, line) for name, text in HELP.items() for line in examples(text)]


@pytest.mark.parametrize(("where", "line"), WHOLE)
def test_whole_commands_are_accepted_as_written(where: str, line: str) -> None:
    """Arguments that are missing or of the wrong type are errors of the parser; nothing is run."""
    command, words = command_of([PLACEHOLDERS.get(word, word) for word in shlex.split(line)][1:])
    command.make_context(command.name, words)


def test_a_wrong_command_would_be_found() -> None:
    assert len(found()) > 120
    assert {"README.md", "quickstart.md", "own-model.md", "defend.md"} <= {where for where, _ in found()}
    with pytest.raises(AssertionError, match="--colour"):
        require_options("engram audit model.pt --colour red")
    with pytest.raises(AssertionError, match="no command paint"):
        require_options("engram paint model.pt")
    command, words = command_of(["audit", "model.pt"])
    with pytest.raises(Exception, match="Missing parameter: out"):
        command.make_context(command.name, words)
