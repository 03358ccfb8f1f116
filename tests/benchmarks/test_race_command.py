"""`python -m benchmarks.race` as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.race import main

from tests.cli.test_flow import target

__all__ = ["target"]  # the small target that the commands are tested on

QUICK = ("--published-seconds", "0.3", "--budget", "0.5")


def test_the_command_writes_numbers_and_a_plot(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(target), *QUICK, "--metric", "ssim>0.4", "-o", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["headline"] == "ssim>0.4"
    assert record["target"]["data"] == "faces", "from the card"
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert printed.index("ssim>0.4: ") < printed.index("ncc>0.8: "), "the headline comes first"
    assert "computed, not measured: the authors' 50,000 steps" in printed


def test_ctrl_c_keeps_what_was_measured(target: Path, tmp_path: Path) -> None:
    arguments = [str(target), "--budget", "0.5", "--published-seconds", "600", "-o", str(tmp_path)]
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.race", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 180
    while not (tmp_path / "bench.png").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # well inside the published scheme's ten minutes
    child.send_signal(signal.SIGINT)
    printed, _ = child.communicate(timeout=60)
    assert child.returncode == 130, printed
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["interrupted"] is True
    assert record["engine"]["curve"], "the engine had finished"
    assert record["published"]["stopped"] == "interrupted"
    assert record["published"]["seconds_per_step"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("TARGET", "--metric", "l2"), "metric must be one of ssim>0.4, ncc>0.8"),
        (("TARGET", "--published-seconds", "0"), "published_seconds must be positive"),
        (("nowhere",), "nowhere"),
        (("FILE",), "does not say what it was trained on; give a directory of `engram train`"),
    ],
)
def test_errors_name_cause_and_cure(
    target: Path, tmp_path: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"TARGET": str(target), "FILE": str(target / "model.safetensors")}
    filled = [places.get(argument, argument) for argument in arguments]
    assert main([*filled, "-o", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().err
    assert "error: " in printed
    assert message in printed
