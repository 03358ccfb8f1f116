"""The demo recovers most faces, and none that the classifier never saw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file


@pytest.mark.timeout(600)
def test_demo_reads_the_faces_out_of_the_weights(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from engram.cli.app import main; main()", "demo", "-o", str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    audit = json.loads((tmp_path / "audit" / "report.json").read_text())
    counts = audit["comparison"]["scores"]["counts"]["ncc>0.8"]
    assert counts["train"] >= 42, "48 or 49 of 50 where it was measured; other processors round differently"
    assert counts["held_out"] <= 1
    assert f"{counts['train']} of the 50 faces were read out of the weights" in printed
    assert audit["verdict"]["outcome"] == "leak found"
    assert "Leak found" in (tmp_path / "audit" / "report.html").read_text()
    assert (tmp_path / "faces.png").read_bytes().startswith(b"\x89PNG")
    scores = load_file(tmp_path / "audit" / "reconstruction.safetensors")["scores"]
    assert bool((scores.diff() <= 0).all()), "most confident first"
