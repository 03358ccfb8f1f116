"""Cases: computed once, written complete, resumed after a kill, and distinguished by their settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engram.attacks.settings import EngineSettings
from engram.core import files
from engram.core.errors import CheckpointError, ConfigError
from engram.core.loop import silent
from engram.papers.cases import Case, CasePlan, Means, Setting, find_case, run_case
from engram.papers.records import RECORD_FILE, Finished

SMOKE = Setting(scale="smoke", means=Means())


def _run(order: CasePlan, home: Path) -> tuple[Finished, list[float]]:
    shares: list[float] = []
    finished = run_case(order, Means(), home, progress=lambda _, share: shares.append(share))
    assert finished is not None
    return finished, shares


def test_a_case_is_computed_once_and_read_back(tmp_path: Path) -> None:
    order = Case("cifar50").order(SMOKE)
    assert find_case(order, tmp_path) is None
    first, shares = _run(order, tmp_path)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    again, second = _run(order, tmp_path)
    assert second == [], "nothing was computed"
    assert again.record == first.record
    assert again.tensors.keys() == first.tensors.keys()
    assert all(torch.equal(again.tensors[name], first.tensors[name]) for name in first.tensors)
    assert [path.suffix for path in (tmp_path / "work").iterdir()] == [".lock"]


def test_counts_match_the_columns_of_the_record(tmp_path: Path) -> None:
    record = _run(Case("cifar50").order(SMOKE), tmp_path)[0].record
    assert sum(score > 0.4 for score in record.samples["ssim"]) == record.counts["ssim>0.4"].train
    assert min(record.samples["margin"]) == pytest.approx(record.training.smallest_margin, abs=1e-5)
    assert [abs(value) for value in record.samples["output"]] == pytest.approx(record.samples["margin"])
    good = [m for m, s in zip(record.samples["margin"], record.samples["ssim"], strict=True) if s > 0.4]
    assert record.median_margin(good=True) == pytest.approx(torch.tensor(good).quantile(0.5).item())


def test_the_key_includes_what_determines_the_outcome() -> None:
    keys = {
        Case("cifar50").order(SMOKE).key,
        Case("cifar100").order(SMOKE).key,
        Case("cifar50", "weights").order(SMOKE).key,
        Case("cifar50").order(replace(SMOKE, scale="cpu")).key,
        Case("cifar50").order(replace(SMOKE, recipe="haim2022")).key,
        Case("cifar50").order(replace(SMOKE, seed=1)).key,
    }
    assert len(keys) == 6
    assert Case("cifar50").order(replace(SMOKE, means=Means(device="meta"))).key in keys, "not the device"


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="recipe must be one of engine, haim2022, got 'weights'"):
        Setting(recipe="weights")
    with pytest.raises(ConfigError, match="scale must be one of smoke, cpu, paper, got 'huge'"):
        Setting(scale="huge")  # type: ignore[arg-type]


def test_damage_is_named_with_its_cure(tmp_path: Path) -> None:
    order = Case("cifar50", "weights").order(SMOKE)
    _run(order, tmp_path)
    (tmp_path / "cases" / order.key / RECORD_FILE).write_text("{}")
    with pytest.raises(CheckpointError, match=r"is damaged \(key: Field required\); delete it"):
        find_case(order, tmp_path)


def test_a_case_of_another_process_is_left_to_it(tmp_path: Path) -> None:
    """The lock belongs to an open file, not to the process, so it also keeps out a second call in this process."""
    order = Case("cifar50", "weights").order(SMOKE)
    (tmp_path / "work").mkdir()
    with files.locked(tmp_path / "work" / f"{order.key}.lock"):
        assert run_case(order, Means(), tmp_path, progress=silent, wait=False) is None
    assert find_case(order, tmp_path) is None
    assert run_case(order, Means(), tmp_path, progress=silent, wait=False) is not None


LONG = 400
PROGRAM = """
import sys
from pathlib import Path
from tests.papers.test_case import long_order
from engram.core.loop import silent
from engram.papers.cases import Means, run_case
run_case(long_order(), Means(snapshot_every=0), Path(sys.argv[1]), progress=silent)
"""


def long_order() -> CasePlan:
    """An attack that takes a few seconds."""
    order = Case("cifar50").order(SMOKE)
    settings = EngineSettings(restarts=2, steps=LONG, prior=1.0)
    return replace(order, key="long", attack=replace(order.attack, settings=settings))


def test_a_killed_case_resumes_and_ends_the_same(tmp_path: Path) -> None:
    """Killed during the attack, after a snapshot; a half-finished case is never taken for a finished one."""
    home = tmp_path / "killed"
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(home)], env=environment, cwd=root)
    attack = home / "work" / "long" / "attack"
    metrics = attack / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") > 20):
        assert child.poll() is None, "ended before it could be killed"
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (home / "cases").exists()
    assert (attack / "snapshot.safetensors").exists()
    resumed, _ = _run(long_order(), home)
    whole, _ = _run(long_order(), tmp_path / "whole")
    assert torch.equal(resumed.tensors["candidates"], whole.tensors["candidates"])
    assert resumed.record.resumed
    assert not whole.record.resumed
    assert resumed.record.samples == whole.record.samples
    assert json.loads((home / "cases" / "long" / RECORD_FILE).read_text())["counts"]
