"""The notebooks run from top to bottom, show what they promise, and are stored without outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra dev: pip install '.[dev]'")
nbclient = pytest.importorskip("nbclient", reason="notebooks need the extra dev: pip install '.[dev]'")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
PROMISED = {
    "audit_your_model": ("Leak suspected", "Leak found:", "against 0 of 30 held-out records", "recovered True"),
    "membership_and_harden": ("Leak found:", "Reached with", "no controls"),
}


def test_there_are_two() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(PROMISED)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs(path: Path) -> None:
    code = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert code
    assert not [cell for cell in code if cell.outputs or cell.execution_count is not None]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, 4)
    # the kernel listens on a file of this directory, not on a port
    client = nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources=_in(tmp_path))
    client.execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = "".join(output.get("text", "") for output in outputs)
    assert not [promise for promise in PROMISED[path.stem] if promise not in shown], shown
    assert not [output for output in outputs if output.get("name") == "stderr"]
    pictures = [output for output in outputs if "<img" in output.get("data", {}).get("text/html", "")]
    assert len(pictures) == (path.stem == "audit_your_model")


def _in(directory: Path) -> dict[str, Any]:
    return {"metadata": {"path": str(directory)}}
