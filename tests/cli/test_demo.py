"""The demo keeps its promise: most faces come back, and none that the classifier never saw."""

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
    counts = json.loads((tmp_path / "attack" / "scores.json").read_text())["counts"]["ncc>0.8"]
    assert counts["train"] >= 42, "49 of 50 where it was measured; other processors round differently"
    assert counts["held_out"] <= 1
    assert f"{counts['train']} of the 50 faces were read out of the weights" in printed
    assert (tmp_path / "faces.png").read_bytes().startswith(b"\x89PNG")
    scores = load_file(tmp_path / "attack" / "reconstruction.safetensors")["scores"]
    assert bool((scores.diff() <= 0).all()), "most confident first"
