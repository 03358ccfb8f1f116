"""From names and paths to image sets."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engram.core.errors import ConfigError, DataError
from engram.data.catalog import CATALOG, REMOTES, data_root, load


def test_the_root_is_the_argument_then_the_variable_then_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGRAM_DATA", "from-variable")
    assert data_root(Path("given")) == Path("given")
    assert data_root() == Path("from-variable")
    monkeypatch.delenv("ENGRAM_DATA")
    assert data_root() == Path.home() / ".cache" / "engram"


def test_the_variable_is_where_sets_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGRAM_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"fashion-mnist was not found: there is no {tmp_path}/FashionMNIST"):
        load("fashion-mnist")


def test_real_sets_by_name(mnist_root: Path, cifar_root: Path) -> None:
    assert len(load("mnist", root=mnist_root)) == 60000
    assert len(load("cifar10", root=cifar_root)) % 10000 == 0
    assert CATALOG["mnist"].found(mnist_root) == mnist_root / "MNIST" / "raw"


def test_own_data_by_prefix_and_by_path(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=np.zeros((2, 4, 4), np.uint8), labels=np.array([0, 1]))
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    Image.new("L", (4, 4)).save(tmp_path / "photos" / "cat" / "1.png")
    for name in (f"npz:{tmp_path}/mine.npz", f"{tmp_path}/mine.npz"):
        assert (load(name).shape, len(load(name))) == ((1, 4, 4), 2)
    for name in (f"folder:{tmp_path}/photos", f"{tmp_path}/photos"):
        assert load(name).classes == ("cat",)


@pytest.mark.parametrize("name", ["faces", "circle", "npz:mine.npz"])
def test_no_test_split(name: str) -> None:
    with pytest.raises(ConfigError, match="which has no test split"):
        load(name, train=False)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"no data set 'cifar-10'; did you mean cifar10.*npz:PATH.*folder:PATH"):
        load("cifar-10")


def test_a_missing_npz_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        load(f"npz:{tmp_path}/none.npz")


def test_what_is_not_embedded_can_be_fetched() -> None:
    assert {name for name, entry in CATALOG.items() if not entry.embedded} == set(REMOTES)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["npz", "npy", "csv", "parquet", "safetensors", "folder", "labels"])
def test_a_pipe_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    """Nobody writes to it, so reading it would wait for ever."""
    if kind == "folder":
        (tmp_path / "photos" / "cat").mkdir(parents=True)
        os.mkfifo(tmp_path / "photos" / "cat" / "1.png")
        name = f"folder:{tmp_path / 'photos'}"
    elif kind == "labels":
        np.save(tmp_path / "vectors.npy", np.ones((2, 3)))
        os.mkfifo(tmp_path / "vectors_labels.npy")
        name = f"npy:{tmp_path / 'vectors.npy'}"
    else:
        os.mkfifo(tmp_path / "pipe")
        name = f"{kind}:{tmp_path / 'pipe'}"
    with pytest.raises(DataError, match="is not a file; check the path"):
        load(name)
