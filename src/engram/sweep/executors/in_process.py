"""Trials one after the other in this process: for notebooks, tests and debuggers."""

from __future__ import annotations

from collections import deque

from engram.sweep.executors import Job
from engram.sweep.trial import Ended, packed, run_trial


class InProcess:
    """Runs a job when its end is asked for."""

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
