"""The starts of one attack in several processes: the same pooled result, also after a kill."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engram.attacks.engine.dense import Engine
from engram.attacks.engine.iteration import fit_to_budget
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.settings import EngineSettings
from engram.core import files
from engram.core.errors import ConfigError
from engram.core.processes import Work, WorkerError
from engram.core.runs import RunDirectory
from engram.pipeline import attack, run_part
from tests import cases
from tests.cli.command import engram

SMALL = EngineSettings(candidates=6, prior=0.4, steps=12, restarts=5)


def here(work: Work, wanted: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """Other processes' work in this one, last first: results may come in any order."""
    return iter([work(*one) for one in reversed(wanted)])


def engine(**changed: Any) -> Engine:
    return Engine(cases.view(16, 12, 12, 1, shape=(1, 4, 4)), replace(SMALL, **changed))


def assert_same(one: Reconstruction, other: Reconstruction) -> None:
    for name in ("images", "duals", "labels", "scores"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("jobs", [2, 3, 5, 8])
def test_any_number_of_processes_gives_the_same_result(jobs: int) -> None:
    whole, alone = attack(engine())
    found, solution = attack(engine(jobs=jobs), elsewhere=here)
    assert solution.steps == alone.steps == 5 * 12
    assert len(solution.state["pool_duals"]) == 5
    assert_same(whole, found)


def test_each_start_is_made_once() -> None:
    chosen = engine(jobs=3)
    numbers = [number for one in (chosen, *chosen.others) for number in range(one.first, 5, 3)]
    assert sorted(numbers) == list(range(5))
    assert len(engine(jobs=8).others) == 4, "a process without a start is not begun"


def test_a_snapshot_of_one_process_is_not_taken_for_another() -> None:
    chosen = engine(jobs=2)
    assert len({one.fingerprint() for one in (engine(), chosen, *chosen.others)}) == 3


def test_time_that_passed_before_a_process_began_counts() -> None:
    (other,) = fit_to_budget(engine(jobs=2), 100.0).others
    other.begun(60.0)
    spent = float(other.init()["seconds"])
    assert 60 <= spent < 100
    assert float(fit_to_budget(engine(), 100.0).init()["seconds"]) < 60


def test_a_part_that_diverges_is_the_outcome() -> None:
    def diverged(work: Work, wanted: Sequence[Sequence[Any]]) -> Iterator[Any]:
        for number, part, *rest in wanted:
            bad = replace(part, settings=replace(part.settings, margin_weight=1e300))
            yield run_part(number, bad, *rest)

    _, solution = attack(engine(jobs=2), elsewhere=diverged)
    assert "diverged" in solution.message


def test_the_command_makes_the_same_candidates_in_real_processes(tmp_path: Path) -> None:
    """And what a killed process had done is not lost: its snapshot is resumed."""
    model = tmp_path / "model.safetensors"
    files.write_tensors(model, cases.view(16, 12, 12, 1, shape=(1, 4, 4)).network.params)
    given = ["reconstruct", model, "--input-shape", "1x4x4", "--task", "binary", "--steps", 10, "--restarts", 3]
    engram(*given, "-o", tmp_path / "one")
    said = engram(*given, "--jobs", 2, "-o", tmp_path / "two")
    assert "30 steps in 2 processes" in said
    found = [Reconstruction.load(RunDirectory(tmp_path / name).reconstruction) for name in ("one", "two")]
    assert_same(*found)
    assert (tmp_path / "two" / "starts" / "1" / "snapshot.safetensors").exists()
    RunDirectory(tmp_path / "two").reconstruction.unlink()
    engram(*given, "-o", tmp_path / "two", "--resume")
    assert_same(found[0], Reconstruction.load(RunDirectory(tmp_path / "two").reconstruction))
    beside = tmp_path / "two" / "starts" / "1" / "snapshot.safetensors"
    beside.write_bytes(beside.read_bytes()[:100])
    assert str(beside) in engram(*given, "-o", tmp_path / "two", "--resume", expect=1)
    refused = engram(*given, "--jobs", 3, "-o", tmp_path / "two", "--resume", expect=1)
    assert "jobs is 3 here, but 2 in the run" in refused


def killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.pipeline.run_part", killed)
    with pytest.raises(WorkerError, match=r"died \(SIGKILL\); out of memory\? run it again with --resume"):
        attack(engine(jobs=2))


def failing(*_: object) -> None:
    raise ConfigError("what the other process said")


def test_an_error_of_another_process_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.pipeline.run_part", failing)
    before = torch.get_num_threads()
    with pytest.raises(ConfigError, match="what the other process said"):
        attack(engine(jobs=2))
    assert torch.get_num_threads() == before


def test_options_without_effect_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    files.write_tensors(model, cases.view(16, 12, 12, 1, shape=(1, 4, 4)).network.params)
    given = ["reconstruct", model, "--input-shape", "1x4x4", "--task", "binary", "-o", tmp_path / "out"]
    assert "--ray has nothing to do without --jobs" in engram(*given, "--ray", "local", expect=1)
    published = engram(*given, "--recipe", "haim2022", "--jobs", 2, expect=1)
    assert "--jobs can't be used with --recipe haim2022" in published
    assert "four for every processor" in engram(*given, "--jobs", 100_000, expect=1)
