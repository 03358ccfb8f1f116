"""The command line in tests, in this process: starting another takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest

from engram.cli.app import main

ENGRAM = [sys.executable, "-c", "from engram.cli.app import main; main()"]
WIDE = {"COLUMNS": "200"}


def engram(*arguments: object, expect: int = 0) -> str:
    """Run the command; return what it printed on standard output, or the error if one is expected."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["engram", *map(str, arguments)])
        for name, value in WIDE.items():
            patch.setenv(name, value)
        code = _exit_code(main)
    assert code == expect, err.getvalue() + out.getvalue()
    return out.getvalue() if expect == 0 else err.getvalue()


def _exit_code(command: Callable[[], None]) -> int:
    try:
        command()
    except SystemExit as left:
        return int(left.code or 0)
    return 0
