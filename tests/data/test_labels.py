"""Label maps apply to the data sets they are made for, and are refused on others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engram.core.errors import ConfigError
from engram.data.catalog import CATALOG, load
from engram.data.choice import LABEL_MAPS, DataChoice, apply_labels, first_classes
from engram.data.readers import CIFAR10, load_faces
from engram.data.sets import ImageSet


def one_of_each(name: str, classes: tuple[str, ...]) -> ImageSet:
    return ImageSet(torch.zeros(len(classes), 1), torch.arange(len(classes)), name, classes)


def test_odd_is_one() -> None:
    digits = apply_labels(one_of_each("mnist", tuple("0123456789")), "odd-even")
    assert [digits.classes[label] for label in digits.labels] == ["even", "odd"] * 5
    assert digits.labels.tolist() == [0, 1] * 5


def test_vehicles_are_one() -> None:
    mapped = apply_labels(one_of_each("cifar10", CIFAR10), "vehicles-animals")
    vehicles = [name for name, label in zip(CIFAR10, mapped.labels, strict=True) if label == 1]
    assert vehicles == ["airplane", "automobile", "ship", "truck"]
    assert mapped.classes == ("animal", "vehicle")


def test_face_is_one() -> None:
    mapped = apply_labels(load_faces(), "face")
    assert mapped.labels.tolist() == [1] * 100 + [0] * 100
    assert mapped.classes == ("non-face", "face")


def test_gate_admits_every_other_face_and_drops_the_rest() -> None:
    faces = load_faces()
    gate = apply_labels(faces, "gate")
    assert gate.labels.tolist() == [1, 0] * 50
    assert gate.classes == ("not admitted", "admitted")
    assert torch.equal(gate.images, faces.images[:100])


def test_gate_counts_faces_not_files() -> None:
    mixed = ImageSet(torch.arange(5.0)[:, None], torch.tensor([1, 0, 1, 0, 0]), "faces", ("face", "non-face"))
    gate = apply_labels(mixed, "gate")
    assert gate.images.flatten().tolist() == [1, 3, 4]
    assert gate.labels.tolist() == [1, 0, 1]


def test_identity_changes_nothing() -> None:
    faces = load_faces()
    same = apply_labels(faces, "identity")
    assert torch.equal(same.images, faces.images)
    assert torch.equal(same.labels, faces.labels)
    assert same.classes == faces.classes


def test_a_map_that_does_not_fit_names_those_that_do() -> None:
    with pytest.raises(
        ConfigError, match="'odd-even' does not fit faces; for faces choose one of: face, gate, identity"
    ):
        apply_labels(load_faces(), "odd-even")
    with pytest.raises(
        ConfigError, match="'smile' is not a label map; for faces choose one of: face, gate, identity"
    ):
        apply_labels(load_faces(), "smile")


def test_first_classes_keep_order_and_names() -> None:
    three = first_classes(one_of_each("cifar10", CIFAR10), 3)
    assert three.classes == ("airplane", "automobile", "bird")
    assert three.labels.tolist() == [0, 1, 2]
    for count in (1, 11):
        with pytest.raises(ConfigError, match=rf"classes must lie in 2\.\.10 \(cifar10 has 10\), got {count}"):
            first_classes(one_of_each("cifar10", CIFAR10), count)


def test_a_choice_of_real_classes_is_balanced_in_all_its_parts(cifar_root: Path) -> None:
    choice = DataChoice(name="cifar10", labels="identity", n=60, classes=3)
    parts, test = choice.load(cifar_root), choice.load_test(cifar_root)
    assert test is not None
    for images, each in ((parts.train, 20), (parts.held_out, 20), (test, 1000)):
        assert images.labels.bincount().tolist() == [each] * 3
        assert images.classes == CIFAR10[:3]


@pytest.mark.parametrize("name", ["faces", "circle"])
def test_default_maps_of_embedded_sets_fit(name: str) -> None:
    mapped = apply_labels(load(name), CATALOG[name].labels)
    assert len(mapped) == len(load(name))


def test_default_maps_of_real_sets_fit(cifar_root: Path, mnist_root: Path) -> None:
    cifar = load("cifar10", root=cifar_root, train=False)
    assert torch.bincount(apply_labels(cifar, CATALOG["cifar10"].labels).labels).tolist() == [6000, 4000]
    digits = load("mnist", root=mnist_root, train=False)
    assert torch.bincount(apply_labels(digits, CATALOG["mnist"].labels).labels).tolist() == [4926, 5074]


def test_every_default_is_a_label_map() -> None:
    assert {entry.labels for entry in CATALOG.values()} <= set(LABEL_MAPS)
