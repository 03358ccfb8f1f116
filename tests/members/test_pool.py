"""The pool: any source of records is read the same way, and a control that can't be one is noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from engram.core.errors import ConfigError
from engram.members.pool import Pool, Records, kind_traits, told_apart


def drawn(n: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, 3, 8, 8, generator=generator), torch.arange(n) % 2


def test_arrays_and_loaders_are_read_alike() -> None:
    own, other = drawn(seed=0), drawn(seed=1)
    loader = DataLoader(TensorDataset(*own), batch_size=33)
    numpy = tuple(part.numpy() for part in own)
    sources: tuple[Records, ...] = (own, loader, (numpy[0], numpy[1]))
    for source in sources:
        pool = Pool.of(source, other, batch=64)
        assert (len(pool), pool.records) == (400, 200)
        inputs, labels = (torch.cat(parts) for parts in zip(*pool, strict=True))
        assert torch.equal(inputs, torch.cat([own[0], other[0]]))
        assert torch.equal(labels, torch.cat([own[1], other[1]]))


def test_a_loader_that_shuffles_is_refused() -> None:
    own = drawn()
    pool = Pool.of(DataLoader(TensorDataset(*own), batch_size=50, shuffle=True), drawn(seed=1))
    with pytest.raises(ConfigError, match=r"come in another order each time they are read; use .* shuffle=False"):
        list(pool)


def test_what_can_not_be_read_is_said() -> None:
    own, other = drawn(), drawn(seed=1)
    with pytest.raises(
        ConfigError, match=r"records must be .* read more than once, such as a DataLoader, got zip"
    ):
        Pool.of(zip(*own, strict=True), other)
    with pytest.raises(ConfigError, match=r"held_out must have as many labels as inputs, got 3"):
        Pool.of(own, (other[0], other[1][:3]))
    with pytest.raises(ConfigError, match=r"held_out must contain only finite numbers"):
        Pool.of(own, (other[0] / 0, other[1]))
    with pytest.raises(
        ConfigError, match=r"no training record: it is the control; got 5 that are also in records"
    ):
        Pool.of(own, (torch.cat([other[0], own[0][:5]]), torch.cat([other[1], own[1][:5]])))


def test_a_control_of_the_same_kind_is_accepted() -> None:
    for seed in range(5):
        pool = Pool.of(drawn(seed=2 * seed), drawn(seed=2 * seed + 1))
        assert pool.control.warnings == ()
        assert 0.35 < pool.control.roc.auc < 0.65


@pytest.mark.parametrize("change", ["brighter", "blurred", "cut to bytes"])
def test_a_control_of_another_kind_is_noticed(change: str) -> None:
    """Also where no pixel alone gives it away."""
    own, (inputs, labels) = drawn(), drawn(seed=1)
    if change == "brighter":
        inputs = inputs + 0.1
    elif change == "blurred":
        inputs = torch.nn.functional.avg_pool2d(inputs, 3, 1, 1)
    else:
        inputs = (inputs * 4).floor() / 4
    control = Pool.of(own, (inputs, labels)).control
    assert control.roc.auc > 0.9
    assert control.warnings[0].startswith("THE CONTROL DIFFERS FROM THE RECORDS IN KIND")


def test_other_shares_of_labels_are_noticed() -> None:
    own, (inputs, _) = drawn(), drawn(seed=1)
    control = Pool.of(own, (inputs, torch.zeros(200, dtype=torch.int64))).control
    assert "other shares of labels" in control.warnings[0]


def test_telling_apart_is_judged_on_records_that_were_not_fitted() -> None:
    """With more traits than records a classifier can fit anything; that must not count."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 60, 300, generator=generator, dtype=torch.float64)
    assert 0.3 < told_apart(first, second).auc < 0.7


@pytest.mark.parametrize("shape", [(5,), (700,), (1, 2, 2), (3, 40, 30), (4, 9)])
def test_traits_of_any_records(shape: tuple[int, ...]) -> None:
    traits = kind_traits(torch.from_numpy(np.random.default_rng(0).random((6, *shape))))
    assert traits.shape[0] == 6
    assert traits.isfinite().all()


def test_looking_at_the_records_shows_how_far_it_is() -> None:
    shares: list[float] = []
    Pool.of(drawn(), drawn(seed=1), batch=100, progress=lambda _, share: shares.append(share))
    assert shares == [0.25, 0.5, 0.75, 1.0, 1.0]
