"""IDX files: the real MNIST, and the errors for damaged or hostile copies."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from engram.core.errors import DataError
from engram.data.readers import load_idx, read_idx


def idx(*shape: int, body: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


def write_set(root: Path, folder: str, suffix: str = "") -> Path:
    """Two 2×2 images with the labels 7 and 3."""
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    pack = gzip.compress if suffix else bytes
    (raw / f"train-images-idx3-ubyte{suffix}").write_bytes(pack(idx(2, 2, 2, body=bytes(range(0, 256, 34)))))
    (raw / f"train-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(2, body=bytes([7, 3]))))
    return raw


def test_real_mnist(mnist_root: Path) -> None:
    test = load_idx(mnist_root, "MNIST", train=False)
    assert test.images.shape == (10000, 1, 28, 28)
    assert test.labels[:5].tolist() == [7, 2, 1, 0, 4]  # as published
    assert (test.images.min().item(), test.images.max().item()) == (0, 1)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_plain_and_gzipped_read_the_same(tmp_path: Path, suffix: str) -> None:
    write_set(tmp_path, "FashionMNIST", suffix)
    images = load_idx(tmp_path, "FashionMNIST", train=True)
    assert (images.images * 255).flatten().round().tolist() == list(range(0, 256, 34))
    assert [images.classes[label] for label in images.labels] == ["sneaker", "dress"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("lost", [1, 10, 30])
def test_truncated(tmp_path: Path, suffix: str, lost: int) -> None:
    whole = idx(4, 3, 3, body=bytes(36))
    path = tmp_path / f"images{suffix}"
    path.write_bytes((gzip.compress(whole) if suffix else whole)[:-lost])
    with pytest.raises(DataError, match=r"truncated or damaged.*delete it and fetch or copy it again"):
        read_idx(path, dims=3)


def test_truncated_before_it_was_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(4, 3, 3, body=bytes(35))))
    with pytest.raises(DataError, match="declares 36 bytes but contains only 35"):
        read_idx(path, dims=3)


def test_surplus_is_refused_without_unpacking_it(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(1, 1, 1, body=bytes(1000))))
    with pytest.raises(DataError, match="declares 1 bytes but contains more"):
        read_idx(path, dims=3)


def test_labels_in_place_of_images(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx(2, body=bytes(2)))
    with pytest.raises(DataError, match="not an IDX file with 3 dimensions: it starts with 0x00000801"):
        read_idx(path, dims=3)


def test_an_enormous_declaration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx(2**31, 2**15, 2**15, body=b""))
    with pytest.raises(DataError, match=r"refused: .*declares 2,305,843,009,213,693,952 bytes"):
        read_idx(path, dims=3)


def test_a_label_out_of_range(tmp_path: Path) -> None:
    raw = write_set(tmp_path, "MNIST")
    (raw / "train-labels-idx1-ubyte").write_bytes(idx(2, body=bytes([7, 10])))
    with pytest.raises(DataError, match=r"labels must lie in 0\.\.9"):
        load_idx(tmp_path, "MNIST", train=True)


def test_missing_says_where_and_how(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mnist was not found") as caught:
        load_idx(tmp_path, "MNIST", train=True)
    for cure in (str(tmp_path / "MNIST" / "raw"), "engram data get mnist", "--data-root", "ENGRAM_DATA"):
        assert cure in str(caught.value)
