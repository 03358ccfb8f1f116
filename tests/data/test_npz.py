"""Your own .npz: every layout, and every way to get it wrong."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engram.core.errors import DataError
from engram.data.own_files import load_npz

Array = np.ndarray[Any, np.dtype[Any]]
BYTES = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)  # [n, H, W, C]
LABELS = np.array([0, 1, 0, 2])


def saved(tmp_path: Path, images: Array, labels: Array = LABELS) -> Path:
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, images=images, labels=labels)
    return path


@pytest.mark.parametrize(("given", "expected"), [
    (BYTES, BYTES.transpose(0, 3, 1, 2)),
    (BYTES.transpose(0, 3, 1, 2), BYTES.transpose(0, 3, 1, 2)),
    (BYTES[..., 0], BYTES[:, None, :, :, 0]),
    (BYTES[..., :1], BYTES[:, None, :, :, 0]),
    (BYTES.reshape(4, -1), BYTES.reshape(4, -1)),
])  # fmt: skip
@pytest.mark.parametrize("floats", [False, True])
def test_layouts(tmp_path: Path, given: Array, expected: Array, floats: bool) -> None:
    images = load_npz(saved(tmp_path, given / 255 if floats else given))
    np.testing.assert_array_equal((images.images * 255).round().numpy(), expected)
    assert (images.labels.tolist(), images.classes, images.name) == ([0, 1, 0, 2], ("0", "1", "2"), "mine")


@pytest.mark.parametrize(("images", "labels", "message"), [
    (BYTES.astype(np.int64), LABELS, "images must be uint8 0..255 or floats in \\[0, 1\\], got int64"),
    (BYTES.astype(np.float64) - 200, LABELS, "float images must lie in \\[0, 1\\].*--normalize"),
    (np.full((4, 2, 2), np.nan), LABELS, "float images must lie in \\[0, 1\\], got nan"),
    (np.array([[1.0], [np.nan], [0], [0]]), LABELS, "vectors must be finite in float32"),
    (np.full((4, 2), 1e300), LABELS, "vectors must be finite in float32"),
    (BYTES.transpose(0, 1, 3, 2), LABELS, "reshape them"),
    (BYTES, LABELS[:3], "4 images but 3 labels"),
    (BYTES, LABELS - 1, "labels must be classes 0, 1, ... below 10000, got -1..1"),
    (BYTES, LABELS * 10**9, "labels must be classes"),
    (BYTES, LABELS.astype(np.float64), "labels must be whole numbers"),
    (BYTES, np.array(["a", "b", "c", "d"]), "labels must be whole numbers"),
    (BYTES[:0], LABELS[:0], "labels must be whole numbers \\[n\\], got int64 \\(0,\\)"),
])  # fmt: skip
def test_wrong_contents(tmp_path: Path, images: Array, labels: Array, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_npz(saved(tmp_path, images, labels))


def test_vectors_keep_their_values(tmp_path: Path) -> None:
    vectors = np.array([[-3.5, 20.0], [0.25, 1.0], [7.0, -1.0], [0.0, 0.0]])
    loaded = load_npz(saved(tmp_path, vectors))
    np.testing.assert_array_equal(loaded.images.numpy(), vectors)
    assert loaded.shape == (2,)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    path = saved(tmp_path, np.array([{"any": "thing"}], dtype=object))
    with pytest.raises(DataError, match=r"something other than plain numbers .*numpy\.savez\(path, images"):
        load_npz(path)


def test_an_enormous_member_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """A zip of a few hundred bytes whose directory declares more than the limit."""
    path = saved(tmp_path, BYTES)
    with zipfile.ZipFile(path) as archive:
        honest = archive.getinfo("images.npy").file_size
    content = bytearray(path.read_bytes())
    directory = content.index(b"PK\x01\x02")
    assert int.from_bytes(content[directory + 24 : directory + 28], "little") == honest
    content[directory + 24 : directory + 28] = (2**31).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"refused: .*more than the 1,073,741,824 engram reads"):
        load_npz(path)


def test_a_false_array_header(tmp_path: Path) -> None:
    path, header = tmp_path / "mine.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**15, 3, 3)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", header.getvalue())
    with pytest.raises(DataError, match=r"not a complete .npz file|other than plain numbers"):
        load_npz(path)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=BYTES)
    with pytest.raises(DataError, match="lacks an array: labels"):
        load_npz(tmp_path / "mine.npz")


def test_truncated_and_absent(tmp_path: Path) -> None:
    path = saved(tmp_path, BYTES)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"not a complete .npz file"):
        load_npz(path)
    with pytest.raises(DataError, match="there is no file"):
        load_npz(tmp_path / "other.npz")
