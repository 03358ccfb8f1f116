"""Claims and results in an Optuna study: no trial is run twice once it has finished, and none is forgotten.

A trial is created as running, with the name of the sweep that owns it, in one write. If that sweep dies, another
takes the trial over under its number, with the settings that were drawn, and so with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from engram import files
from engram.sweep.presence import GRACE_SECONDS, Presence
from engram.sweep.space import Space
from engram.sweep.storage import open_storage

Row = dict[str, Any]
"""One finished trial: number, state, reason, objective, unexplained, params, seed, steps, seconds, ..."""

# Diverged trials are told as pruned: samplers count those as bad, but leave failed ones out of account.
OPTUNA_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "diverged": TrialState.PRUNED,
    "failed": TrialState.FAIL,
    "killed": TrialState.FAIL,
}
OWNER, ROW = "engram:owner", "engram:row"


@dataclass(frozen=True)
class Claim:
    """A trial that this sweep may run, and who had claimed it before, if anyone."""

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
    _presence: Presence = field(init=False)
    study: optuna.Study = field(init=False)

    def __post_init__(self) -> None:
        self._storage = open_storage(self.directory, self.url)
        direction = StudyDirection.MINIMIZE if self.direction == "minimize" else StudyDirection.MAXIMIZE
        with suppress(DuplicatedStudyError):  # gone on with, or shared
            self._storage.create_new_study([direction], self.name)
        self._study_id = self._storage.get_study_id_from_name(self.name)
        self.study = optuna.load_study(study_name=self.name, storage=self._storage, sampler=self.sampler)
        beats = None if self.url is None else _StudyBeats(self._storage, self._study_id)
        self._presence = Presence(self.directory, beats, grace=self.grace)

    @property
    def me(self) -> str:
        return self._presence.name

    def claim(self, total: int, may_start: Callable[[int], bool]) -> Claim | None:
        """The first trial below `total` that nobody alive is running, made if need be; None if there is none."""
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
                # Another machine was quicker; whoever asks for more trials one day finds this one waiting.
                self._storage.set_trial_state_values(trial_id, TrialState.WAITING)
                return None
            return self._drawn(trial_id, number, None)

    def finish(self, claim: Claim, row: Row) -> None:
        """Enter a result; if the trial has one already, that one stays."""
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
        """The finished trials below `total` by their numbers."""
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
        return [_row(trial) for trial in trials[:total] if trial.state.is_finished()]

    def checkpoints(self, first: int) -> list[tuple[float, ...]] | None:
        """Unexplained shares at the checkpoints of the first trials; None before all of them have finished."""
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False)[:first]
        if len(trials) < first or not all(trial.state.is_finished() for trial in trials):
            return None
        return [
            tuple(trial.intermediate_values[step] for step in sorted(trial.intermediate_values))
            for trial in trials
            if trial.intermediate_values
        ]

    def close(self) -> None:
        self._presence.close()
        self._storage.remove_session()

    def _take(self, trial: FrozenTrial) -> bool:
        if trial.state is TrialState.WAITING:
            taken = self._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
        else:
            taken = not self._presence.is_alive(trial.user_attrs.get(OWNER, ""))
        if taken:
            self._storage.set_trial_user_attr(trial._trial_id, OWNER, self.me)
        return taken

    def _drawn(self, trial_id: int, number: int, earlier_owner: str | None) -> Claim:
        """With settings: those drawn already, or drawn now."""
        trial = Trial(self.study, trial_id)
        params = {name: one.suggest(trial, name) for name, one in self.space.search.items()}
        return Claim(number, trial_id, params, earlier_owner)


@dataclass(frozen=True)
class _StudyBeats:
    """Signs of life as attributes of the study."""

    storage: BaseStorage
    study_id: int

    def beat(self, name: str, count: int) -> None:
        self.storage.set_study_user_attr(self.study_id, f"engram:beat:{name}", count)

    def last(self, name: str) -> int:
        return int(self.storage.get_study_user_attrs(self.study_id).get(f"engram:beat:{name}", -1))


def _row(trial: FrozenTrial) -> Row:
    row = trial.user_attrs.get(ROW)
    if row is None:  # ended by hand, with Optuna's own tools
        row = {"number": trial.number, "state": "failed", "reason": "was ended outside engram"}
        row |= {"objective": None, "unexplained": None, "params": trial.params}
    return dict(row)
