"""Claims and results: nobody runs a trial that has finished or that a live sweep is running."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engram.sweep import study
from engram.sweep.space import PRESETS, SAMPLERS, NumberedSampler
from engram.sweep.study import JOURNAL, ClaimedTrial, Ledger, whole_lines

SPACE = PRESETS["haim2022"]


@contextmanager
def ledger(directory: Path, *, sampler: str = "random", **changes: Any) -> Iterator[Ledger]:
    directory.mkdir(exist_ok=True)
    one = Ledger(
        directory=directory,
        name="study",
        space=SPACE,
        sampler=NumberedSampler(sampler, 0),
        direction="minimize",
        **changes,
    )
    try:
        yield one
    finally:
        one.close()


def claim(one: Ledger, total: int = 100) -> ClaimedTrial:
    claimed = one.claim(total, lambda _: True)
    assert claimed is not None
    return claimed


def result(number: int, **changes: Any) -> dict[str, Any]:
    row = {"number": number, "state": "complete", "reason": "", "objective": 0.5, "unexplained": 0.5}
    return {**row, "params": {}, "checkpoints": [0.9, 0.8, 0.7], **changes}


@pytest.fixture(params=["journal", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "journal" else f"sqlite:///{tmp_path / 'shared.db'}"


def test_two_sweeps_share_the_trials(tmp_path: Path, url: str | None) -> None:
    with ledger(tmp_path, url=url) as first, ledger(tmp_path, url=url) as second:
        numbers = [claim(one, 5).number for one in (first, second, first, second, first)]
        assert sorted(numbers) == [0, 1, 2, 3, 4]
        assert first.claim(5, lambda _: True) is None
        assert second.claim(5, lambda _: True) is None


def test_results_are_kept_and_the_first_one_stays(tmp_path: Path, url: str | None) -> None:
    with ledger(tmp_path, url=url) as one:
        claimed = claim(one)
        one.finish(claimed, result(0))
        one.finish(claimed, result(0, objective=0.1))
        one.finish(claim(one), result(1, state="diverged", objective=None))
    with ledger(tmp_path, url=url) as again:
        assert [(row["number"], row["state"], row["objective"]) for row in again.rows(10)] == [
            (0, "complete", 0.5),
            (1, "diverged", None),
        ]
        assert again.is_complete(2)
        assert not again.is_complete(3)
        assert again.checkpoints(2) == [(0.9, 0.8, 0.7)] * 2
        assert again.checkpoints(3) is None
        assert claim(again).number == 2


def test_settings_depend_only_on_the_number(tmp_path: Path) -> None:
    """Whichever process asks, and in any order."""
    with ledger(tmp_path / "a") as one, ledger(tmp_path / "b") as other:
        alone = [claim(one).params for _ in range(4)]
        with ledger(tmp_path / "b") as helper:
            shared = {
                made.number: made.params for made in (claim(helper), claim(other), claim(other), claim(helper))
            }
    assert [shared[number] for number in range(4)] == alone
    assert len({params["lr_images"] for params in alone}) == 4
    assert all(1e-5 <= params["lr_images"] <= 1 for params in alone)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_draw_from_the_space(tmp_path: Path, sampler: str) -> None:
    with ledger(tmp_path, sampler=sampler) as one:
        for number in range(12):  # more than the ten that adaptive samplers draw at random
            claimed = claim(one)
            assert claimed.params.keys() == SPACE.search.keys()
            one.finish(claimed, result(number, objective=claimed.params["lr_images"]))
        assert 1e-5 <= claim(one).params["lr_images"] <= 1


def _claim_and_die(directory: str, url: str | None) -> None:
    with ledger(Path(directory), url=url) as one:
        claim(one)
        claim(one)
        os.kill(os.getpid(), signal.SIGKILL)


def _killed_with_two_claims(directory: Path, url: str | None) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_claim_and_die, args=(str(directory), url))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def test_trials_of_a_killed_sweep_are_taken_over_with_their_settings(tmp_path: Path, url: str | None) -> None:
    with ledger(tmp_path / "undisturbed") as one:
        expected = [claim(one).params for _ in range(3)]
    home = tmp_path / "home"
    _killed_with_two_claims(home, url)
    with ledger(home, url=url) as next_one:
        taken = [claim(next_one) for _ in range(3)]
    assert [made.number for made in taken] == [0, 1, 2]
    assert [made.params for made in taken] == expected
    assert taken[0].earlier_owner == taken[1].earlier_owner is not None


def test_a_sweep_elsewhere_is_dead_when_its_heartbeat_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines that share only a database: there is no lock file, only the heartbeat."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    monkeypatch.setattr(study, "BEAT_SECONDS", 0.1)
    _killed_with_two_claims(tmp_path / "there", url)
    with ledger(tmp_path / "other", url=url) as alive, ledger(tmp_path / "here", url=url, grace=1.5) as one:
        held = claim(alive).number
        assert held == 2
        assert claim(one, 4).number == 3, "the dead one is not noticed yet"
        time.sleep(1.6)
        assert [claim(one, 4).number for _ in range(2)] == [0, 1]
        assert one.claim(4, lambda _: True) is None, "the live one keeps its trial"


def test_a_surplus_trial_waits_until_more_are_asked_for(tmp_path: Path) -> None:
    """Two machines that create the last trial at the same moment create one too many."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    with ledger(tmp_path / "a", url=url) as one, ledger(tmp_path / "b", url=url) as other:

        def other_is_quicker(_: int) -> bool:
            assert claim(other, 1).number == 0
            return True

        assert one.claim(1, other_is_quicker) is None
        assert claim(other, 2).number == 1, "created by the first, run by the second"
        assert one.claim(2, lambda _: True) is None


def test_a_line_that_was_cut_short_is_ignored(tmp_path: Path) -> None:
    with ledger(tmp_path) as one:
        one.finish(claim(one), result(0))
    journal = tmp_path / JOURNAL
    whole = journal.stat().st_size
    with journal.open("ab") as stream:
        stream.write(b'{"op_code":4,"worker_id":"x","stu')
    assert whole_lines(journal) == whole
    with ledger(tmp_path) as again:
        again.finish(claim(again), result(1))
    with ledger(tmp_path) as once_more:
        assert [row["number"] for row in once_more.rows(10)] == [0, 1]


def test_trials_that_may_not_start_are_not_claimed(tmp_path: Path) -> None:
    with ledger(tmp_path) as one:
        assert claim(one).number == 0
        assert one.claim(10, lambda number: number < 1) is None
