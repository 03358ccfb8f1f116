"""The loop that keeps an executor busy with the trials of one sweep or of many."""

from __future__ import annotations

import time
from collections.abc import Sequence

from engram.sweep.executors import Executor
from engram.sweep.ledger import Claim, Row
from engram.sweep.sweep import OnRow, Sweep

POLL_SECONDS = 0.5

_Running = dict[tuple[str, int], tuple[Sweep, Claim]]
"""By sweep and number."""


def _ignore(sweep: Sweep, row: Row) -> None:
    pass


def drive(sweeps: Sequence[Sweep], executor: Executor, on_row: OnRow = _ignore) -> None:
    """Run all trials of all sweeps; those that another process is running are waited for."""
    waiting, running = list(sweeps), _Running()
    while waiting:
        _feed(waiting, running, executor, on_row)
        if running:
            for job, ended in executor.collect(POLL_SECONDS):
                sweep, claim = running.pop((job.sweep, job.order.number))
                sweep.record(claim, job.order, ended, on_row)
        elif any(not sweep.is_complete() for sweep in waiting):
            time.sleep(POLL_SECONDS)  # others are at work on what is left
        waiting = [sweep for sweep in waiting if not sweep.is_complete()]


def _feed(waiting: Sequence[Sweep], running: _Running, executor: Executor, on_row: OnRow) -> None:
    for sweep in waiting:
        while len(running) < executor.slots and (given := sweep.next_job(on_row)) is not None:
            claim, job = given
            running[job.sweep, job.order.number] = (sweep, claim)
            executor.submit(job)
