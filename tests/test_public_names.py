"""`import engram` is instant and gives every public name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import engram


@pytest.mark.parametrize("name", engram.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(engram, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = engram.nonsense


def test_import_loads_no_torch() -> None:
    program = "import sys, engram; print('torch' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False"
