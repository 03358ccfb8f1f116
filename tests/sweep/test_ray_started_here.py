"""`--ray local`: a cluster that we start computes chunks of records and rows of defences as this process does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # Ray's future default, which it warns about
ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'engram[ray]'")

import engram  # noqa: E402
from engram.data.choice import DataChoice  # noqa: E402
from engram.members import pool as pools  # noqa: E402
from engram.members.scores import in_process  # noqa: E402
from engram.sweep.executors import RayChunks  # noqa: E402
from tests.defences.cases import CLASSES  # noqa: E402
from tests.members.test_chunks import model, sets  # noqa: E402

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]  # Ray's own warnings


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayChunks]:
    with RayChunks("local") as cluster:
        yield cluster
    assert not ray.is_initialized()


def test_chunks_of_records(cluster: RayChunks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "CHUNK", 20)
    alone, found = (engram.membership(model(), *sets(), batch=8, run=how) for how in (in_process, cluster))
    torch.testing.assert_close(found.train, alone.train, rtol=1e-3, atol=1e-3)


def test_rows_of_defences(cluster: RayChunks, tmp_path: Path) -> None:
    labels = torch.arange(240) % CLASSES
    vectors = torch.randn(240, 24, generator=torch.Generator().manual_seed(0))
    vectors[torch.arange(240), labels] += 1.0
    np.savez(tmp_path / "vectors.npz", images=vectors.numpy(), labels=labels.numpy())
    data = DataChoice(name=f"npz:{tmp_path / 'vectors.npz'}", labels="identity", n=60)
    given: dict[str, Any] = {"data": data, "only": "none", "seeds": (0,), "seconds": 0}
    ((one,), (other,)) = (engram.defend("head", **given, ray=where).rows for where in ("local", None))
    assert one.key == other.key
    assert one.exposure.auc == pytest.approx(other.exposure.auc, abs=0.03)
    assert ray.is_initialized()  # who did not start the cluster does not end it
