"""Results do not depend on where in memory a file's numbers are loaded: BLAS rounding depends on the address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from engram.attacks.reconstruction import Attack
from engram.attacks.registry import make_attack
from engram.attacks.settings import EngineSettings
from engram.auditing.comparison import audit_data
from engram.core import files
from engram.core.loop import Budget, Snapshots, run
from engram.data.catalog import load
from engram.data.sets import to_unit
from engram.models.open.files import read_network
from engram.models.tasks import Binary, Multiclass, Task
from engram.models.view import AttackerView
from engram.sweep.trial import packed
from tests import cases


def is_aligned(tensor: Tensor) -> bool:
    return tensor.data_ptr() % files.ALIGNMENT == 0


def misaligned(tensor: Tensor) -> Tensor:
    """The same values one element past an aligned address."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    moved = room[1:].view(tensor.shape)
    moved.copy_(tensor)
    assert not tensor.numel() or not is_aligned(moved)
    return moved


@pytest.fixture
def files_misaligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load every safetensors file at misaligned addresses, whatever the machine would choose."""
    for name in ("load_file", "load"):
        real = getattr(safetensors.torch, name)

        def reading(source: Any, real: Any = real) -> dict[str, Tensor]:
            return {key: misaligned(value) for key, value in real(source).items()}

        monkeypatch.setattr(safetensors.torch, name, reading)


def test_an_aligned_tensor_is_not_copied() -> None:
    fine = torch.ones(5)
    assert files.aligned(fine) is fine
    moved = files.aligned(misaligned(fine))
    assert is_aligned(moved)
    assert torch.equal(moved, fine)


@pytest.mark.usefixtures("files_misaligned")
def test_tensors_are_aligned_wherever_they_enter(tmp_path: Path) -> None:
    network = cases.network(6, 5, 1, dtype=torch.float32)
    files.write_tensors(tmp_path / "model.safetensors", network.params)
    read = files.read_tensors(tmp_path / "model.safetensors")
    torch.save({name: misaligned(value) for name, value in network.params.items()}, tmp_path / "model.pt")
    opened = [read_network(tmp_path / name) for name in ("model.safetensors", "model.pt")]
    sent = packed(AttackerView(network, (6,), Binary())).unpacked().network
    for tensors in (read, *(one.params for one in (*opened, sent))):
        assert all(is_aligned(value) for value in tensors.values())
        assert all(torch.equal(value, network.params[name]) for name, value in tensors.items())


def test_data_is_aligned_wherever_it_enters(tmp_path: Path) -> None:
    pixels = misaligned(torch.arange(48, dtype=torch.uint8).view(4, 3, 2, 2)).numpy()
    assert is_aligned(to_unit(pixels))
    for name, images in (("bytes", pixels), ("floats", pixels / np.float32(255)), ("rows", np.ones((4, 3)))):
        np.savez(tmp_path / name, images=images, labels=np.arange(4) % 2)
        assert is_aligned(load(f"npz:{tmp_path / name}.npz").images)
    view = AttackerView(cases.network(12, 5, 1), (3, 2, 2), Binary())
    given = audit_data(view, (misaligned(torch.rand(4, 3, 2, 2)), torch.arange(4) % 2), None)
    assert is_aligned(given.train.images)


def _attack(kind: str, task: Task) -> Attack:
    view = AttackerView(cases.network(27, 30, 12, task.outputs, dtype=torch.float32), (3, 3, 3), task)
    if kind == "engine":
        settings = EngineSettings(candidates=24, restarts=2, steps=20, metric_every=7, prior=0.7)
        return make_attack(view, settings=settings)
    return make_attack(view, "buzaglo2023", {"candidates": 24, "steps": 40, "dtype": "float32"})


@pytest.mark.usefixtures("files_misaligned")
@pytest.mark.parametrize("task", [Binary(), Multiclass(3)], ids=["binary", "multiclass"])
@pytest.mark.parametrize("kind", ["engine", "published"])
def test_a_run_resumed_from_a_misaligned_file_ends_bit_identical(kind: str, task: Task, tmp_path: Path) -> None:
    whole = run(_attack(kind, task), Budget(steps=40)).state
    snapshots = Snapshots(path=tmp_path / "s")
    run(_attack(kind, task), Budget(steps=11), snapshots=snapshots)
    _, state = snapshots.load(_attack(kind, task).fingerprint())
    assert all(is_aligned(value) for value in state.values())
    resumed = run(_attack(kind, task), Budget(steps=40), snapshots=snapshots, resume=True).state
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
