"""Kills at any moment: nothing is lost, nothing finished is run again, the pooled result is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engram.core import files
from engram.core.runs import read_index
from engram.sweep.executors import Processes
from engram.sweep.summary import conclude
from engram.sweep.sweep import drive
from tests.cli.command import engram as in_this_process
from tests.sweep import small

ENGRAM = [sys.executable, "-c", "from engram.cli.app import main; main()"]
TRIALS, STEPS = 6, 100


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file and an uninterrupted sweep of it."""
    home = tmp_path_factory.mktemp("kills")
    files.write_tensors(home / "model.safetensors", small.view().network.params)
    chosen = ["--trials", TRIALS, "--set", f"steps={STEPS}", "--set", "candidates=6", "--jobs", 0]
    in_this_process("sweep", home / "model.safetensors", "--input-shape", "3x2x2", "-o", home / "whole", *chosen)
    assert (home / "whole" / "sweep.json").exists()
    return home


def engram(home: Path, out: str, *, jobs: int = 2) -> subprocess.Popen[bytes]:
    arguments = ["sweep", home / "model.safetensors", "--input-shape", "3x2x2", "-o", home / out, "--resume"]
    arguments += ["--trials", TRIALS, "--set", f"steps={STEPS}", "--set", "candidates=6", "--jobs", jobs]
    return subprocess.Popen([*ENGRAM, *map(str, arguments)], stdout=subprocess.DEVNULL)


def finished(directory: Path) -> dict[str, int]:
    """Trials with a directory, and the time it was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in directory.glob("trials/0*/run.json")}


def wait_until(condition: Callable[[], bool], child: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        assert child is None or child.poll() is None, "it ended before it was killed"
        time.sleep(0.01)


def test_a_killed_sweep_resumes_and_ends_like_an_uninterrupted_one(home: Path) -> None:
    """SIGKILL in the middle: its workers end by themselves, and the next sweep resumes their trials."""
    cut = home / "cut"
    child = engram(home, "cut")
    wait_until(lambda: len(finished(cut)) >= 2, child)
    workers = children(child.pid)
    assert len(workers) >= 2
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    wait_until(lambda: not any(is_running(pid) for pid in workers))
    done = finished(cut)
    assert len(done) < TRIALS
    assert engram(home, "cut").wait() == 0
    assert done.items() <= finished(cut).items(), "a finished trial was run again"
    assert len(finished(cut)) == TRIALS
    small.assert_same_pool(home / "whole", cut)
    expected, found = (small.without_times(read_index(run)) for run in (home / "whole", cut))
    assert found == expected


def test_two_sweeps_at_once_share_the_work(home: Path) -> None:
    both = [engram(home, "shared", jobs=1) for _ in range(2)]
    assert [child.wait() for child in both] == [0, 0]
    small.assert_same_pool(home / "whole", home / "shared")
    summary = json.loads((home / "shared" / "sweep.json").read_text())
    assert [row["number"] for row in summary["trials"]] == list(range(TRIALS))
    journal = (home / "shared" / "study.journal").read_text().splitlines()
    made = {line["worker_id"] for line in map(json.loads, journal) if line["op_code"] == 4}
    assert len(made) == 2, "only one of them did anything"


def test_killing_a_worker_loses_no_result(home: Path, tmp_path: Path) -> None:
    chosen = small.spec(TRIALS, steps=STEPS)
    executor = Processes(2)
    with small.opened(tmp_path, chosen) as sweep:
        driver = threading.Thread(target=drive, args=([sweep], executor))
        driver.start()
        try:
            for count in (1, 4):
                wait_until(lambda limit=count: len(finished(tmp_path)) >= limit)  # type: ignore[misc]
                os.kill(executor.pids[count % 2], signal.SIGKILL)
        finally:
            driver.join()
            executor.close()
        conclude(sweep)
    small.assert_same_pool(home / "whole", tmp_path)


def children(pid: int) -> list[int]:
    """Child processes, as listed by Linux."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    if not listed.exists():
        pytest.skip("needs Linux's /proc to see the workers")
    return [int(one) for one in listed.read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
