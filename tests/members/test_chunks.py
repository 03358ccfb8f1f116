"""Chunks of records: computed anywhere, stored, and continued after a kill, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.membership_text import Sentences, encoder
from torch import Tensor, nn

import engram
from engram.core.errors import CheckpointError, ConfigError
from engram.members import pool as pools
from engram.members import scores as reading
from engram.members.membership import MembershipRecord
from engram.members.pool import Pool
from engram.members.scores import Forked

Sets = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "CHUNK", 20)


def sets(n: int = 60) -> Sets:
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(2 * n, 2, 6, 6, generator=generator), torch.arange(2 * n) % 3
    return (inputs[:n], labels[:n]), (inputs[n:], labels[n:])


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 150),
        nn.ReLU(),
        nn.Linear(150, 3),
    ).eval()


def text_sets(n: int = 60) -> Sets:
    tokens = torch.randint(0, 300, (2 * n, 12), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(2 * n) % 2
    return (tokens[:n], labels[:n]), (tokens[n:], labels[n:])


def text_model() -> nn.Module:
    torch.manual_seed(0)
    return Sentences(encoder()).eval()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Sets]]] = {
    "images": (model, sets),
    "text": (text_model, text_sets),
}


def same(first: MembershipRecord, second: MembershipRecord) -> bool:
    return torch.equal(first.train, second.train) and torch.equal(first.held_out, second.held_out)


@pytest.mark.parametrize("most", [7, 40, 119, 120, 1000])
def test_a_spread_takes_the_same_share_of_both_sets(most: int, small_chunks: None) -> None:
    pool = Pool.of(*sets(), batch=7)
    taken = [labels for _, labels in pool.spread(most)]
    assert sum(map(len, taken)) == min(most, 120)
    chunks = list(pool.chunks(most))
    assert len(chunks) == pool.chunk_count(most)
    assert sum(len(labels) for chunk in chunks for _, labels in chunk) == min(most, 120)
    marked = Pool.of(*((inputs, torch.full_like(labels, which)) for which, (inputs, labels) in enumerate(sets())))
    shares = torch.bincount(torch.cat([labels for _, labels in marked.spread(most)]), minlength=2)
    assert abs(int(shares[0]) - int(shares[1])) <= 1


def test_few_references_give_nearly_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engram.membership(model(), *sets(300))
    monkeypatch.setattr(reading, "REFERENCES", 300)
    some = engram.membership(model(), *sets(300))
    assert some.notes[0].startswith("covariances were estimated from 300 of 600 records, the same share of both")
    for one in (test for test in whole.tests if test.test == "filter"):
        other = next(test for test in some.tests if (test.layer, test.test) == (one.layer, one.test))
        assert abs(one.roc.auc - other.roc.auc) < 0.05


@pytest.mark.parametrize("case", CASES)
def test_processes_give_the_same(case: str, small_chunks: None) -> None:
    make, records = CASES[case]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the processes: the rounding of a sum depends on how it is split
    try:
        alone = engram.membership(make(), *records(), batch=8)
        for jobs in (2, 3):
            assert same(engram.membership(make(), *records(), batch=8, run=Forked(jobs)), alone)
    finally:
        torch.set_num_threads(threads)


KILLED_AT = [*(("images", after) for after in (1, 2, 3, 5, 8, 11)), ("text", 9)]


@pytest.mark.parametrize(("case", "after"), KILLED_AT)
def test_a_killed_run_ends_with_the_same_bits(case: str, after: int, tmp_path: Path, small_chunks: None) -> None:
    """Whichever chunk it was killed at: seven per reading, three readings."""
    make, records = CASES[case]

    class KilledError(Exception):
        pass

    def killed(what: str, share: float) -> None:
        nonlocal after
        after -= what.startswith("reading")
        if after < 0:
            raise KilledError

    whole = engram.membership(make(), *records(), batch=8)
    path = tmp_path / "snapshot.safetensors"
    with pytest.raises(KilledError):
        engram.membership(make(), *records(), batch=8, snapshot=path, snapshot_every=0, progress=killed)
    assert path.exists()
    counted: list[str] = []
    resumed = engram.membership(
        make(), *records(), batch=8, snapshot=path, resume=True, progress=lambda what, _: counted.append(what)
    )
    assert same(resumed, whole)
    assert sum(what.startswith("reading") for what in counted) < 3 * 7


def test_another_models_snapshot_is_refused(tmp_path: Path, small_chunks: None) -> None:
    path = tmp_path / "snapshot.safetensors"
    engram.membership(model(), *sets(), batch=8, snapshot=path, snapshot_every=0)
    other = model()
    with torch.no_grad():
        next(other.parameters()).add_(0.1)
    with pytest.raises(CheckpointError, match="belongs to another model or to other records"):
        engram.membership(other, *sets(), batch=8, snapshot=path, resume=True)
    path.write_bytes(b"cut short")
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        engram.membership(model(), *sets(), batch=8, snapshot=path, resume=True)


def test_jobs_and_a_cluster_exclude_each_other() -> None:
    from engram.cli.membership import chosen_runner

    with pytest.raises(ConfigError, match="--jobs does nothing with --ray"), chosen_runner(2, "local", "cpu"):
        pass
    with pytest.raises(ConfigError, match="but --device is cuda; leave one out"), chosen_runner(2, None, "cuda"):
        pass
