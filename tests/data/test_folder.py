"""A folder of pictures, one subfolder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
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
    with pytest.raises(DataError, match=r"2\.png is 5x3 but 1\.png is 4x3; give the size .* folder:PATH@3x32x32"):
        load_folder(tmp_path)
    resized = load_folder(tmp_path, (1, 6, 8))
    assert resized.images.shape == (3, 1, 6, 8)
    assert resized.name.endswith(", resized to 1x6x8")
    assert torch.allclose(resized.images, torch.tensor(51 / 255))


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


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.array([[0, 13107], [39321, 65535]], np.uint16)).save(tmp_path / "a" / "1.png")
    images = load_folder(tmp_path).images
    assert torch.allclose(images[0, 0], torch.tensor([[0.0, 0.2], [0.6, 1.0]]), atol=1e-4)
    assert torch.allclose(load_folder(tmp_path, (3, 2, 2)).images[0, 2], images[0, 0], atol=0.01)


def test_transparent_parts_are_white(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    clear = Image.new("RGBA", (2, 1), (10, 20, 30, 0))
    clear.putpixel((1, 0), (10, 20, 30, 255))
    clear.save(tmp_path / "a" / "1.png")
    found = load_folder(tmp_path).images[0]
    assert (found[:, 0, 0] * 255).round().tolist() == [255, 255, 255]
    assert (found[:, 0, 1] * 255).round().tolist() == [10, 20, 30]


def test_pictures_are_turned_as_the_camera_says(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it a quarter turn clockwise
    wide = Image.new("L", (4, 2), 0)
    wide.putpixel((0, 0), 255)
    wide.save(tmp_path / "a" / "1.png", exif=exif)
    images = load_folder(tmp_path).images
    assert images.shape == (1, 1, 4, 2)
    assert images[0, 0, 0, 1] == 1


def test_empty_and_absent_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contains no classes; put the pictures of each class into its own"):
        load_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"class folder .*a contains no pictures; add some, or delete it"):
        load_folder(tmp_path)
    with pytest.raises(DataError, match=r"there is no folder .*; check the path"):
        load_folder(tmp_path / "other")
