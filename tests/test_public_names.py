"""`import engram` is instant and provides every public name."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import engram


@pytest.mark.parametrize("name", engram.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(engram, name).__name__ == name


def test_what_is_public_is_what_is_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "api.md").read_text()
    documented = re.findall(r"^::: engram\.(\w+)$", page, re.MULTILINE)
    assert sorted(documented) == engram.__all__
    assert all(getattr(engram, name).__doc__ for name in documented)


def test_what_is_importable_is_what_is_public() -> None:
    """At run time, and as type checkers and the documentation see it."""
    importable = {name for name in dir(engram) if not name.startswith("_")}
    modules = {name for name in importable if isinstance(getattr(engram, name), type(sys))}
    assert importable - modules - {"annotations", "import_module", "TYPE_CHECKING", "Any"} == set(engram.__all__)
    source = Path(str(engram.__file__)).read_text()
    typed = [
        alias.asname
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(map(str, typed)) == engram.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = engram.nonsense


def test_import_loads_no_torch() -> None:
    program = "import sys, engram; print('torch' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("given", "spin"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["nothing set", "own count", "own policy"],
)
def test_threads_do_not_spin_for_long_unless_asked_to(given: dict[str, str], spin: str) -> None:
    mine = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in mine} | given
    program = (
        "import os, sys, engram; before = dict(os.environ); from engram.cli.app import main;"
        "assert dict(os.environ) == before, 'an import changed the environment';"
        "sys.argv = ['engram', '--version'];"
        "import contextlib, io;"
        "\ntry:\n  with contextlib.redirect_stdout(io.StringIO()): main()\nexcept SystemExit: pass\n"
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert child.stdout.strip() == spin
