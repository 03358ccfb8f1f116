"""Both schemes on a tiny target: clock, record, plot, interruption."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from benchmarks.race import METRICS, Race, RaceSettings, run_race, trace

from engram.attacks.engine.dense import Engine
from engram.attacks.published import PublishedScheme
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.settings import EngineSettings, Haim2022
from engram.core.errors import ConfigError
from engram.data.choice import DataChoice
from engram.data.sets import Split
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.pipeline import build_target
from engram.scoring.report import Count
from engram.training.recipe import MLPSpec, Recipe
from tests import cases

DATA = DataChoice(name="faces", labels="gate", n=10)
NONE_YET = {metric: Count(train=0, held_out=0, excess=0.0, noise=0) for metric in METRICS}


def nothing(found: Reconstruction) -> dict[str, Count]:
    return NONE_YET


@pytest.fixture(scope="module")
def data() -> Split:
    return DATA.load()


@pytest.fixture(scope="module")
def view() -> AttackerView:
    spec = MLPSpec(inputs=625, widths=(20, 20))
    return AttackerView(
        build_target(DATA, spec, Recipe(lr=0.02, epochs=60), Binary()).network, (1, 25, 25), Binary()
    )


@pytest.fixture(scope="module")
def race(view: AttackerView, data: Split) -> Race:
    settings = RaceSettings(published_seconds=0.4, budget_seconds=0.5, first_moment=0.05, metric="ssim>0.4")
    return run_race(view, data, settings, data_name="faces")


def test_the_record_has_both_curves_and_the_machine(race: Race) -> None:
    record = json.loads(json.dumps(race.to_json(), allow_nan=False))
    assert record["schema_version"] == 1
    assert (record["kind"], record["interrupted"], record["headline"]) == ("race", False, "ssim>0.4")
    assert record["machine"]["cores"] >= 1
    assert {"torch", "python"} <= set(record["machine"]["versions"])
    assert record["published"]["settings"]["candidates"] == 20, "m = 2n as in the paper"
    assert record["published"]["settings"]["dtype"] == "float64"
    assert record["published"]["stopped"] == "used all its time"
    assert record["engine"]["stopped"] == "used all its time"
    for scheme in ("published", "engine"):
        part = record[scheme]
        times = [moment["seconds"] for moment in part["curve"]]
        assert part["curve"][0]["step"] == 1, "the random start is scored"
        assert part["curve"][-1]["step"] == part["steps"], "and so is the end"
        assert all(earlier < later for earlier, later in pairwise(times))
        assert times[-1] == pytest.approx(part["seconds"])
        assert part["seconds_per_step"] == pytest.approx(part["step_seconds"] / part["steps"])
        assert part["cpu_seconds"] > 0
        assert part["peak_memory_bytes"] > 10_000_000
        for moment in part["curve"]:
            for count in moment["counts"].values():
                assert count["excess"] == count["train"] - count["held_out"]
    assert set(record["ratios"]) == set(METRICS)
    assert record["paper_run"]["seconds"] == pytest.approx(record["published_seconds_per_step"] * 50_000)
    assert "computed" in record["paper_run"]["kind"]


def test_the_published_scheme_keeps_to_its_time(race: Race) -> None:
    assert race.published is not None
    assert 0.4 <= race.published.seconds < 5
    assert race.published.steps < race.published.total_steps


def test_the_plot_is_drawn_with_and_without_the_published_scheme(race: Race) -> None:
    for one in (race, replace(race, published=None)):
        assert one.figure().startswith(b"\x89PNG")


def test_the_clock_stops_during_scoring(view: AttackerView) -> None:
    def slow_judge(found: Reconstruction) -> dict[str, Count]:
        time.sleep(0.3)
        return NONE_YET

    scheme = PublishedScheme(view, Haim2022(candidates=4, steps=3))
    started = time.perf_counter()
    result = trace(scheme, slow_judge, first_moment=1e-9)
    assert len(result.points) == 3
    assert time.perf_counter() - started - result.seconds > 0.89, "three times 0.3 s of scoring do not count"


def test_planning_time_counts(view: AttackerView) -> None:
    scheme = PublishedScheme(view, Haim2022(candidates=4, steps=2))
    assert trace(scheme, nothing, already=100.0).points[0].seconds > 100


def test_ctrl_c_keeps_what_was_measured(view: AttackerView, race: Race) -> None:
    seen: list[float] = []

    def judge(found: Reconstruction) -> dict[str, Count]:
        seen.append(len(found))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return NONE_YET

    engine = Engine(view, EngineSettings(candidates=8, steps=20, restarts=1, prior=0.0))
    result = trace(engine, judge, first_moment=1e-9)
    assert result.is_interrupted
    assert len(result.points) == 2
    assert result.steps >= 3
    record = replace(race, engine=result, published=None).to_json()
    assert record["interrupted"] is True
    assert record["published"] is None
    assert len(record["engine"]["curve"]) == 2
    assert record["ratios"]["ncc>0.8"]["ratio"] is None


def test_a_diverged_scheme_keeps_its_curve(view: AttackerView) -> None:
    scheme = PublishedScheme(view, Haim2022(candidates=4, steps=50, lr_images=1e30))
    result = trace(scheme, nothing)
    assert "diverged at step" in result.stopped
    assert result.steps < 50
    assert not result.is_interrupted


def test_vectors_missing_controls_and_bad_settings_are_refused(view: AttackerView, data: Split) -> None:
    settings = RaceSettings()
    points = DataChoice(name="circle", labels="identity", n=10).load()
    with pytest.raises(ConfigError, match="needs images"):
        run_race(cases.view(2, 8, 1), points, settings, data_name="circle")
    with pytest.raises(ConfigError, match="nothing is held out"):
        run_race(view, DATA.load(held_out=0), settings, data_name="faces")
    with pytest.raises(ConfigError, match=r"metric must be one of ssim>0.4, ncc>0.8, got 'l2'"):
        RaceSettings(metric="l2")
    with pytest.raises(ConfigError, match="published_seconds must be positive"):
        RaceSettings(published_seconds=0)
