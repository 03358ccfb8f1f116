"""CIFAR in both versions: real batches, and partial, damaged and hostile copies."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from engram.core.errors import DataError
from engram.data.readers import CIFAR10, load_cifar

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)


def write_python(root: Path, folder: str, file: str, content: object, protocol: int = 2) -> Path:
    path = root / folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def test_real_cifar10(cifar_root: Path) -> None:
    test = load_cifar(cifar_root, "cifar10", train=False)
    assert test.images.shape == (10000, 3, 32, 32)
    assert [CIFAR10[label] for label in test.labels[:4]] == [
        "cat",
        "ship",
        "ship",
        "airplane",
    ]  # as published
    assert torch.bincount(test.labels).tolist() == [1000] * 10


def test_real_pixels_are_whole_bytes_in_channel_order(cifar_root: Path) -> None:
    """The test batch has the published channel means of the training set, red first, to within 1.5 levels."""
    means = load_cifar(cifar_root, "cifar10", train=False).images.mean((0, 2, 3)) * 255
    assert (means - torch.tensor([125.3, 123.0, 113.9])).abs().max() < 1.5


@pytest.mark.parametrize("protocol", range(6))
def test_every_pickle_protocol(tmp_path: Path, protocol: int) -> None:
    content = {"data": PIXELS, "labels": [3, 9]}
    write_python(tmp_path, "cifar-10-batches-py", "data_batch_1", content, protocol)
    images = load_cifar(tmp_path, "cifar10", train=True)
    assert (images.images * 255).round().flatten(1).tolist() == PIXELS.tolist()
    assert images.labels.tolist() == [3, 9]


def test_existing_batches_are_read_in_order(tmp_path: Path) -> None:
    for number in (4, 2):
        content = {b"data": PIXELS, b"labels": [number, number]}
        write_python(tmp_path, "cifar-10-batches-py", f"data_batch_{number}", content)
    assert load_cifar(tmp_path, "cifar10", train=True).labels.tolist() == [2, 2, 4, 4]


def test_cifar100_takes_fine_labels_and_names(tmp_path: Path) -> None:
    content = {"data": PIXELS, "coarse_labels": [1, 2], "fine_labels": [99, 0]}
    write_python(tmp_path, "cifar-100-python", "train", content)
    assert load_cifar(tmp_path, "cifar100", train=True).classes[99] == "99"
    names = [f"thing {number}" for number in range(100)]
    write_python(tmp_path, "cifar-100-python", "meta", {"fine_label_names": names})
    images = load_cifar(tmp_path, "cifar100", train=True)
    assert (images.labels.tolist(), images.classes[99]) == ([99, 0], "thing 99")


@pytest.mark.parametrize(("name", "folder", "file", "label_bytes"), [
    ("cifar10", "cifar-10-batches-bin", "data_batch_1.bin", [[3], [9]]),
    ("cifar100", "cifar-100-binary", "train.bin", [[19, 3], [0, 9]]),
])  # fmt: skip
def test_binary_version(tmp_path: Path, name: str, folder: str, file: str, label_bytes: list[list[int]]) -> None:
    (tmp_path / folder).mkdir()
    records = np.hstack([np.array(label_bytes, np.uint8), PIXELS])
    (tmp_path / folder / file).write_bytes(records.tobytes())
    images = load_cifar(tmp_path, name, train=True)  # type: ignore[arg-type]
    assert images.labels.tolist() == [3, 9]
    assert (images.images * 255).round().flatten(1).tolist() == PIXELS.tolist()

    (tmp_path / folder / file).write_bytes(records.tobytes()[:-1])
    with pytest.raises(DataError, match=r"is truncated: .*delete it and fetch or copy it again"):
        load_cifar(tmp_path, name, train=True)  # type: ignore[arg-type]


def test_truncated_real_batch(cifar_root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "cifar-10-batches-py" / "test_batch"
    copy.parent.mkdir()
    shutil.copyfile(cifar_root / "cifar-10-batches-py" / "test_batch", copy)
    with copy.open("r+b") as stream:
        stream.truncate(copy.stat().st_size // 2)
    with pytest.raises(
        DataError, match=r"test_batch is truncated or damaged.*delete it and fetch or copy it again"
    ):
        load_cifar(tmp_path, "cifar10", train=False)


@pytest.mark.parametrize(("content", "message"), [
    ({"labels": [1]}, "contains no `data` of bytes"),
    ({"data": PIXELS[:, :10], "labels": [1, 2]}, "contains no `data` of bytes"),
    ({"data": PIXELS, "labels": ["cat", "dog"]}, "contains no list of numbers `labels`"),
    ({"data": PIXELS, "labels": [1, 2, 3]}, "2 images but 3 labels"),
    (["no", "dictionary"], "truncated or damaged"),
])  # fmt: skip
def test_other_contents(tmp_path: Path, content: object, message: str) -> None:
    write_python(tmp_path, "cifar-10-batches-py", "data_batch_1", content)
    with pytest.raises(DataError, match=message):
        load_cifar(tmp_path, "cifar10", train=True)


def test_missing_says_where_and_how(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar10 was not found.*data_batch_1.*engram data get cifar10"):
        load_cifar(tmp_path, "cifar10", train=True)
