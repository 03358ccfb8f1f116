"""Odd values for every option and argument of every command: refused in words, or accepted; never a traceback.

The commands and their options come from the command line's own definitions, so that a new one is covered the day
it is added: a new command needs an entry in `BASES`, and the test says so. Everything runs in this process. Work
that follows once all options are accepted is stopped (`stopped`): the matter here is what happens before. What a
command computes with accepted options is tested elsewhere.
"""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.main import get_command

import engram
from engram.attacks.engine.dense import Engine
from engram.attacks.registry import RECIPES, setting_names
from engram.attacks.settings import EngineSettings
from engram.cli.app import app
from engram.core.errors import EngramError
from engram.models.open.door import open_view
from engram.pipeline import attack

USAGE_ERROR: Any = typer.BadParameter.__mro__[2]
"""Of the click that typer brings along: whatever the command line itself says about its options."""
LONG = "x" * 5_000
ODD = {
    "nan": "nan",
    "inf": "inf",
    "minus inf": "-inf",
    "-1": "-1",
    "0": "0",
    "1": "1",
    "half": "0.5",
    "1e18": "1e18",
    "10**18": str(10**18),
    "10**9": str(10**9),
    "2**63": str(2**63),
    "2**64": str(2**64),
    "5,000 digits": "9" * 5_000,
    "empty": "",
    "space": " ",
    "superscript": "²",
    "not ASCII": "naïve-漢字-٣",
    "long": LONG,
    "very long": LONG * 40,
    "NUL": "a\0b",
    "not UTF-8": "a\udcffb",
    "no such path": "no/such/path",
    "directory": "{place}/directory",
    "binary file": "{place}/binary",
    "text file": "{place}/text.json",
    "below a file": "{place}/text.json/below",
    "markup": "[bold]<b>{{}}%s",
}
BASES: dict[str, dict[str, Any]] = {
    "demo": {"out": "OUT"},
    "audit": {
        "model": "MODEL",
        "out": "OUT",
        "input_shape": "1x4x4",
        "data": "npz:DATA",
        "n": 4,
        "task": "binary",
    },
    "membership": {"model": "MODEL", "out": "OUT", "input_shape": "1x4x4", "data": "npz:DATA", "n": 4},
    "harden": {"model": "MODEL", "out": "OUT", "input_shape": "1x4x4", "data": "npz:DATA", "n": 4},
    "defend": {"target": "head", "out": "OUT", "data": "npz:DATA", "n": 4, "only": "none"},
    "data list": {},
    "data get": {"name": "mnist", "data_root": "OUT"},
    "data show": {"name": "npz:DATA", "out": "OUT.png"},
    "train": {"out": "OUT", "data": "npz:DATA", "n": 4, "widths": "3", "epochs": 2},
    "inspect": {"model": "MODEL", "input_shape": "1x4x4", "data": "npz:DATA", "n": 4},
    "reconstruct": {"model": "MODEL", "out": "OUT", "input_shape": "1x4x4"},
    "policy init": {"path": "OUT.toml"},
    "policy check": {"run": "AUDIT", "policy": "POLICY"},
    "report": {"run": "AUDIT", "out": "OUT.html"},
    "compare": {"before": "AUDIT", "after": "AGAIN", "out": "OUT"},
    "watch": {"run": "RUN", "once": True},
    "score": {"run": "RUN", "data": "npz:DATA", "n": 4},
    "sweep": {"models": "MODEL", "out": "OUT", "input_shape": "1x4x4", "trials": 1, "jobs": 0},
    "reproduce": {"experiment": "haim/fig1", "out": "OUT", "scale": "smoke"},
}
"""By command, options that it accepts: a small model (MODEL), data (DATA), a finished run of the model (RUN), two
finished audits (AUDIT, AGAIN), a policy (POLICY) and a directory that does not exist (OUT). Choose them so that
little is computed before all options are checked."""
PLACES = {
    "MODEL": "model.pt",
    "DATA": "data.npz",
    "RUN": "run",
    "AUDIT": "audit",
    "AGAIN": "again",
    "POLICY": "policy.toml",
}
STOPPED = (
    "engram.pipeline.run",
    "engram.pipeline.train",
    "engram.cli.audit.run_demo",
    "engram.auditing.membership_report.run_membership",
    "engram.defences.harden.harden",
    "engram.defences.defend._computed",
    "engram.data.catalog._download",
    "engram.auditing.watch.serve",
    "engram.cli.sweep_run.drive",
    "engram.sweep.executors.connected",
    "engram.papers.catalogue.Run.experiments",
)
"""Where the long work of a command begins. Those of `run` have been given their candidates: memory counts."""


class ReachedError(Exception):
    """All options were accepted, and the work would begin."""


@dataclass(frozen=True)
class Outcome:
    """`kind` is refused, accepted, or the name of an exception that should not have come."""

    kind: str
    message: str


Parameter = Any
COMMANDS: dict[str, Any] = {}


def _walk(command: Any, name: str = "") -> None:
    for own, inner in getattr(command, "commands", {}).items():
        _walk(inner, f"{name} {own}".strip())
    if not hasattr(command, "commands"):
        COMMANDS[name] = command


ROOT = get_command(app)
_walk(ROOT)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, data, a finished run, and files that are none of what a command expects."""
    place = tmp_path_factory.mktemp("hostile")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
    torch.save(model.state_dict(), place / "model.pt")
    pixels = np.random.default_rng(0).random((12, 1, 4, 4), np.float32)
    np.savez(place / "data.npz", images=pixels, labels=np.arange(12) % 2)
    view = open_view(place / "model.pt", input_shape=(1, 4, 4))
    settings = EngineSettings(candidates=4, steps=2, restarts=1, prior=0.0)
    attack(Engine(view, settings), directory=place / "run", model=str(place / "model.pt"))
    audited = engram.audit(place / "model.pt", input_shape=(1, 4, 4), baselines="none", settings=settings)
    for name in ("audit", "again"):
        audited.save(place / name)
    (place / "policy.toml").write_text("confident_candidates = 0\n")
    (place / "directory" / "inner").mkdir(parents=True)
    (place / "binary").write_bytes(bytes(range(256)) * 4)
    (place / "text.json").write_text('{"a": [1]}')
    return place


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*arguments: object, **named: object) -> None:
        if arguments and hasattr(arguments[0], "init"):
            arguments[0].init()
        raise ReachedError

    for name in STOPPED:
        monkeypatch.setattr(name, reached)
    monkeypatch.setattr("engram.render.figures.pairs_figure", lambda pairs, title: b"")  # a second each time


def arguments(command: Any, values: dict[str, Any], place: Path, out: Path) -> list[str]:
    """What a person would type; options with `=`, so that no value is taken for an option."""
    words, last = [], []
    for parameter in command.params:
        if parameter.name not in values:
            continue
        value = values[parameter.name]
        if isinstance(value, bool):
            words += [parameter.opts[-1]] * value
            continue
        text = str(value)
        for name, path in PLACES.items():
            text = text.replace(name, str(place / path))
        text = text.replace("OUT", str(out)).replace("{place}", str(place))
        if parameter.param_type_name == "argument":
            last.append(text)
        else:
            option = parameter.opts[-1]
            words += [f"{option}={text}"] if option.startswith("--") else [option, text]
    return [*words, "--", *last]


def ran(name: str, given: list[str]) -> Outcome:
    """The outcome of a command in this process, as `cli.app.main` would see it."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = ROOT([*name.split(), *given], standalone_mode=False)
    except ReachedError:
        return Outcome("accepted", "")
    except EngramError as error:
        return Outcome("refused", str(error))
    except USAGE_ERROR as error:
        return Outcome("refused", error.format_message())
    except Exception as error:  # whatever it is, it would be a traceback
        return Outcome(f"{type(error).__name__}", _where(error))
    assert code in (None, 0, 1, 3, 4), code
    return Outcome("accepted" if code != 1 else "refused", err.getvalue() or out.getvalue())


def _where(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "engram" in frame.filename]
    return f"{str(error)[:200]} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"


def cases(command: Any) -> Iterator[tuple[Parameter, str, Any]]:
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            yield parameter, "given", True
        else:
            yield from ((parameter, label, value) for label, value in ODD.items())


def test_every_command_has_base_arguments() -> None:
    missing = [name for name in COMMANDS if name not in BASES]
    assert not missing, f"add to BASES in {__file__} the options that `engram {missing[0]}` needs, small ones"
    assert not [name for name in BASES if name not in COMMANDS], "BASES names a command that is gone"
    for name, values in BASES.items():
        known = [parameter.name for parameter in COMMANDS[name].params]
        assert not set(values) - set(known), f"engram {name} has no {set(values) - set(known)}"


@pytest.mark.parametrize("name", BASES)
def test_base_arguments_are_accepted(name: str, place: Path, tmp_path: Path, stopped: None) -> None:
    """Otherwise every odd value would be refused for another reason than its own."""
    found = ran(name, arguments(COMMANDS[name], BASES[name], place, tmp_path / "out"))
    assert found.kind == "accepted", found


@pytest.mark.parametrize("name", BASES)
def test_odd_values(
    name: str, place: Path, tmp_path: Path, stopped: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names without a directory go here
    monkeypatch.setenv("ENGRAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["engram", name])
    command, failures, accepted = COMMANDS[name], [], 0
    for number, (parameter, label, value) in enumerate(cases(command)):
        out = tmp_path / f"out-{number}"
        given = arguments(command, {**BASES[name], parameter.name: value}, place, out)
        found = ran(name, given)
        accepted += found.kind == "accepted"
        said = f"engram {name}: {parameter.opts[-1]} = {label}: {found.kind} {found.message[:300]}"
        if found.kind not in ("refused", "accepted"):
            failures.append(said)
        elif found.kind == "refused":
            if not found.message.strip() or "Traceback" in found.message:
                failures.append(f"{said}: no message")
            if out.exists() and any(out.iterdir()):
                failures.append(f"{said}: wrote {[one.name for one in out.iterdir()]}")
    assert not failures, "\n" + "\n".join(failures)


SETTINGS = [(recipe, name) for recipe in RECIPES for name in setting_names(recipe)]
NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1e18", str(10**9), str(10**18), str(2**63), "9" * 5_000, "", "²")


@pytest.mark.parametrize("recipe", RECIPES)
def test_odd_settings(recipe: str, place: Path, tmp_path: Path, stopped: None) -> None:
    """Each setting of each attack, as --set gives it: what is not finite or does not fit is refused by name."""
    failures = []
    for number, (name, value) in enumerate((name, value) for name in setting_names(recipe) for value in NUMBERS):
        values = {**BASES["reconstruct"], "recipe": recipe, "settings": f"{name}={value}"}
        out = tmp_path / f"out-{number}"
        found = ran("reconstruct", arguments(COMMANDS["reconstruct"], values, place, out))
        if found.kind not in ("refused", "accepted") or (found.kind == "refused" and name not in found.message):
            failures.append(f"{name}={value[:20]}: {found.kind} {found.message[:200]}")
        if value in ("nan", "inf", "-inf") and found.kind != "refused":
            failures.append(f"{name}={value} was accepted")
        if found.kind == "refused" and out.exists():
            failures.append(f"{name}={value[:20]} was refused but left {out}")
    assert not failures, "\n" + "\n".join(failures)


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("reconstruct", "candidates", 10**9, "candidates needs"),
        ("audit", "images", 10**18, "images needs"),
        ("train", "widths", 10**17, "widths needs"),
        ("membership", "jobs", 10**18, "jobs must lie in"),
        ("sweep", "jobs", 10**18, "jobs must lie in"),
        ("defend", "jobs", 10**18, "jobs must lie in"),
        ("reconstruct", "seed", 2**64, "needs more than 64 bits"),
        ("score", "ratio", "inf", "is not a finite number"),
        ("score", "ratio", "nan", "Invalid value"),
        ("watch", "every", "inf", "is not a finite number"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    name: str, option: str, value: object, message: str, place: Path, tmp_path: Path, stopped: None
) -> None:
    values = {**BASES[name], option: value}
    found = ran(name, arguments(COMMANDS[name], values, place, tmp_path / "out"))
    assert (found.kind, message in found.message) == ("refused", True), found
    if "needs" in message and "memory" in found.message:
        assert "fit" in found.message, "it says what would fit"
