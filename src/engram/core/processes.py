"""Processes of this machine that work beside this one, and end with it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from engram.core.errors import EngramError

SPAWNED = multiprocessing.get_context("spawn")
"""Spawned, not forked: a forked child inherits the locks of threads that it does not have."""

Work = Callable[..., Any]
Elsewhere = Callable[[Work, Sequence[Sequence[Any]]], Iterator[Any]]
"""Begins `work(*one)` for every one of a list at once, in another process or on another machine; the results come
in any order."""


class WorkerError(EngramError):
    """A process that worked beside this one died."""


def threads_each(total: int, jobs: int) -> int:
    """Threads per process, so that all of them together use no more than this one would.

    >>> threads_each(8, 3), threads_each(2, 4)
    (2, 1)
    """
    return max(1, total // jobs)


def cause(exitcode: int) -> str:
    """
    >>> cause(-9), cause(3)
    ('SIGKILL', 'exit code 3')
    """
    return signal.Signals(-exitcode).name if exitcode < 0 else f"exit code {exitcode}"


def become_worker(threads: int) -> None:
    """What a spawned process does first: it leaves Ctrl-C to its parent, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)  # this process is ours alone


def _end_with_parent() -> None:
    """Whoever is killed takes the workers along; nobody would collect their results."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def sharing_threads(jobs: int) -> Iterator[int]:
    """This process with its share of the threads while `jobs` processes work; yields the threads of each."""
    before = torch.get_num_threads()
    each = threads_each(before, jobs)
    torch.set_num_threads(each)
    try:
        yield each
    finally:
        torch.set_num_threads(before)


def in_processes(threads: int) -> Elsewhere:
    """`Elsewhere` is one process of this machine for each piece of work, with so many threads."""

    def begin(work: Work, wanted: Sequence[Sequence[Any]]) -> Iterator[Any]:
        return _Beside(work, wanted, threads).results()

    return begin


class _Beside:
    def __init__(self, work: Work, wanted: Sequence[Sequence[Any]], threads: int) -> None:
        self._running: list[tuple[Any, Connection]] = []
        for arguments in wanted:
            ours, theirs = SPAWNED.Pipe()
            process = SPAWNED.Process(target=_answer, args=(theirs, threads), daemon=True)
            process.start()
            theirs.close()  # so that the pipe closes when the child ends
            self._running.append((process, ours))
            # In a thread: a child takes seconds to import what it needs, and only then reads.
            told = pickle.dumps((work, tuple(arguments)))
            threading.Thread(target=_send, args=(ours, told), daemon=True).start()

    def results(self) -> Iterator[Any]:
        try:
            for process, pipe in self._running:
                try:
                    succeeded, answer = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own child
                except (EOFError, OSError):
                    process.join()
                    raise WorkerError(
                        f"a process that worked beside this one died ({cause(process.exitcode)}); out of memory? "
                        "run it again with --resume, or in another directory with fewer --jobs"
                    ) from None
                if not succeeded:
                    raise answer
                yield answer
        finally:
            self._end()

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        for process, pipe in self._running:
            process.kill()
            process.join()
            pipe.close()
        self._running = []


def _send(pipe: Connection, told: bytes) -> None:
    with suppress(OSError):  # if the child has died, `results` says so
        pipe.send_bytes(told)


def _answer(pipe: Connection, threads: int) -> None:
    """The child process. Tensors are sent by value: torch would pass them in shared memory, of which a container
    may have little, and which ends with the child."""
    become_worker(threads)
    try:
        work, arguments = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own parent
        answer = (True, work(*arguments))
    except Exception as error:
        answer = (False, error)
    pipe.send_bytes(pickle.dumps(answer))
