"""Watching: a run's directory, complete, cut short or missing, in the terminal and on loopback."""

from __future__ import annotations

import io
import json
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch

from engram.attacks.engine.dense import Engine
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.settings import EngineSettings
from engram.auditing import record
from engram.auditing.run import audit
from engram.auditing.watch import Watcher, live_page, serve
from engram.cli.reconstruct import view
from engram.core.errors import CheckpointError, ConfigError
from engram.core.files import write_tensors
from engram.core.loop import Budget, Snapshots, run
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.pipeline import attack
from tests.auditing.cases import QUICK, SHAPE, faces, memorising
from tests.cases import network


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """A run that was cut off after 6 of its steps, as its directory looks while it is running."""
    made = network(625, 40, 1)
    write_tensors(tmp_path / "model.safetensors", made.params)
    engine = Engine(
        AttackerView(made, SHAPE, Binary()), EngineSettings(candidates=8, steps=10, restarts=2, prior=0.5)
    )
    directory = tmp_path / "run"
    attack(engine, directory=directory, model=str(tmp_path / "model.safetensors"))
    (directory / "reconstruction.safetensors").unlink()
    run(engine, Budget(steps=6), snapshots=Snapshots(path=directory / "snapshot.safetensors"))
    record = json.loads((directory / "run.json").read_text())
    (directory / "run.json").write_text(json.dumps({**record, "outcome": {"state": "running"}}))
    metrics = directory / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:6]) + '{"step": 7, "lo')
    return directory


def test_a_running_directory_is_read_as_it_is(running: Path) -> None:
    status = Watcher(running).look()
    assert status.is_running
    assert (status.step, status.total) == (6, 20)
    assert [step for step, _ in status.losses] == [1, 2, 3, 4, 5, 6]
    assert status.images is not None
    assert status.images.shape == (len(status.captions), *SHAPE)
    assert 1 <= len(status.captions) <= 8, "candidates of the same image are merged"
    assert 0 <= float(status.images.min()) <= float(status.images.max()) <= 1
    assert status.note is None


def test_candidates_change_with_the_snapshot(running: Path) -> None:
    watcher = Watcher(running, count=3)
    before = watcher.look().images
    assert before is not None
    assert watcher.look().images is before, "nothing new, nothing computed"
    (running / "snapshot.safetensors").unlink()
    assert watcher.look().images is None


def test_a_model_that_is_gone_costs_only_the_pictures(running: Path) -> None:
    (running.parent / "model.safetensors").unlink()
    status = Watcher(running).look()
    assert status.step == 6
    assert status.images is None
    assert "model.safetensors" in str(status.note)
    with pytest.raises(CheckpointError, match="contains no run"):
        Watcher(running.parent).look()


def test_the_terminal_shows_progress_loss_and_pictures(running: Path) -> None:
    from rich.console import Console

    printed = io.StringIO()
    Console(width=120, file=printed).print(view(Watcher(running).look()))
    text = printed.getvalue()
    assert "running, step 6 of 20" in text
    assert "loss " in text
    assert text.count("▀") % (24 * 12) == 0
    assert text.count("▀") > 0


def served(running: Path) -> str:
    """The address of a server in its own thread, which ends with the process."""
    addresses: list[str] = []
    ready = threading.Event()

    def started(address: str) -> None:
        addresses.append(address)
        ready.set()

    threading.Thread(
        target=serve, args=(Watcher(running),), kwargs={"port": 0, "every": 2.0, "started": started}, daemon=True
    ).start()
    assert ready.wait(30)
    return addresses[0]


def fetched(address: str, **headers: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(address, headers=headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_browser_view_is_for_this_machine_only(running: Path) -> None:
    address = served(running)
    assert address.startswith("http://127.0.0.1:")
    code, text = fetched(address)
    assert code == 200
    assert "running, step 6 of 20" in text
    assert text.count("data:image/png;base64,") == len(Watcher(running).look().captions)
    assert '<meta http-equiv="refresh" content="2">' in text
    assert "<script" not in text
    assert fetched(address, Host="evil.example")[0] == 403
    assert fetched(address + "run.json")[0] == 404
    port = int(address.rsplit(":", 1)[1].strip("/"))
    other = socket.gethostbyname(socket.gethostname())
    if not other.startswith("127."):
        with pytest.raises(OSError), socket.create_connection((other, port), timeout=2):  # noqa: PT011
            pass
    with pytest.raises(ConfigError, match=f"--port {port} can't be used"):
        serve(Watcher(running), port=port, every=1.0, started=lambda _: None)


def test_numbers_of_any_size_and_in_any_order_are_drawn(running: Path) -> None:
    lines = [
        {"step": 2**63, "loss": 1.0},
        {"step": 3, "loss": 2.0, "margin": 10**400},
        {"step": 10**400, "loss": 1.0},
    ]
    (running / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    status = Watcher(running).look()
    assert [step for step, _ in status.losses] == [3, 2**63]
    assert "<svg" in live_page(status, 1.0)


def test_candidates_of_another_shape_cost_only_the_pictures(running: Path) -> None:
    Reconstruction(torch.rand(4, 625), torch.ones(4), torch.zeros(4).long()).save(
        running / "reconstruction.safetensors"
    )
    status = Watcher(running).look()
    assert status.images is None
    assert "images of another shape than the model takes" in str(status.note)


def test_a_damaged_snapshot_of_a_finished_run_is_named(running: Path) -> None:
    """Nothing is left to do, so no step looks at what it contains."""
    made = network(625, 40, 1)
    settings = EngineSettings(candidates=8, steps=10, restarts=2, prior=0.5)
    engine = Engine(AttackerView(made, SHAPE, Binary()), settings)
    attack(engine, directory=running, resume=True)
    snapshots = Snapshots(path=running / "snapshot.safetensors")
    position, state = snapshots.load(engine.fingerprint())
    snapshots.save(position, {**state, "start_length": torch.tensor(0)})
    with pytest.raises(CheckpointError, match="is damaged: division by zero; start again in another directory"):
        attack(engine, directory=running, resume=True)


def test_a_report_grows_until_the_attack_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "FIRST_MOMENT", 1e-3)
    report, seen = tmp_path / "run" / "report.html", list[str]()

    def look(what: str, share: float) -> None:
        if what.startswith("attacking") and report.exists():
            seen.append(report.read_text())

    audit(
        memorising(),
        input_shape=SHAPE,
        train=faces(0),
        held_out=faces(20),
        settings=QUICK,
        baselines="none",
        directory=tmp_path / "run",
        progress=look,
    )
    assert len(set(seen)) > 1, "it grows"
    for page in (seen[0], seen[-1]):
        assert '<meta http-equiv="refresh" content="2">' in page
        assert "the attack is under way" in page
        assert "held-out, ncc&gt;0.8" in page
        assert 0 < page.count("data:image/png;base64,") <= 24
        assert "<script" not in page
    assert 'http-equiv="refresh"' not in report.read_text()
    assert "leak found" in report.read_text().lower()
