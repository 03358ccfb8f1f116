"""Foreign ConvNets: from a description or a torch.export file; nothing in the file is run."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from engram.core.errors import CheckpointError, EngramError, UnsupportedModelError
from engram.models.architecture import Architecture
from engram.models.networks import ConvNetwork, DenseNetwork
from engram.models.open.files import read_any_network, read_network
from engram.models.open.state_dict import described_network

SHAPE = (3, 8, 8)
TEXT = "conv3x4s2p1 relu conv1x4 relu avgpool2 flatten 8 relu 1"
DESCRIBED = Architecture.parse(TEXT, SHAPE)


def foreign(*extra: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 4, 1, bias=False),
            nn.ReLU(),
            *extra,
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(16, 8),
            nn.ReLU(inplace=True),
            nn.Linear(8, 1),
        ).eval()


def assert_same(found: object, net: nn.Module) -> None:
    assert isinstance(found, ConvNetwork)
    inputs = torch.randn(5, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(found(inputs), net(inputs))


def exported(path: Path, net: nn.Module, shape: tuple[int, ...] = SHAPE, *, any_batch: bool = False) -> Path:
    batch = {0: torch.export.Dim("batch")} if any_batch else None
    program = torch.export.export(net, (torch.zeros(2, *shape),), dynamic_shapes=(batch,) if batch else None)
    torch.export.save(program, path)
    return path


# --- by description ---------------------------------------------------------------------------------------


def anonymous(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"tensor{index}": value for index, value in enumerate(state.values())}


@pytest.mark.parametrize(
    "rename",
    [dict, anonymous, lambda state: {f"module.net.{name}": value for name, value in state.items()}],
    ids=["sequential", "anonymous", "wrapped"],
)
def test_state_dict_of_any_names(rename: Callable[[dict[str, Tensor]], dict[str, Tensor]], tmp_path: Path) -> None:
    net = foreign()
    torch.save(rename(net.state_dict()), tmp_path / "model.pt")
    assert_same(read_any_network(tmp_path / "model.pt", DESCRIBED), net)


def test_safetensors_whose_order_is_lost(tmp_path: Path) -> None:
    net = foreign()
    names = {"0": "conv2", "2": "conv10", "7": "head.1", "9": "head.2"}
    state = {f"{names[key.split('.')[0]]}.{key.split('.')[1]}": value for key, value in net.state_dict().items()}
    assert set(state) >= {"conv2.weight", "head.2.bias"}
    save_file(state, tmp_path / "model.safetensors")
    assert_same(read_any_network(tmp_path / "model.safetensors", DESCRIBED), net)


def test_layers_of_one_shape_follow_the_numbers_in_their_names() -> None:
    first, second = torch.randn(4, 4), torch.randn(4, 4)
    state = {"fc10.weight": second, "conv1.weight": torch.randn(4, 3, 8, 8), "fc2.weight": first}
    architecture = Architecture.parse("conv8x4 flatten 4 relu 4", SHAPE)
    found = described_network(state, architecture, ordered=False)
    assert torch.equal(found.weights[1], first)
    assert torch.equal(found.weights[2], second)


def test_every_mismatch_is_in_one_error() -> None:
    state = {
        "conv.weight": torch.zeros(5, 3, 3, 3),
        "fc.weight": torch.zeros(8, 16),
        "fc.bias": torch.zeros(7),
        "norm.weight": torch.zeros(4),
        "out.weight": torch.full((1, 8), torch.nan),
    }
    with pytest.raises(UnsupportedModelError) as caught:
        described_network(state, DESCRIBED)
    message = str(caught.value)
    for part in (
        "layer 0 of the description has weights [4, 3, 3, 3], but no tensor of that shape is left",
        "layer 1 of the description has weights [4, 4, 1, 1]",
        "no layer of the description has weights of this shape: conv.weight [5, 3, 3, 3]",
        "fc.bias [7] is not a bias of fc.weight [8, 16]",
        "norm.weight [4]",
        "NaN or infinite values: out.weight",
    ):
        assert part in message


def test_convolution_without_description_says_how_to_describe_it(tmp_path: Path) -> None:
    torch.save(foreign().state_dict(), tmp_path / "model.pt")
    with pytest.raises(UnsupportedModelError, match="--arch 'conv3x32 relu flatten 1000 relu 1'"):
        read_any_network(tmp_path / "model.pt")


# --- torch.export -----------------------------------------------------------------------------------------


class Functional(nn.Module):
    """The same layers as functions, with view for flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 2, 3), nn.Linear(18, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.nn.functional.avg_pool2d(torch.relu(self.conv(x)), 2)
        return self.out(pooled.view(pooled.shape[0], -1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("any_batch", [False, True])
@pytest.mark.parametrize("make", [foreign, Functional])
def test_exported_file_needs_no_description(
    make: Callable[[], nn.Module], any_batch: bool, tmp_path: Path
) -> None:
    net = make().eval()
    found = read_any_network(exported(tmp_path / "model.pt2", net, any_batch=any_batch))
    assert_same(found, net)
    assert found.input_shape == SHAPE


def test_exported_double_precision_and_dense(tmp_path: Path) -> None:
    dense = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    found = read_network(exported(tmp_path / "dense.pt2", dense, (4,)))
    assert isinstance(found, DenseNetwork)
    inputs = torch.randn(3, 4)
    torch.testing.assert_close(found(inputs), dense(inputs))
    with pytest.raises(UnsupportedModelError, match="it has convolutions: 3x8x8-conv3x4s2p1"):
        read_network(exported(tmp_path / "conv.pt2", foreign()))


def test_a_description_must_agree_with_the_file(tmp_path: Path) -> None:
    path = exported(tmp_path / "model.pt2", foreign())
    assert_same(read_any_network(path, DESCRIBED), foreign())
    other = Architecture.parse(TEXT.replace("8 relu", "9 relu"), SHAPE)
    with pytest.raises(UnsupportedModelError, match=f"the file's layers are '{TEXT}'"):
        read_any_network(path, other)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, padding_mode="zeros", groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x + self.conv(x))


def test_everything_unsupported_is_in_one_error(tmp_path: Path) -> None:
    path = exported(tmp_path / "model.pt2", foreign(nn.Hardtanh(), Residual()))
    with pytest.raises(UnsupportedModelError) as caught:
        read_any_network(path)
    for part in ("aten.hardtanh", "aten.add.Tensor", "a branch"):
        assert part in str(caught.value)


def test_normalisation_by_the_batch_is_refused(tmp_path: Path) -> None:
    layer = nn.BatchNorm2d(4, track_running_stats=False)
    with pytest.raises(UnsupportedModelError, match="batch_norm"):
        read_any_network(exported(tmp_path / "model.pt2", foreign(layer)))


# --- hostile files -----------------------------------------------------------------------------------------


def rewritten(path: Path, change: Callable[[str, bytes], bytes]) -> Path:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, change(name, content))
    return path


def edited(path: Path, ending: str, change: Callable[[Any], object]) -> Path:
    def apply(name: str, content: bytes) -> bytes:
        if not name.endswith(ending):
            return content
        value = json.loads(content)
        change(value)
        return json.dumps(value).encode()

    return rewritten(path, apply)


TAMPERED: dict[str, tuple[str, Callable[[Any], object]]] = {
    "a pickled weight": (
        "model_weights_config.json",
        lambda value: value["config"]["0.weight"].update(use_pickle=True),
    ),
    "a huge tensor": (
        "model_weights_config.json",
        lambda value: value["config"]["0.weight"]["tensor_meta"]["sizes"][0].update(as_int=10**9),
    ),
    "strides of a huge tensor": (
        "model_weights_config.json",
        lambda value: value["config"]["0.weight"]["tensor_meta"]["strides"][0].update(as_int=10**9),
    ),
    "a negative offset": (
        "model_weights_config.json",
        lambda value: value["config"]["0.weight"]["tensor_meta"]["storage_offset"].update(as_int=-5),
    ),
    "another file": (
        "model_weights_config.json",
        lambda value: value["config"]["0.weight"].update(path_name="../../../etc/passwd"),
    ),
    "no nodes": ("model.json", lambda value: value["graph_module"]["graph"].pop("nodes")),
    "an operation with a call": (
        "model.json",
        lambda value: value["graph_module"]["graph"]["nodes"][0].update(target="os.system"),
    ),
    "an unknown parameter": (
        "model.json",
        lambda value: value["graph_module"]["graph"]["nodes"][0]["inputs"][1]["arg"]["as_tensor"].update(name="x"),
    ),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_file_is_refused(how: str, tmp_path: Path) -> None:
    path = edited(exported(tmp_path / "model.pt2", foreign()), *TAMPERED[how])
    with pytest.raises((CheckpointError, UnsupportedModelError)):
        read_any_network(path)


def test_sample_inputs_are_never_unpickled(tmp_path: Path) -> None:
    """The archive also contains a pickle; a hostile one does nothing, because it is not opened."""

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    torch.save(Bomb(), tmp_path / "bomb.pt")
    bomb = (tmp_path / "bomb.pt").read_bytes()
    path = exported(tmp_path / "model.pt2", foreign())
    rewritten(path, lambda name, content: bomb if name.endswith("model.pt") else content)
    assert_same(read_any_network(path), foreign())
    assert not (tmp_path / "exploded").exists()


def test_size_is_bounded_before_unpacking(tmp_path: Path) -> None:
    path = exported(tmp_path / "model.pt2", foreign())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data/weights/bomb", bytes(10**7))
    with pytest.raises(CheckpointError, match="more than the limit of 1,000,000"):
        read_any_network(path, max_bytes=1_000_000)


def test_random_damage_never_raises_other_errors(tmp_path: Path) -> None:
    path = exported(tmp_path / "model.pt2", foreign())
    whole, chance = path.read_bytes(), random.Random(0)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged[: chance.choice((len(damaged), chance.randrange(len(damaged))))])
        with suppress(EngramError):
            read_any_network(path)


@pytest.mark.parametrize(("field", "value"), [("flags", 1), ("method", 97)], ids=["encrypted", "unknown packing"])
def test_an_oddly_packed_archive_is_refused_with_a_cure(field: str, value: int, tmp_path: Path) -> None:
    path = exported(tmp_path / "model.pt2", foreign())
    content = bytearray(path.read_bytes())
    # the field's offset in both headers of each entry: in the directory, and before the entry itself
    for header, place in ((b"PK\x01\x02", {"flags": 8, "method": 10}), (b"PK\x03\x04", {"flags": 6, "method": 8})):
        at = content.find(header)
        while at >= 0:
            content[at + place[field]] = value
            at = content.find(header, at + 4)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"damaged or of an unknown version .* torch\.export\.save"):
        read_any_network(path)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_is_refused_with_a_cure(tmp_path: Path) -> None:
    traced = torch.jit.trace(foreign(), torch.zeros(1, *SHAPE))  # type: ignore[no-untyped-call]
    torch.jit.save(traced, str(tmp_path / "model.pt"))
    with pytest.raises(CheckpointError, match="TorchScript archive") as caught:
        read_any_network(tmp_path / "model.pt", DESCRIBED)
    assert "torch.save(model.state_dict()" in str(caught.value)
    assert "--arch" in str(caught.value)
