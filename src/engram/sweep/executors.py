"""Where trials run. An executor takes orders and returns how they ended; it sees no study and no data.

`InProcess` runs one trial after the other, for notebooks, tests and debuggers. `Processes` runs several at once in
local processes, each with its share of the cores. `RayTasks` runs them on a cluster, which schedules them, sends
what they need once and retries lost tasks; `RayChunks` does the same with the records of a membership test.
`plan_steps` turns a time for a whole sweep into steps per trial, by measuring the cost of a step where the trials
will run.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch

from engram.attacks.registry import choose_settings
from engram.core.errors import ConfigError, EngramError, optional, require, require_jobs
from engram.core.processes import SPAWNED, become_worker, cause, threads_each
from engram.members.pool import Pool
from engram.members.scores import Chunk, State, chunk_result
from engram.models.networks import Network
from engram.models.open.modules import USER_CODE
from engram.models.view import AttackerView
from engram.sweep.space import SweepSpec
from engram.sweep.trial import Ended, PackedView, TrialOrder, packed, run_trial

ATTEMPTS = 3
"""How often a trial is tried if its worker dies; after that its row says `killed`."""


@dataclass(frozen=True, eq=False)
class Job:
    """An order for the model of one sweep; `sweep` names it, so that its weights are sent once if possible."""

    sweep: str
    view: AttackerView[Network]
    order: TrialOrder


class Executor(Protocol):
    """Submit jobs while it has free slots; collect those that have ended."""

    @property
    def slots(self) -> int:
        """How many jobs it can take at once; may change while it runs."""

    def submit(self, job: Job) -> None: ...

    def collect(self, timeout: float) -> list[tuple[Job, Ended]]:
        """The jobs that have ended; waits up to `timeout` seconds for the first."""

    def close(self) -> None:
        """Stop at once; running jobs are dropped and can be resumed later."""


def lost(attempts: int, cause: str) -> Ended:
    """The result of a trial whose worker died every time."""
    return Ended(
        state="killed",
        reason=f"its worker died {attempts} times ({cause}); out of memory? try fewer jobs or candidates",
    )


class InProcess:
    """Runs each job inside `collect`."""

    slots = 1

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        self._waiting.append(job)

    def collect(self, timeout: float) -> list[tuple[Job, Ended]]:
        if not self._waiting:
            return []
        job = self._waiting.popleft()
        return [(job, run_trial(packed(job.view), job.order))]

    def close(self) -> None:
        self._waiting.clear()


@dataclass(eq=False)
class _Worker:
    """A child process, the pipe to it, and what it is doing."""

    process: Any
    pipe: Connection
    job: Job | None = None
    attempts: int = field(default=0)


class Processes:
    """`jobs` workers; one that dies is replaced, and its trial is resumed from the last snapshot."""

    def __init__(self, jobs: int, *, threads: int | None = None) -> None:
        require_jobs(jobs)
        require(threads is None or threads >= 1, "threads", "must be at least 1", threads)
        self._threads = threads or threads_each(torch.get_num_threads(), jobs)
        self._workers = [self._started() for _ in range(jobs)]

    @property
    def slots(self) -> int:
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, for monitoring."""
        return [worker.process.pid for worker in self._workers]

    def submit(self, job: Job) -> None:
        worker = next(worker for worker in self._workers if worker.job is None)
        worker.job, worker.attempts = job, 0
        self._send(worker)

    def collect(self, timeout: float) -> list[tuple[Job, Ended]]:
        busy = {worker.pipe: worker for worker in self._workers if worker.job is not None}
        if not busy:
            time.sleep(timeout)
        ended = []
        for pipe in wait(list(busy), timeout):
            worker = busy[pipe]  # type: ignore[index]  # only our own connections were waited for
            assert worker.job is not None
            job, outcome = worker.job, self._received(worker)
            if outcome is not None:
                worker.job = None
                ended.append((job, outcome))
        return ended

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers.clear()

    def _started(self) -> _Worker:
        ours, theirs = SPAWNED.Pipe()
        process = SPAWNED.Process(target=_serve, args=(theirs, self._threads), daemon=True)
        process.start()
        theirs.close()  # so that the pipe closes when the child ends
        return _Worker(process, ours)

    def _send(self, worker: _Worker) -> None:
        assert worker.job is not None
        worker.attempts += 1
        with suppress(OSError):  # if the worker has just died, `collect` notices
            worker.pipe.send((packed(worker.job.view), worker.job.order))

    def _received(self, worker: _Worker) -> Ended | None:
        """What the worker sent; None if it died and a new worker has its job."""
        try:
            outcome: Ended = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            reason = cause(worker.process.exitcode)
            worker.pipe.close()
            fresh = self._started()
            worker.process, worker.pipe = fresh.process, fresh.pipe
            if worker.attempts >= ATTEMPTS:
                return lost(worker.attempts, reason)
            self._send(worker)
            return None
        return outcome


def _serve(pipe: Connection, threads: int) -> None:
    """The child process: runs orders until the pipe closes."""
    become_worker(threads)
    while True:
        try:
            view, order = pipe.recv()
        except EOFError:
            return
        pipe.send(run_trial(view, order))


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


WARM_UP_STEPS, MEASURED_STEPS = 2, 12
"""Steps of a first order, which also starts the workers, and of the one that is timed."""
USED = 0.9
"""Share of the time to plan for; the rest is for files, the study and pooling."""


@dataclass(frozen=True)
class StepPlan:
    """How long a trial may be: `steps` at `seconds_per_step`, with `slots` trials at a time."""

    steps: int
    seconds_per_step: float
    slots: int
    recipe_steps: int
    """Steps that the recipe would take."""
    seconds: float
    trials: int

    @property
    def sentence(self) -> str:
        """What is cut, in words.

        >>> StepPlan(300, 0.09, 2, 50_000, 1500.0, 100).sentence
        'cut: 300 steps per trial instead of 50,000; 100 trials, 2 at a time, 0.090 s per step: about 25 minutes'
        """
        minutes = self.trials * self.steps * self.seconds_per_step / self.slots / USED / 60
        return (
            f"cut: {self.steps:,} steps per trial instead of {self.recipe_steps:,}; {self.trials} trials, "
            f"{self.slots} at a time, {self.seconds_per_step:.3f} s per step: about {minutes:.0f} minutes"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_steps(view: AttackerView[Network], spec: SweepSpec, executor: Executor, *, seconds: float) -> StepPlan:
    """Steps for which all trials of `spec` take about `seconds`, measured with all the executor's slots busy."""
    require(seconds > 0, "seconds", "must be positive", seconds)
    if "steps" in spec.space.fixed or "steps" in spec.space.search:
        raise ConfigError("a time for the sweep determines the steps of its trials; give one or the other")
    _run_everywhere(view, spec, executor, WARM_UP_STEPS)
    each = _run_everywhere(view, spec, executor, MEASURED_STEPS) / MEASURED_STEPS
    slots = min(executor.slots, spec.trials)
    most = choose_settings(spec.space.recipe, view.task, spec.space.fixed).steps
    steps = max(1, min(most, int(USED * seconds * slots / (spec.trials * each))))
    return StepPlan(steps, each, slots, most, seconds, spec.trials)


def with_steps(spec: SweepSpec, steps: int) -> SweepSpec:
    """The sweep with trials of that many steps."""
    return replace(spec, space=spec.space.fixing({"steps": steps}))


def _run_everywhere(view: AttackerView[Network], spec: SweepSpec, executor: Executor, steps: int) -> float:
    """Run one short trial per slot; seconds of the slowest."""
    waiting = executor.slots
    for number in range(waiting):
        settings = {**spec.space.corner(), "steps": steps, "seed": number}
        executor.submit(Job("plan", view, TrialOrder(number=number, recipe=spec.space.recipe, settings=settings)))
    slowest = 0.0
    while waiting:
        for _, ended in executor.collect(0.5):
            if ended.state != "complete":
                raise EngramError(
                    f"a trial of {steps} steps, run to time a step, ended as {ended.state}: {ended.reason}"
                )
            slowest, waiting = max(slowest, ended.seconds), waiting - 1
    return slowest
