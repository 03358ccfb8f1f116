"""Which sweeps are alive. The trials that a dead one had claimed are taken again.

In one directory a sweep holds the lock of its own file; the kernel drops it with the process, at once. Sweeps in
other directories, that share only a database, count up a number in it; one that stands still is dead. It is
watched with the observer's clock, so the machines' clocks need not agree.
"""

from __future__ import annotations

import fcntl
import threading
import time
import uuid
from pathlib import Path
from typing import IO, Protocol

BEAT_SECONDS, GRACE_SECONDS = 10.0, 60.0


class Beats(Protocol):
    """Numbers by name in a place that all machines see."""

    def beat(self, name: str, count: int) -> None: ...

    def last(self, name: str) -> int: ...


class Presence:
    """This sweep's own sign of life, and what it sees of others'."""

    def __init__(self, directory: Path, beats: Beats | None = None, *, grace: float = GRACE_SECONDS) -> None:
        self.name = uuid.uuid4().hex[:12]
        self._directory = directory / "drivers"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._own: IO[bytes] = self._path(self.name).open("ab")
        fcntl.flock(self._own, fcntl.LOCK_EX)
        self._beats, self._grace = beats, grace
        self._seen: dict[str, tuple[int, float]] = {}
        self._ended = threading.Event()
        if beats is not None:
            beats.beat(self.name, 0)
            threading.Thread(target=self._count_up, args=(beats,), daemon=True).start()

    def is_alive(self, name: str) -> bool:
        if name == self.name:
            return True
        path = self._path(name)
        if path.exists():
            return _is_locked(path)
        return self._beats is not None and self._is_beating(self._beats, name)

    def close(self) -> None:
        """A sweep that ends leaves no file; what it had claimed is free."""
        self._ended.set()
        self._path(self.name).unlink(missing_ok=True)
        self._own.close()

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.lock"

    def _is_beating(self, beats: Beats, name: str) -> bool:
        count, now = beats.last(name), time.monotonic()
        if name not in self._seen or self._seen[name][0] != count:
            self._seen[name] = (count, now)
        return now - self._seen[name][1] < self._grace

    def _count_up(self, beats: Beats) -> None:
        count = 1
        while not self._ended.wait(BEAT_SECONDS):
            beats.beat(self.name, count)
            count += 1


def _is_locked(path: Path) -> bool:
    with path.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
