"""`engram bench` as a person uses it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engram.cli.app import app
from engram.core.errors import EngramError
from tests.cli.command import ENGRAM, engram
from tests.cli.test_flow import target

__all__ = ["target"]  # the small gate that the other commands are tested on

QUICK = ("--published-seconds", 0.3, "--budget", "0.5s")


def test_bench_leaves_numbers_and_a_plot(target: Path, tmp_path: Path) -> None:
    printed = engram("bench", target, *QUICK, "--metric", "ssim>0.4", "-o", tmp_path)
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["headline"] == "ssim>0.4"
    assert record["target"]["data"] == "faces", "from the card"
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert printed.index("ssim>0.4: ") < printed.index("ncc>0.8: "), "the headline comes first"
    assert "computed, not measured: the authors' 50,000 steps" in printed


def test_bench_trains_a_target_where_none_is_given(tmp_path: Path) -> None:
    engram("bench", "-n", 10, "--epochs", 5, *QUICK, "-o", tmp_path)
    record = json.loads((tmp_path / "bench.json").read_text())
    assert (record["target"]["network"], record["target"]["n"]) == ("625-1000-1000-1", 10)


def test_ctrl_c_keeps_what_was_measured(target: Path, tmp_path: Path) -> None:
    arguments = ["bench", str(target), "--budget", "0.5s", "--published-seconds", "600", "-o", str(tmp_path)]
    child = subprocess.Popen(
        [*ENGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
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
        (("TARGET", "-n", "10"), "-n does nothing beside the finished target"),
        (("TARGET", "--metric", "l2"), "metric must be one of ssim>0.4, ncc>0.8"),
        (("TARGET", "--budget", "soon"), "--budget must be a positive time"),
        (("TARGET", "--published-seconds", "0"), "published_seconds must be positive"),
        (("nowhere",), "nowhere"),
        (("FILE",), "does not say what it was trained on; give a directory of `engram train`"),
        (("--epochs", "0"), "epochs must be positive"),
        (("--data", "facse"), "did you mean faces?"),
    ],
)
def test_errors_name_cause_and_cure(
    target: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    places = {"TARGET": str(target), "FILE": str(target / "model.safetensors")}
    filled = [places.get(argument, argument) for argument in arguments]
    result = CliRunner().invoke(app, ["bench", *filled, "-o", str(tmp_path / "out")])
    assert isinstance(result.exception, EngramError)
    assert message in str(result.exception)


def test_an_error_is_one_message_and_exit_code_1(tmp_path: Path) -> None:
    assert engram("bench", "nowhere", "-o", tmp_path, expect=1).startswith("error: ")
