"""A sweep from its first trial to its pooled result."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import matplotlib as mpl
import optuna
import pytest

from engram.core.errors import ConfigError, EngramError
from engram.core.runs import append_row, read_index
from engram.data.choice import DataChoice
from engram.data.sets import Split
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.sweep.executors import InProcess, Processes
from engram.sweep.space import PRESETS, WARM_UP, Space, SweepSpec
from engram.sweep.study import Row
from engram.sweep.summary import conclude
from engram.sweep.sweep import Oracle, Sweep, drive
from tests import cases
from tests.sweep import small


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-four small trials, enough for pruning and for importance."""
    directory = tmp_path_factory.mktemp("sweep") / "whole"
    small.run_whole(directory, small.spec(24))
    return directory


def test_a_sweep_leaves_everything_in_its_directory(whole: Path) -> None:
    summary = json.loads((whole / "sweep.json").read_text())
    rows = summary["trials"]
    assert [row["number"] for row in rows] == list(range(24))
    assert summary["counts"]["asked"] == 24
    states = {row["state"] for row in rows}
    assert {"complete", "pruned"} <= states <= {"complete", "pruned", "diverged"}
    assert all(row["state"] in ("complete", "diverged") for row in rows[:WARM_UP])
    complete = [row for row in rows if row["state"] == "complete"]
    best = min(row["objective"] for row in complete)
    assert summary["best"]["objective"] == summary["best_so_far"][-1][1] == best
    for row in rows:
        trial = whole / "trials" / f"{row['number']:05d}"
        assert json.loads((trial / "run.json").read_text())["trial"] == row
        assert (trial / "reconstruction.safetensors").exists() == (row["state"] == "complete")
        assert (trial / "metrics.jsonl").exists()
    assert summary["pooled"]["trials"] == len(complete)
    assert summary["pooled"]["candidates"] == len(small.pooled(whole)["images"])
    assert not (whole / "running").exists()
    assert read_index(whole) == rows


def test_a_trial_has_the_settings_of_its_row(whole: Path) -> None:
    for row in read_index(whole):
        settings = json.loads((whole / "trials" / f"{row['number']:05d}" / "run.json").read_text())["settings"]
        assert {name: settings[name] for name in row["params"]} == row["params"]
        assert settings["seed"] == row["seed"]
        assert settings["steps"] == 20


def test_importance_needs_enough_trials(whole: Path) -> None:
    summary = json.loads((whole / "sweep.json").read_text())
    complete = summary["counts"]["complete"]
    assert (summary["importance"] is None) == (complete < 20)


def test_optuna_can_plot_the_study(whole: Path) -> None:
    """Opened as in docs/sweeps.md, with Optuna alone."""
    mpl.use("Agg")
    backend = optuna.storages.journal.JournalFileBackend(str(whole / "study.journal"))
    study = optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optuna.visualization.matplotlib.plot_optimization_history(study)
        optuna.visualization.matplotlib.plot_intermediate_values(study)
        optuna.visualization.matplotlib.plot_slice(study)
        mpl.pyplot.close("all")
    assert study.best_value == json.loads((whole / "sweep.json").read_text())["best"]["objective"]


def test_several_processes_give_the_same_result_as_one(whole: Path, tmp_path: Path) -> None:
    executor = Processes(2)
    try:
        small.run_whole(tmp_path / "processes", small.spec(24), executor)
    finally:
        executor.close()
    small.assert_same_pool(whole, tmp_path / "processes")
    assert small.without_times(read_index(whole)) == small.without_times(read_index(tmp_path / "processes"))


class StoppedError(Exception):
    pass


def test_a_sweep_killed_between_directory_and_study_enters_the_finished_trial(whole: Path, tmp_path: Path) -> None:
    """Killed at the worst moment of every trial: its directory is written, but not its entry in the study."""
    home = tmp_path / "home"
    ran: list[int] = []
    for _ in range(40):
        with small.opened(home, small.spec(24), resume=True) as sweep:
            finish = sweep.ledger.finish

            def once(claim: object, row: Row, known: list[int] = ran, real: object = finish) -> None:
                if row["number"] not in known:
                    known.append(row["number"])
                    raise StoppedError
                real(claim, row)  # type: ignore[operator]

            sweep.ledger.finish = once  # type: ignore[method-assign]
            before = {path: path.stat().st_mtime_ns for path in home.glob("trials/*/run.json")}
            try:
                drive([sweep], InProcess())
            except StoppedError:
                continue
            finally:
                after = {path: path.stat().st_mtime_ns for path in home.glob("trials/*/run.json")}
                assert before.items() <= after.items(), "a finished trial was written again"
            conclude(sweep)
            break
    assert ran == list(range(24))
    small.assert_same_pool(whole, home)


def test_more_trials_can_be_asked_for_later(whole: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    small.run_whole(home, small.spec(13))
    first = read_index(home)
    small.run_whole(home, small.spec(24), resume=True)
    assert read_index(home)[:13] == first, "what had finished is untouched"
    small.assert_same_pool(whole, home)


def test_a_finished_sweep_runs_nothing_again(tmp_path: Path) -> None:
    small.run_whole(tmp_path, small.spec(3))
    ran: list[int] = []
    with small.opened(tmp_path, small.spec(3), resume=True) as sweep:
        drive([sweep], InProcess(), lambda _, row: ran.append(row["number"]))
    assert ran == []


def test_a_directory_belongs_to_its_sweep(tmp_path: Path) -> None:
    small.run_whole(tmp_path, small.spec(2))
    with pytest.raises(ConfigError, match="resume or join it with --resume"):
        Sweep(view=small.view(), spec=small.spec(2), directory=tmp_path)
    with pytest.raises(ConfigError, match="contains another sweep \\(seed differ\\)"):
        Sweep(view=small.view(), spec=small.spec(2, seed=1), directory=tmp_path, resume=True)
    with pytest.raises(ConfigError, match="weights_sha256 differ"):
        Sweep(view=small.view(seed=1), spec=small.spec(2), directory=tmp_path, resume=True)


def test_a_sweep_without_complete_trials_says_why(tmp_path: Path) -> None:
    space = small.spec(2).space.fixing({"lr_images": 1e30})
    chosen = SweepSpec(space=space, trials=2)
    with pytest.raises(EngramError, match=r"none of the 2 trials is complete here.*diverged"):
        small.run_whole(tmp_path, chosen)
    assert [row["state"] for row in read_index(tmp_path)] == ["diverged"] * 2


def test_machines_that_share_a_database_share_the_trials(whole: Path, tmp_path: Path) -> None:
    """Each has the candidates of its own trials; in one directory they are pooled as on one machine."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    here, there = tmp_path / "here", tmp_path / "there"
    small.run_whole(there, small.spec(13), storage=url)
    summary = small.run_whole(here, small.spec(24), storage=url)
    assert [row["number"] for row in summary["trials"]] == list(range(24))
    assert sorted(path.name for path in (here / "trials").iterdir()) == [f"{n:05d}" for n in range(13, 24)]
    assert summary["pooled"]["elsewhere"] > 0
    for trial in (there / "trials").iterdir():
        shutil.copytree(trial, here / "trials" / trial.name)
    again = small.run_whole(here, small.spec(24), storage=url, resume=True)
    assert again["pooled"]["elsewhere"] == 0
    small.assert_same_pool(whole, here)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 0}, "trials must be at least 1"),
        ({"sampler": "magic"}, "sampler must be one of random, tpe, gp"),
        ({"keep": 0.0}, "keep must be in"),
    ],
)
def test_a_wrong_spec_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small.spec(**{"trials": 3, **changes})  # type: ignore[arg-type]


def test_the_index_ignores_a_line_cut_short(tmp_path: Path) -> None:
    append_row(tmp_path, {"number": 1, "state": "complete"})
    append_row(tmp_path, {"number": 0, "state": "complete"})
    with (tmp_path / "trials.jsonl").open("a") as stream:
        stream.write('{"number": 2, "sta')
    assert [row["number"] for row in read_index(tmp_path)] == [0, 1]


@pytest.fixture(scope="module")
def faces() -> Split:
    return DataChoice(name="faces", labels="gate", n=4).load()


def test_the_oracle_is_named_in_every_output(faces: Split, tmp_path: Path) -> None:
    view = AttackerView(cases.network(625, 5, 1), (1, 25, 25), Binary())
    chosen = small.spec(2, steps=3, objective="oracle")
    sweep = Sweep(view=view, spec=chosen, directory=tmp_path, oracle=Oracle(faces))
    drive([sweep], InProcess())
    summary = conclude(sweep).summary
    sweep.close()
    assert summary["objective"]["name"] == "oracle"
    assert summary["objective"]["direction"] == "maximize"
    for row in summary["trials"]:
        assert row["objective"] == row["oracle"]
        assert 0 <= row["unexplained"] <= 1
    assert json.loads((tmp_path / "run.json").read_text())["sweep"]["objective"] == "oracle"
    with pytest.raises(ConfigError, match=r"the data have shape \(1, 25, 25\), the model's inputs \(3, 2, 2\)"):
        Sweep(view=small.view(), spec=chosen, directory=tmp_path / "a", oracle=Oracle(faces))
    with pytest.raises(ConfigError, match="needs the training data"):
        Sweep(view=view, spec=chosen, directory=tmp_path / "b")
    with pytest.raises(ConfigError, match="give both or neither"):
        Sweep(view=view, spec=small.spec(2), directory=tmp_path / "c", oracle=Oracle(faces))


def test_the_engine_can_be_swept(tmp_path: Path) -> None:
    search = {"ridge": PRESETS["engine"].search["ridge"]}
    fixed = {"restarts": 1, "steps": 4, "candidates": 8}
    space = Space(recipe="engine", search=search, fixed=fixed)
    summary = small.run_whole(tmp_path, SweepSpec(space=space, trials=2))
    assert summary["counts"] == {"asked": 2, "complete": 2}
    assert small.pooled(tmp_path)["scores"].isfinite().all()
