"""Claims and results in an Optuna study: no finished trial is run again, and none is lost.

The study is in a journal in the sweep's directory, or in a database that machines share. A trial is created as
running, with the name of the sweep that owns it, in one write. If that sweep dies, another takes over the trial
with its number and settings, and so with the same result. Within a directory, each sweep locks a file of its own;
the kernel releases the lock as soon as the process ends. Sweeps in different directories share only a database, in
which each increments a counter; a sweep whose counter stops is dead. Only the observer's clock counts, so the
machines' clocks need not agree."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import optuna
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from engram.core import files
from engram.core.errors import ConfigError
from engram.sweep.space import Space

JOURNAL = "study.journal"


class KillSafeJournal(JournalFileBackend):
    """Optuna's journal file, with a lock that ends with its process and without partial lines.

    Optuna's own lock is a file that stays for half a minute after its process was killed; and a line that was cut
    short would run into the next one.
    """

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        path = Path(self._file_path)
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with files.locked(path.with_suffix(".lock")), path.open("r+b") as stream:
            stream.seek(whole_lines(path))
            stream.truncate()
            stream.write(lines.encode())
            stream.flush()
            os.fsync(stream.fileno())


def without_password(url: str) -> str:
    """The URL in a form that may be shown and stored.

    >>> without_password("postgresql://me:secret@host/db"), without_password("sqlite:////shared/study.db")
    ('postgresql://me:***@host/db', 'sqlite:////shared/study.db')
    """
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


def whole_lines(path: Path) -> int:
    """Bytes of a file up to the end of its last complete line."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        while size > 0:
            start = max(0, size - 4096)
            stream.seek(start)
            found = stream.read(size - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            size = start
    return 0


def open_storage(directory: Path, url: str | None) -> BaseStorage:
    """The journal of a sweep's directory, or the database at an SQLAlchemy URL."""
    if url is None:
        return JournalStorage(KillSafeJournal(str(directory / JOURNAL)))
    try:
        return get_storage(url)
    except Exception as error:  # drivers raise all kinds of errors
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--storage {without_password(url)} can't be opened ({reason}); "
            "give an SQLAlchemy URL, e.g. sqlite:////shared/study.db"
        ) from error


BEAT_SECONDS, GRACE_SECONDS = 10.0, 60.0


class Beats(Protocol):
    """Counters by name in a place that all machines see."""

    def beat(self, name: str, count: int) -> None: ...

    def last(self, name: str) -> int: ...


class Liveness:
    """This sweep's own heartbeat, and those of others."""

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
        """Remove the lock file; trials that this sweep claimed are free again."""
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


Row = dict[str, Any]
"""One finished trial: number, state, reason, objective, unexplained, params, seed, steps, seconds, ..."""

# Diverged trials are reported as pruned: samplers count those as bad, but ignore failed ones.
OPTUNA_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "diverged": TrialState.PRUNED,
    "failed": TrialState.FAIL,
    "killed": TrialState.FAIL,
}
OWNER, ROW = "engram:owner", "engram:row"


@dataclass(frozen=True)
class ClaimedTrial:
    """A trial that this sweep may run, and its previous owner, if any."""

    number: int
    trial_id: int
    params: dict[str, Any]
    earlier_owner: str | None


@dataclass(eq=False)
class Ledger:
    """The study of one sweep, for all processes and machines that work on it."""

    directory: Path
    name: str
    space: Space
    sampler: optuna.samplers.BaseSampler
    direction: Literal["minimize", "maximize"]
    url: str | None = None
    grace: float = GRACE_SECONDS
    _storage: BaseStorage = field(init=False)
    _study_id: int = field(init=False)
    _liveness: Liveness = field(init=False)
    study: optuna.Study = field(init=False)

    def __post_init__(self) -> None:
        self._storage = open_storage(self.directory, self.url)
        direction = StudyDirection.MINIMIZE if self.direction == "minimize" else StudyDirection.MAXIMIZE
        with suppress(DuplicatedStudyError):  # resumed or shared
            self._storage.create_new_study([direction], self.name)
        self._study_id = self._storage.get_study_id_from_name(self.name)
        self.study = optuna.load_study(study_name=self.name, storage=self._storage, sampler=self.sampler)
        beats = None if self.url is None else _StudyBeats(self._storage, self._study_id)
        self._liveness = Liveness(self.directory, beats, grace=self.grace)

    @property
    def me(self) -> str:
        return self._liveness.name

    def claim(self, total: int, may_start: Callable[[int], bool]) -> ClaimedTrial | None:
        """The first trial below `total` that no live sweep is running, created if needed; None if none is left."""
        with files.locked(self.directory / "claims.lock"):
            trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
            for trial in trials[:total]:
                if not trial.state.is_finished() and may_start(trial.number) and self._take(trial):
                    return self._drawn(trial._trial_id, trial.number, trial.user_attrs.get(OWNER))
            if len(trials) >= total or not may_start(len(trials)):
                return None
            template = create_trial(state=TrialState.RUNNING, user_attrs={OWNER: self.me})
            trial_id = self._storage.create_new_trial(self._study_id, template)
            number = self._storage.get_trial(trial_id).number
            if number >= total:
                # Another machine was quicker. If more trials are asked for later, this one is waiting.
                self._storage.set_trial_state_values(trial_id, TrialState.WAITING)
                return None
            return self._drawn(trial_id, number, None)

    def finish(self, claim: ClaimedTrial, row: Row) -> None:
        """Enter a result; a trial that already has one keeps it."""
        state = OPTUNA_STATES[row["state"]]
        values = [row["objective"]] if state is TrialState.COMPLETE else None
        with suppress(UpdateFinishedTrialError):
            for step, unexplained in enumerate(row["checkpoints"]):
                self._storage.set_trial_intermediate_value(claim.trial_id, step, unexplained)
            self._storage.set_trial_user_attr(claim.trial_id, ROW, row)
            self._storage.set_trial_state_values(claim.trial_id, state, values)

    def is_complete(self, total: int) -> bool:
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False)[:total]
        return len(trials) == total and all(trial.state.is_finished() for trial in trials)

    def rows(self, total: int) -> list[Row]:
        """The finished trials below `total` by number."""
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
        return [_row(trial) for trial in trials[:total] if trial.state.is_finished()]

    def checkpoints(self, first: int) -> list[tuple[float, ...]] | None:
        """Unexplained shares at the checkpoints of the first trials; None until all of them have finished."""
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False)[:first]
        if len(trials) < first or not all(trial.state.is_finished() for trial in trials):
            return None
        return [
            tuple(trial.intermediate_values[step] for step in sorted(trial.intermediate_values))
            for trial in trials
            if trial.intermediate_values
        ]

    def close(self) -> None:
        self._liveness.close()
        self._storage.remove_session()

    def _take(self, trial: FrozenTrial) -> bool:
        if trial.state is TrialState.WAITING:
            taken = self._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
        else:
            taken = not self._liveness.is_alive(trial.user_attrs.get(OWNER, ""))
        if taken:
            self._storage.set_trial_user_attr(trial._trial_id, OWNER, self.me)
        return taken

    def _drawn(self, trial_id: int, number: int, earlier_owner: str | None) -> ClaimedTrial:
        """The trial with its settings, which are drawn now unless they were before."""
        trial = Trial(self.study, trial_id)
        params = {name: one.suggest(trial, name) for name, one in self.space.search.items()}
        return ClaimedTrial(number, trial_id, params, earlier_owner)


@dataclass(frozen=True)
class _StudyBeats:
    """Heartbeats as attributes of the study."""

    storage: BaseStorage
    study_id: int

    def beat(self, name: str, count: int) -> None:
        self.storage.set_study_user_attr(self.study_id, f"engram:beat:{name}", count)

    def last(self, name: str) -> int:
        return int(self.storage.get_study_user_attrs(self.study_id).get(f"engram:beat:{name}", -1))


def _row(trial: FrozenTrial) -> Row:
    row = trial.user_attrs.get(ROW)
    if row is None:  # ended with Optuna's own tools
        row = {"number": trial.number, "state": "failed", "reason": "ended outside engram"}
        row |= {"objective": None, "unexplained": None, "params": trial.params}
    return dict(row)
