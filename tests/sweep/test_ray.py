"""Trials as tasks on a real Ray cluster with two nodes, one of which dies halfway."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # Ray's future default, which it warns about
ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'engram[ray]'")

from engram.attacks.registry import make_attack  # noqa: E402
from engram.attacks.settings import EngineSettings  # noqa: E402
from engram.core.errors import ConfigError  # noqa: E402
from engram.core.runs import read_index  # noqa: E402
from engram.pipeline import attack  # noqa: E402
from engram.sweep.executors import RayTasks, on_cluster  # noqa: E402
from engram.sweep.summary import conclude  # noqa: E402
from engram.sweep.sweep import drive  # noqa: E402
from tests.sweep import small  # noqa: E402

TRIALS, STEPS = 12, 150


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with one processor each on this machine."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 1024**2, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    yield cluster
    ray.shutdown()
    cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")  # Ray's own warnings
def test_losing_a_node_loses_no_result(cluster: Any, tmp_path: Path) -> None:
    chosen = small.spec(TRIALS, steps=STEPS)
    small.run_whole(tmp_path / "whole", chosen)
    second = cluster.add_node(num_cpus=1, object_store_memory=80 * 1024**2)
    executor = RayTasks(cluster.address)
    home = tmp_path / "home"
    with small.opened(home, chosen) as sweep:
        driver = threading.Thread(target=drive, args=([sweep], executor))
        driver.start()
        try:
            deadline = time.monotonic() + 200
            while len(read_index(home)) < 3:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert executor.slots == 2
            before = {path: path.stat().st_mtime_ns for path in home.glob("trials/0*/run.json")}
            cluster.remove_node(second, allow_graceful=False)
            assert len(before) < TRIALS
        finally:
            driver.join()
            executor.close()
        conclude(sweep)
    after = {path: path.stat().st_mtime_ns for path in home.glob("trials/0*/run.json")}
    assert before.items() <= after.items(), "a finished trial was run again"
    assert len(after) == TRIALS
    small.assert_same_pool(tmp_path / "whole", home)


@pytest.mark.filterwarnings("ignore")  # Ray's own warnings
def test_the_starts_of_one_attack_on_a_cluster(cluster: Any) -> None:
    settings = EngineSettings(candidates=6, steps=12, restarts=3)
    whole, _ = attack(make_attack(small.view(), settings=settings))
    there = partial(on_cluster, cluster.address)
    found, _ = attack(make_attack(small.view(), settings=replace(settings, jobs=2)), elsewhere=there)
    assert found.scores is not None
    assert whole.scores is not None
    assert torch.equal(found.images, whole.images)
    assert torch.equal(found.scores, whole.scores)


def test_an_unreachable_cluster_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--ray 127\.0\.0\.1:1 can't be reached \(.*refused"):
        RayTasks("127.0.0.1:1")
