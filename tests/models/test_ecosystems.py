"""Model files as other people save them: read without executing anything, with the outputs of the original."""

from __future__ import annotations

import io
import json
import pickle
import shlex
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.checkpoints import CASES, SAME, Made, difference, mlp, onnx, perceptron
from safetensors.torch import save_file
from torch import nn

from engram.attacks.registry import make_attack
from engram.attacks.settings import EngineSettings
from engram.core.errors import CheckpointError, ConfigError, EngramError, UnsupportedModelError
from engram.models.networks import ConvNetwork, DenseNetwork
from engram.models.open.door import open_view

pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporters of other people
KNOWN = {
    "gelu": "--activation gelu",
    "tanh": "--activation tanh",
    "silu": "--activation silu",
    "normalised": "--normalize half",
    "head": "--head classifier --input-shape 1152",
}
"""What the messages of an audit suggest for these."""
REFUSED = {
    "whole-module": "it contains Python objects",
    "torchscript": "whose code would have to be run",
    "joblib-pickle": "a pickle of scikit-learn, and a pickle could run code",
    "layer-norm": "can't be folded into a layer",
    "lora-adapter": "is an adapter, an update of another model",
}


@pytest.mark.parametrize("name", [name for name in CASES if name not in (*REFUSED, "residual")])
def test_outputs_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    made = CASES[name](tmp_path)
    found = difference(made, shlex.split(f"{made.options} {KNOWN.get(name, '')}"))
    assert found is not None
    assert found < SAME


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_run_code_or_has_no_form_is_refused(name: str, tmp_path: Path) -> None:
    made = CASES[name](tmp_path)
    with pytest.raises(EngramError, match=REFUSED[name]):
        open_view(made.path, input_shape=(1, 25, 25))


def test_a_head_is_found_in_a_larger_model(tmp_path: Path) -> None:
    made = CASES["head"](tmp_path)
    with pytest.raises(UnsupportedModelError) as caught:
        open_view(made.path)
    assert "a backbone of 7 tensors and a head, classifier.1, classifier.4" in str(caught.value)
    assert "--head classifier --input-shape 1152" in str(caught.value)
    with pytest.raises(ConfigError, match="they begin with features, classifier"):
        open_view(made.path, head="neck")


def test_a_directory_of_weights_and_a_config(tmp_path: Path) -> None:
    """As Hugging Face's libraries save models; its classifier is read like any head."""
    from benchmarks.checkpoints import Classifier

    model = Classifier()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"architectures": ["Classifier"]}')
    view = open_view(tmp_path, head="classifier", input_shape=(1152,))
    inputs = torch.rand(3, 1152)
    assert torch.allclose(view.network(inputs), model.eval().classifier(inputs), atol=1e-6)
    assert view.is_assumed


def test_what_a_file_says_about_itself(tmp_path: Path) -> None:
    """Its layers, its input shape, its normalisation; nothing is assumed then."""
    view = open_view(CASES["onnx-with-preprocessing"](tmp_path).path)
    assert view.input_shape == (1, 25, 25)
    assert not view.is_assumed
    assert view.normalization is not None
    assert view.normalization.mean == pytest.approx([0.45])
    assert view.normalization.std == pytest.approx([0.25])
    with pytest.raises(ConfigError, match="contains its own normalisation"):
        open_view(tmp_path / "model.onnx", normalize="half")
    with pytest.raises(ConfigError, match="specifies gelu as its activation, not tanh; leave"):
        open_view(CASES["pt2-gelu"](tmp_path).path, activation="tanh")
    with pytest.raises(ConfigError, match="specifies relu as its activation, not gelu; leave"):
        open_view(tmp_path / "model.onnx", activation="gelu")
    with pytest.raises(ConfigError, match="leave --arch out"):
        open_view(tmp_path / "model.onnx", arch="conv3x4 relu flatten 1", input_shape=(1, 25, 25))


def test_folded_normalisation_is_said(tmp_path: Path) -> None:
    view = open_view(CASES["onnx-cnn"](tmp_path).path)
    assert isinstance(view.network, ConvNetwork)
    state = open_view(CASES["batch-norm"](tmp_path).path, input_shape=(1, 25, 25))
    assert any("batch norm folded into its neighbours: 2" in note for note in state.notes)


def test_a_state_dict_says_what_was_assumed(tmp_path: Path) -> None:
    view = open_view(CASES["plain"](tmp_path).path, input_shape=(1, 25, 25))
    assert view.is_assumed
    assert "ReLU is assumed" in view.notes[0]
    assert not open_view(tmp_path / "model.pt", input_shape=(1, 25, 25), activation="relu").is_assumed


def candidates(model: Any) -> torch.Tensor:
    view = open_view(model, input_shape=(1, 25, 25))
    attack = make_attack(view, settings=EngineSettings(steps=6, restarts=2, candidates=8, prior=1.0))
    state = attack.init()
    for _ in range(attack.total_steps):
        attack.step(state)
    return attack.reconstruction(state).images


def test_twins_give_bit_identical_candidates(tmp_path: Path) -> None:
    """One network as a state_dict, as ONNX by either exporter, as a scikit-learn object and as a .skops file."""
    from skops.io import dump

    model = mlp()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for dynamo in (True, False):
        onnx(model.eval(), tmp_path / f"model-{dynamo}.onnx", dynamo=dynamo)
    estimator, _ = perceptron()
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    estimator.coefs_ = [layer.weight.detach().numpy().T.copy() for layer in layers]
    estimator.intercepts_ = [layer.bias.detach().numpy().copy() for layer in layers]
    dump(estimator, tmp_path / "model.skops")
    expected = candidates(tmp_path / "model.pt")
    twins = [
        tmp_path / "model-True.onnx",
        tmp_path / "model-False.onnx",
        estimator,
        tmp_path / "model.skops",
        model,
    ]
    for twin in twins:
        assert torch.equal(candidates(twin), expected)


def test_a_module_is_asked_for_its_activation() -> None:
    for phi, name in ((nn.GELU, "gelu"), (nn.Tanh, "tanh"), (lambda: nn.LeakyReLU(0.1), "leaky:0.1")):
        view = open_view(mlp(phi), input_shape=(1, 25, 25))
        assert str(view.network.activation) == name
        assert not view.is_assumed
    with_sigmoid = nn.Sequential(*mlp(), nn.Sigmoid())
    assert isinstance(open_view(with_sigmoid, input_shape=(1, 25, 25)).network, DenseNetwork)
    with pytest.raises(UnsupportedModelError, match="its layers alone give other outputs"):
        open_view(mlp(nn.Hardtanh), input_shape=(1, 25, 25))


# --- hostile files -----------------------------------------------------------------------------------------

FORMATS = ("onnx-cnn", "skops", "keras", "keras-h5", "pt2-cnn")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    return {name: CASES[name](tmp_path_factory.mktemp(name)) for name in FORMATS}


@pytest.mark.parametrize("name", FORMATS)
def test_truncated_or_damaged_files_are_refused(name: str, made: dict[str, Made], tmp_path: Path) -> None:
    whole = made[name].path.read_bytes()
    path = tmp_path / made[name].path.name
    original = open_view(made[name].path, input_shape=(1, 25, 25)).network.digest()
    refused = 0
    for length in range(0, len(whole) - 1, len(whole) // 12):
        path.write_bytes(whole[:length])
        try:  # an ONNX file may lose its last bytes, which say which version wrote it
            assert open_view(path, input_shape=(1, 25, 25)).network.digest() == original
        except (CheckpointError, UnsupportedModelError):
            refused += 1
    assert refused >= 12
    generator = np.random.default_rng(0)
    for _ in range(20):
        damaged = bytearray(whole)
        for place in generator.integers(0, min(len(whole), 4000), 4):
            damaged[place] = int(generator.integers(256))
        path.write_bytes(bytes(damaged))
        try:
            open_view(path, input_shape=(1, 25, 25))
        except EngramError:
            continue  # what could still be read is a network; anything else would raise another error


@pytest.mark.parametrize("name", FORMATS)
def test_oversized_files_are_refused_before_they_are_read(name: str, made: dict[str, Made]) -> None:
    from engram.models.open.files import read_model

    with pytest.raises(CheckpointError, match="more than the limit of 1,000"):
        read_model(made[name].path, max_bytes=1000)


def test_onnx_weights_elsewhere_are_never_opened(tmp_path: Path) -> None:
    import onnx as package

    path = CASES["onnx-mlp"](tmp_path).path
    assert (tmp_path / "model.onnx.data").exists(), "the exporter keeps large weights beside the file"
    proto = package.load(str(path), load_external_data=False)
    for location in ("../secret.bin", "/etc/passwd", "other.data", "model.onnx.data/../x", ""):
        for one in proto.graph.initializer:
            for entry in one.external_data:
                entry.value = location if entry.key == "location" else entry.value
        path.write_bytes(proto.SerializeToString())
        with pytest.raises(CheckpointError, match=r"only model\.onnx\.data beside it is read"):
            open_view(path)


def test_onnx_data_file_that_is_missing_short_or_a_link(tmp_path: Path) -> None:
    path = CASES["onnx-mlp"](tmp_path).path
    beside = tmp_path / "model.onnx.data"
    whole = beside.read_bytes()
    beside.write_bytes(whole[:100])
    with pytest.raises(CheckpointError, match="extends past the end"):
        open_view(path)
    beside.unlink()
    with pytest.raises(CheckpointError, match="copy both files"):
        open_view(path)
    (tmp_path / "elsewhere").write_bytes(whole)
    beside.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="copy both files"):
        open_view(path)


class Bomb:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return (shutil.copy, ("/etc/hostname", "executed"))


def test_pickles_inside_are_never_loaded(made: dict[str, Made], tmp_path: Path, monkeypatch: Any) -> None:
    """An object array in a .skops file, and a Lambda layer in a .keras file."""
    monkeypatch.chdir(tmp_path)
    content = io.BytesIO()
    np.save(content, np.array([Bomb()], dtype=object), allow_pickle=True)
    assert b"hostname" in pickle.dumps(Bomb())
    with zipfile.ZipFile(made["skops"].path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "model.skops", "w") as archive:
        for name, own in parts.items():
            archive.writestr(name, content.getvalue() if name.endswith(".npy") else own)
    with pytest.raises(CheckpointError, match=r"not a \.skops file"):
        open_view(tmp_path / "model.skops", input_shape=(1, 25, 25))
    with zipfile.ZipFile(made["keras"].path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(parts["config.json"])
    layer = config["config"]["layers"][1]
    layer["class_name"], layer["config"]["function"] = "Lambda", {"class_name": "__lambda__", "config": "code"}
    parts["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        for name, own in parts.items():
            archive.writestr(name, own)
    with pytest.raises(UnsupportedModelError, match=r"\(Lambda\)"):
        open_view(tmp_path / "model.keras")
    assert not (tmp_path / "executed").exists()


def test_hdf5_links_to_other_files_are_not_followed(made: dict[str, Made], tmp_path: Path) -> None:
    import h5py

    shutil.copy(made["keras-h5"].path, tmp_path / "model.h5")
    with h5py.File(tmp_path / "model.h5", "r+") as file:
        inner = next(group for name, group in file["model_weights"].items() if name.startswith("dense"))
        while "kernel" not in inner:
            inner = next(iter(inner.values()))
        del inner["kernel"]
        inner["kernel"] = h5py.ExternalLink("/etc/passwd", "/x")
    with pytest.raises(CheckpointError, match="is a link, not an array"):
        open_view(tmp_path / "model.h5")
