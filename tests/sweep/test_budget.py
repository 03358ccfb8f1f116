"""A time for a whole sweep becomes steps per trial; and the search against the engine in one command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import search_100
from engram.core.errors import ConfigError, EngramError
from engram.sweep.executors import USED, InProcess, Job, plan_steps, with_steps
from engram.sweep.space import PRESETS, SweepSpec
from engram.sweep.sweep import recorded_steps
from engram.sweep.trial import Ended
from tests.sweep import small

SPEC = SweepSpec(space=PRESETS["haim2022"].fixing({"candidates": 6}), trials=10)


class Clock:
    """An executor whose trials take a set time, two at a time."""

    slots = 2

    def __init__(self, each: float, state: str = "complete") -> None:
        self.each, self.state, self.jobs = each, state, list[Job]()

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def collect(self, timeout: float) -> list[tuple[Job, Ended]]:
        done, self.jobs = self.jobs, []
        return [
            (job, Ended(state=self.state, reason="because", seconds=self.each * job.order.settings["steps"]))  # type: ignore[arg-type]
            for job in done
        ]

    def close(self) -> None:
        pass


def test_steps_are_planned_from_the_cost_of_a_step() -> None:
    """10 trials of k steps at 0.5 s, two at a time, take 2.5 k seconds."""
    found = plan_steps(small.view(), SPEC, Clock(0.5), seconds=100)
    assert found.steps == int(USED * 100 / 2.5)
    assert found.recipe_steps == 50_000
    assert "36 steps per trial instead of 50,000" in found.sentence
    assert plan_steps(small.view(), SPEC, Clock(0.5), seconds=1e9).steps == 50_000, "never more than the recipe"
    assert plan_steps(small.view(), SPEC, Clock(0.5), seconds=1e-3).steps == 1


def test_a_step_is_timed_with_real_trials() -> None:
    found = plan_steps(small.view(), SPEC, InProcess(), seconds=1.0)
    assert found.seconds_per_step > 0
    assert found.slots == 1
    assert with_steps(SPEC, found.steps).space.fixed["steps"] == found.steps


def test_contradictions_and_failures_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give one or the other"):
        plan_steps(small.view(), with_steps(SPEC, 5), InProcess(), seconds=1.0)
    with pytest.raises(EngramError, match="to time a step, ended as failed: because"):
        plan_steps(small.view(), SPEC, Clock(0.5, "failed"), seconds=1.0)
    with small.opened(tmp_path / "fixed", with_steps(SPEC, 5)):
        assert recorded_steps(tmp_path / "fixed") == 5
    with small.opened(tmp_path / "free", SPEC), pytest.raises(ConfigError, match="was started without --budget"):
        recorded_steps(tmp_path / "free")


def test_the_search_against_the_engine_runs_unattended_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything is small: ten faces, three very short trials."""
    monkeypatch.setenv("ENGRAM_CACHE", str(tmp_path / "cache"))
    command = [
        "--scale",
        "smoke",
        "--trials",
        "3",
        "--jobs",
        "1",
        "--minutes",
        "0.01",
        "--out",
        str(tmp_path / "search"),
    ]
    search_100.main(command)
    printed = capsys.readouterr().out
    assert "steps per trial instead of 50,000" in printed
    found = json.loads((tmp_path / "search" / "search.json").read_text())
    assert found["search"]["counts_of_trials"]["asked"] == 3
    for part in (found["search"]["pooled"], found["search"]["best_trial_judged_blind"], found["engine"]):
        assert {"train", "held_out", "excess", "noise"} <= part["counts"]["ncc>0.8"].keys()
    assert found["sentence"] in printed
    assert "engram sweep</p>" in (tmp_path / "search" / "search" / "sweep.html").read_text()
    search_100.main(command)
    again = json.loads((tmp_path / "search" / "search.json").read_text())
    assert again["step_plan"] == found["step_plan"]
    assert again["search"]["pooled"] == found["search"]["pooled"]
    text = (tmp_path / "search" / "search.md").read_text()
    assert "| published scheme, 3 runs pooled | " in text
    assert f"in the pool that the engine does not have: {found['good_in_the_search_alone']}." in text
    assert f"| engine, one run | {_good(found['engine'])} | " in text


def _good(part: dict[str, Any]) -> str:
    counted = part["counts"]["ssim>0.4"]
    return f"{counted['train']} ({counted['held_out']})"
