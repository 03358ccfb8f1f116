"""A folder of pictures, one subfolder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engram.core.errors import DataError
from engram.data.own_files import load_folder


def picture(path: Path, mode: str = "L", size: tuple[int, int] = (4, 3), value: int = 51) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode != "RGB" else (value, 0, 255)).save(path)
    return path


def test_classes_and_files_are_sorted_by_name(tmp_path: Path) -> None:
    picture(tmp_path / "dog" / "b.png", value=20)
    picture(tmp_path / "dog" / "a.png", value=10)
    picture(tmp_path / "cat" / "z.bmp", value=30)
    (tmp_path / "dog" / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden").mkdir()
    images = load_folder(tmp_path)
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [0, 1, 1]
    assert images.images.shape == (3, 1, 3, 4)
    np.testing.assert_allclose(images.images[:, 0, 0, 0] * 255, [30, 10, 20], rtol=1e-6)


def test_one_colour_picture_makes_all_rgb(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "gray.png")
    picture(tmp_path / "a" / "red.png", "RGB")
    images = load_folder(tmp_path).images
    np.testing.assert_allclose(images[:, :, 0, 0] * 255, [[51, 51, 51], [51, 0, 255]], rtol=1e-6)


def test_mixed_sizes_name_the_first_offender(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "a" / "2.png", size=(5, 3))
    picture(tmp_path / "b" / "3.png", size=(9, 9))
    with pytest.raises(DataError, match=r"2\.png is 5×3 but 1\.png is 4×3; resize them"):
        load_folder(tmp_path)


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    bomb = picture(tmp_path / "a" / "bomb.png", "1", size=(10000, 9000), value=0)
    assert bomb.stat().st_size < 100_000
    with pytest.raises(DataError, match=r"refused: .*bomb\.png would unpack to an enormous picture"):
        load_folder(tmp_path)


def test_truncated_picture(tmp_path: Path) -> None:
    path = tmp_path / "a" / "1.png"
    path.parent.mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"1\.png is truncated or damaged"):
        load_folder(tmp_path)


def test_not_a_picture(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png").write_text("hello")
    with pytest.raises(DataError, match=r"1\.png is not a picture"):
        load_folder(tmp_path)


def test_sixteen_bits_are_refused_not_clipped(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png", "I;16")
    with pytest.raises(DataError, match="pixels of type I;16; convert it to 8-bit"):
        load_folder(tmp_path)


def test_empty_and_absent_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contains no classes; put the pictures of each class into its own"):
        load_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"class folder .*a contains no pictures; add some, or delete it"):
        load_folder(tmp_path)
    with pytest.raises(DataError, match=r"there is no folder .*; check the path"):
        load_folder(tmp_path / "other")
