"""Ray: trials and chunks of records as tasks on a cluster, which schedules them, sends what they need once, and
retries lost tasks."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from engram.core.errors import ConfigError, optional, require
from engram.members.pool import Pool
from engram.members.scores import Chunk, State, chunk_result
from engram.models.open.modules import USER_CODE
from engram.sweep.executors import ATTEMPTS, Job, lost
from engram.sweep.trial import Ended, PackedView, TrialOrder, packed, run_trial


class RayTasks:
    """`address` is Ray's: "auto" for the cluster this machine belongs to, HOST:PORT, or "local" to start one here.

    Each trial asks for `cpus` and `gpus`. It runs in a directory on its node and returns its files, so nodes need
    no shared file system.
    """

    def __init__(self, address: str, *, cpus: float = 1.0, gpus: float = 0.0) -> None:
        require(cpus > 0, "cpus_per_trial", "must be positive", cpus)
        require(gpus >= 0, "gpus_per_trial", "must not be negative", gpus)
        self._ray, self._mine = connected(address)
        self._cpus, self._gpus = cpus, gpus
        self._require_room()
        self._task = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=ATTEMPTS)(_run)
        self._views: dict[str, Any] = {}
        self._running: dict[Any, Job] = {}

    @property
    def slots(self) -> int:
        """How many trials the cluster has room for now; nodes may come and go."""
        there = self._ray.cluster_resources()
        by_gpu = there.get("GPU", 0.0) / self._gpus if self._gpus else float("inf")
        return max(1, int(min(there.get("CPU", 0.0) / self._cpus, by_gpu)))

    def submit(self, job: Job) -> None:
        if job.sweep not in self._views:
            self._views[job.sweep] = self._ray.put(packed(job.view))
        order = replace(job.order, scratch=None)  # a path on this machine means nothing on a node
        task = self._task.remote(self._views[job.sweep], order, max(1, int(self._cpus)))
        self._running[task] = job

    def collect(self, timeout: float) -> list[tuple[Job, Ended]]:
        if not self._running:
            time.sleep(timeout)
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        return [(self._running.pop(task), self._result(task)) for task in done]

    def close(self) -> None:
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._running.clear()
        self._views.clear()
        if self._mine:
            self._ray.shutdown()

    def _result(self, task: Any) -> Ended:
        try:
            ended: Ended = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            return lost(ATTEMPTS + 1, str(error).splitlines()[0])
        return ended

    def _require_room(self) -> None:
        """Refuse what fits nowhere: Ray would wait forever."""
        there = self._ray.cluster_resources()
        for kind, asked in (("CPU", self._cpus), ("GPU", self._gpus)):
            has = there.get(kind, 0.0)
            if asked > has:
                raise ConfigError(
                    f"--{kind.lower()}s-per-trial {asked:g} is more than the whole cluster has ({has:g}); "
                    "ask for less or add a node"
                )


class RayChunks:
    """Chunks of records as tasks; the model and the records are sent once for each time they are read."""

    def __init__(self, address: str) -> None:
        self._ray, self._mine = connected(address)

    def __enter__(self) -> RayChunks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._mine:
            self._ray.shutdown()

    def __call__(self, work: Callable[[Chunk], State], pool: Pool, most: int, first: int) -> Iterator[State]:
        import torch

        for name, module in list(sys.modules.items()):
            if name.startswith(USER_CODE):  # nodes don't have the user's file
                self._ray.cloudpickle.register_pickle_by_value(module)
        task = self._ray.remote(num_cpus=1, max_retries=ATTEMPTS)(_chunk)
        sent = self._ray.put((work, pool, most))
        waiting = [task.remote(sent, index) for index in range(first, pool.chunk_count(most))]
        while waiting:
            found = self._ray.get(waiting.pop(0))
            yield {name: torch.tensor(value) for name, value in found.items()}


def on_cluster(address: str, work: Callable[..., Any], wanted: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """`work(*one)` for every one wanted, as tasks of one core, begun at once; the results as they end, in any
    order."""
    ray, mine = connected(address)
    task = ray.remote(num_cpus=1, max_retries=ATTEMPTS)(_worked)
    return _collected(ray, [task.remote(work, tuple(one)) for one in wanted], mine=mine)


def _collected(ray: Any, waiting: list[Any], *, mine: bool) -> Iterator[Any]:
    try:
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            yield from map(ray.get, done)
    finally:
        if mine:
            ray.shutdown()


def _worked(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    import torch

    torch.set_num_threads(1)
    return work(*arguments)


def _chunk(sent: tuple[Any, Any, Any], index: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    return chunk_result(*sent, index)


def connected(address: str) -> tuple[Any, bool]:
    """Ray, and whether we connected it; options for starting a cluster are passed only if we start it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage reports
    ray: Any = optional("ray", wanted_by="--ray", install="'engram[ray]'")
    if ray.is_initialized():
        return ray, False
    local = {"include_dashboard": False} if address == "local" else {}
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="error", **local)
    except (OSError, ValueError, OverflowError, RuntimeError) as error:  # a port beyond 65535 overflows
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--ray {address} can't be reached ({reason}); start a cluster with `ray start --head`, "
            "give its HOST:PORT, or use --ray local"
        ) from error
    return ray, True


def _knock(address: str) -> None:
    """Fail within seconds if nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=5).close()


def _run(view: PackedView, order: TrialOrder, threads: int) -> Ended:
    import torch

    torch.set_num_threads(threads)  # Ray's worker process, not the user's
    return run_trial(view, order)
