"""A foreign file gives the network that was saved, or one message with the cause and the cure."""

from __future__ import annotations

import os
import pickle
import random
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from engram.core.errors import CheckpointError, UnsupportedModelError
from engram.models.networks import SUPPORTED, DenseNetwork
from engram.models.open.files import read_network
from engram.models.open.state_dict import MAX_TENSORS, dense_network

State = dict[str, Tensor]
CURE = "torch.save(model.state_dict()"


def relu_net(*sizes: int, bias: bool = True, seed: int = 0) -> nn.Sequential:
    parts: list[nn.Module] = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for fan_in, fan_out in pairwise(sizes):
            parts += [nn.Linear(fan_in, fan_out, bias=bias), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def renamed(net: nn.Sequential, names: list[str], weight: str = "{}.weight", bias: str = "{}.bias") -> State:
    """The state_dict of `net` with its layers under other names, in the order of the layers."""
    state: State = {}
    linears = [module for module in net if isinstance(module, nn.Linear)]
    for name, linear in zip(names, linears, strict=True):
        state[weight.format(name)] = linear.weight.detach()
        if linear.bias is not None:
            state[bias.format(name)] = linear.bias.detach()
    return state


def saved(tmp_path: Path, content: object, name: str = "model.pt") -> Path:
    path = tmp_path / name
    torch.save(content, path)
    return path


def assert_same(found: DenseNetwork, net: nn.Sequential) -> None:
    first = net[0]
    assert isinstance(first, nn.Linear)
    inputs = torch.randn(7, first.in_features, dtype=first.weight.dtype)
    with torch.no_grad():
        torch.testing.assert_close(found(inputs), net(inputs))


def problems_of(state: State, *, ordered: bool = True) -> tuple[str, ...]:
    with pytest.raises(UnsupportedModelError) as caught:
        dense_network(state, ordered=ordered)
    assert SUPPORTED in str(caught.value)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def only_problem(state: State, *, ordered: bool = True) -> str:
    (problem,) = problems_of(state, ordered=ordered)
    return problem


# --- accepted files ---------------------------------------------------------------------------------------


def lists(net: nn.Sequential) -> object:
    linears = [module for module in net if isinstance(module, nn.Linear)]
    return {"weights": [each.weight for each in linears], "biases": [each.bias for each in linears]}


def training_checkpoint(net: nn.Sequential) -> dict[str, object]:
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(2, 5)).sum().backward()
    optimizer.step()
    return {"epoch": 3, "loss": torch.tensor(0.1), "optimizer": optimizer.state_dict(), "args": {"lr": 0.1}}


ACCEPTED: dict[str, Callable[[nn.Sequential], object]] = {
    "sequential": lambda net: net.state_dict(),
    "layers": lambda net: renamed(net, ["layers.0", "layers.1", "layers.2"]),
    "custom module": lambda net: renamed(net, ["fc1", "fc2", "head"]),
    "underscores": lambda net: renamed(net, ["fc1", "fc2", "fc3"], "{}_weight", "{}_bias"),
    "bare from 1": lambda net: renamed(net, ["1", "2", "3"], "W{}", "b{}"),
    "bare from 0": lambda net: renamed(net, ["0", "1", "2"], "w{}", "b{}"),
    "bare with underscore": lambda net: renamed(net, ["0", "1", "2"], "W_{}", "b_{}"),
    "parameter lists": lambda net: renamed(net, ["0", "1", "2"], "weights.{}", "biases.{}"),
    "lists": lists,
    "DataParallel": lambda net: nn.DataParallel(net).state_dict(),
    "compiled": lambda net: {f"_orig_mod.{k}": v for k, v in net.state_dict().items()},
    "compiled in parallel": lambda net: {f"module._orig_mod.{k}": v for k, v in net.state_dict().items()},
    "averaged": lambda net: torch.optim.swa_utils.AveragedModel(net).state_dict(),
    "state_dict key": lambda net: {**training_checkpoint(net), "state_dict": net.state_dict()},
    "model_state_dict key": lambda net: {**training_checkpoint(net), "model_state_dict": net.state_dict()},
    "net key": lambda net: {"acc": 1.0, "net": net.state_dict(), "epoch": 2},
    "nested twice": lambda net: {"network": {"state_dict": net.state_dict(), "width": 3}, "epoch": 2},
    "unusual key": lambda net: {
        "classifier": net.state_dict(),
        "optimizer": {"state": {0: {"m": torch.ones(2)}}},
    },
    "flat with extras": lambda net: {
        **net.state_dict(),
        "epoch": 3,
        "optimizer": {},
        "step": torch.tensor(4),
    },
    "parameters": lambda net: dict(net.named_parameters()),
}


@pytest.mark.parametrize("content", ACCEPTED.values(), ids=ACCEPTED.keys())
@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "legacy"])
def test_names_and_nesting(tmp_path: Path, content: Callable[[nn.Sequential], object], as_zip: bool) -> None:
    net = relu_net(5, 8, 6, 1)
    torch.save(content(net), tmp_path / "model.pth", _use_new_zipfile_serialization=as_zip)
    found = read_network(tmp_path / "model.pth")
    assert found.sizes == (5, 8, 6, 1)
    assert_same(found, net)
    assert not any(value.requires_grad for value in found.params.values())


@pytest.mark.parametrize("names", [["fc_in", "fc_mid", "fc_out"], ["input", "hidden", "output"], ["c", "b", "a"]])
def test_safetensors_whose_names_do_not_sort(tmp_path: Path, names: list[str]) -> None:
    net = relu_net(5, 8, 6, 1)
    save_file(renamed(net, names), tmp_path / "model.safetensors")
    assert_same(read_network(tmp_path / "model.safetensors"), net)


def test_safetensors_of_more_than_ten_equal_layers_go_by_number(tmp_path: Path) -> None:
    """Sorted names put layer 10 before layer 2, and with equal widths that order also fits."""
    net = relu_net(4, *[4] * 11, 4)
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    assert_same(read_network(tmp_path / "model.safetensors"), net)


def test_numbers_decide_between_equal_layers_among_other_names(tmp_path: Path) -> None:
    net = relu_net(5, 4, 4, 4, 1)
    save_file(renamed(net, ["input", "hidden1", "hidden2", "output"]), tmp_path / "model.safetensors")
    assert_same(read_network(tmp_path / "model.safetensors"), net)


def test_file_order_decides_between_equal_layers_without_numbers(tmp_path: Path) -> None:
    net = relu_net(5, 4, 4, 4, 1)
    assert_same(read_network(saved(tmp_path, renamed(net, ["in", "second", "first", "out"]))), net)


def test_content_overrides_suffix(tmp_path: Path) -> None:
    net = relu_net(5, 8, 1)
    save_file(net.state_dict(), tmp_path / "a.pt")
    assert_same(read_network(tmp_path / "a.pt"), net)
    assert_same(read_network(saved(tmp_path, net.state_dict(), "b.safetensors")), net)


def test_safetensors_header_that_starts_like_a_pickle(tmp_path: Path) -> None:
    net, path = relu_net(5, 8, 1), tmp_path / "model"
    for padding in range(600):
        save_file(net.state_dict(), path, {"note": "x" * padding})
        if path.read_bytes().startswith(b"\x80"):
            break
    else:
        pytest.fail("no padding gave such a header")
    assert_same(read_network(path), net)


def test_biases_may_be_missing(tmp_path: Path) -> None:
    assert_same(
        read_network(saved(tmp_path, relu_net(5, 8, 6, 1, bias=False).state_dict())),
        relu_net(5, 8, 6, 1, bias=False),
    )
    net = relu_net(5, 8, 1)
    homogeneous = {name: value for name, value in net.state_dict().items() if name != "2.bias"}
    assert dense_network(homogeneous).is_homogeneous


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((torch.float16, torch.float16), torch.float32),
        ((torch.bfloat16, torch.float16), torch.float32),
        ((torch.float32, torch.float32), torch.float32),
        ((torch.float64, torch.float16), torch.float64),
    ],
)
def test_common_dtype(dtypes: tuple[torch.dtype, torch.dtype], expected: torch.dtype) -> None:
    found = dense_network(
        {"0.weight": torch.ones(3, 2, dtype=dtypes[0]), "1.weight": torch.ones(1, 3, dtype=dtypes[1])}
    )
    assert {value.dtype for value in found.params.values()} == {expected}


def test_result_shares_no_memory_with_the_state() -> None:
    state = renamed(relu_net(5, 8, 1), ["a", "b"])
    found = dense_network(state)
    state["a.weight"].zero_()
    assert found.weights[0].abs().sum() > 0


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=3, max_size=8, unique=True),
    names=st.lists(st.from_regex(r"[ac-vx-z]{1,6}", fullmatch=True), min_size=8, max_size=8, unique=True),
    seed=st.integers(0, 99),
)
def test_shuffled_keys_of_distinct_widths(sizes: list[int], names: list[str], seed: int) -> None:
    net = relu_net(*sizes, seed=seed)
    items = list(renamed(net, names[: len(sizes) - 1]).items())
    random.Random(seed).shuffle(items)
    for ordered in (True, False):
        found = dense_network(dict(items), ordered=ordered)
        assert found.sizes == tuple(sizes)
        assert_same(found, net)


@settings(max_examples=30, deadline=None)
@given(width=st.integers(1, 5), depth=st.integers(2, 14), seed=st.integers(0, 99))
def test_shuffled_keys_of_equal_widths_with_numbers(width: int, depth: int, seed: int) -> None:
    net = relu_net(*[width] * (depth + 1), seed=seed)
    items = list(net.state_dict().items())
    random.Random(seed).shuffle(items)
    assert_same(dense_network(dict(items), ordered=bool(seed % 2)), net)


# --- refused files ----------------------------------------------------------------------------------------


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def refusal(path: Path, **limits: int) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_network(path, **limits)
    message = str(caught.value)
    assert str(path) in message
    assert "weights_only" not in message
    return message


@pytest.mark.parametrize("way", ["zip", "legacy", "pickle"])
def test_malicious_pickle_runs_nothing(tmp_path: Path, way: str) -> None:
    marker, path = tmp_path / "marker", tmp_path / "model.pt"
    content = {"0.weight": torch.ones(2, 2), "1.weight": Malicious(marker)}
    if way == "pickle":
        path.write_bytes(pickle.dumps(Malicious(marker)))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=way == "zip")
    message = refusal(path)
    assert CURE in message
    assert way == "pickle" or "mkdir, which could run code" in message
    assert not marker.exists()
    torch.load(path, weights_only=False) if way != "pickle" else pickle.loads(path.read_bytes())  # noqa: S301
    assert marker.exists(), "the attack itself must work, or this test proves nothing"


@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "legacy"])
def test_whole_module(tmp_path: Path, as_zip: bool) -> None:
    torch.save(relu_net(5, 8, 1), tmp_path / "model.pt", _use_new_zipfile_serialization=as_zip)
    message = refusal(tmp_path / "model.pt")
    assert "Python objects, not only tensors" in message
    assert "torch.nn.modules" in message
    assert CURE in message


def test_numpy_arrays(tmp_path: Path) -> None:
    assert "numpy" in refusal(saved(tmp_path, {"W1": np.ones((3, 2)), "W2": np.ones((1, 3))}))


def test_torchscript(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, but such files still exist
        torch.jit.script(relu_net(5, 8, 1)).save(tmp_path / "model.pt")  # type: ignore[no-untyped-call]
    message = refusal(tmp_path / "model.pt")
    assert "TorchScript" in message
    assert CURE in message


@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "legacy"])
def test_truncated_anywhere(tmp_path: Path, as_zip: bool) -> None:
    path = tmp_path / "model.pt"
    torch.save(relu_net(5, 8, 1).state_dict(), path, _use_new_zipfile_serialization=as_zip)
    whole = path.read_bytes()
    for length in range(1, len(whole) - 1, len(whole) // 25):
        path.write_bytes(whole[:length])
        assert CURE in refusal(path)


def test_truncated_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(relu_net(5, 8, 1).state_dict(), path)
    whole = path.read_bytes()
    for length in (0, 4, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "safetensors" in refusal(path)


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 10_000), value=st.integers(0, 255), as_zip=st.booleans())
def test_damaged_bytes_never_raise_other_errors(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, as_zip: bool
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "model.pt"
    torch.save(relu_net(2, 3, 1).state_dict(), path, _use_new_zipfile_serialization=as_zip)
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content)
    with suppress(CheckpointError, UnsupportedModelError):
        read_network(path)


def test_declared_size_of_a_zip_bomb(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data.pkl", b"\0" * 5_000_000)
    assert path.stat().st_size < 10_000
    assert "unpacks to 5,000,000 bytes, more than the limit of 1,000,000" in refusal(path, max_bytes=1_000_000)


def test_tensor_that_claims_more_than_the_file_contains(tmp_path: Path) -> None:
    state = {"0.weight": torch.ones(1).expand(10**6, 10**6), "1.weight": torch.ones(1, 10**6)}
    assert "claims 4,000,004,000,000 bytes" in refusal(saved(tmp_path, state))


def test_file_over_the_limit(tmp_path: Path) -> None:
    path = saved(tmp_path, relu_net(5, 8, 1).state_dict())
    assert "more than the limit of 100" in refusal(path, max_bytes=100)


def test_no_file_and_directory_and_pipe(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "missing.pt")
    assert "is a directory; give the .pt" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"<!doctype html><p>Sign in to download", "none of the files that engram reads"),
        (b"version https://git-lfs.github.com/spec/v1", "none of the files that engram reads"),
        (pickle.dumps({"a": 3}, protocol=0), "none of the files that engram reads"),
        (pickle.dumps({"a": 3}), "can't be read safely"),
    ],
)
def test_other_content(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    message = refusal(tmp_path / "model.pt")
    assert expected in message
    assert CURE in message


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"")
    assert "is empty; download or copy it again" in refusal(tmp_path / "model.pt")


def test_other_zip(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", W1=np.ones(3))
    assert "neither torch.save, Keras nor skops wrote it" in refusal(tmp_path / "model.npz")


def test_not_one_state_dict(tmp_path: Path) -> None:
    net = relu_net(5, 8, 1)
    assert "contains a list, not a state_dict" in refusal(saved(tmp_path, [torch.ones(2)]))
    two = {"generator": net.state_dict(), "discriminator": relu_net(5, 8, 1).state_dict()}
    assert "several state_dicts ('generator', 'discriminator')" in refusal(saved(tmp_path, two))
    assert "unprintable" in refusal(saved(tmp_path, {"\x1b[2J.weight": torch.ones(2, 2)}))


@pytest.mark.parametrize("content", [{}, {"epoch": 3}, {"model": {}}])
def test_no_tensors(tmp_path: Path, content: object) -> None:
    with pytest.raises(UnsupportedModelError, match="it contains no tensors; save the state_dict"):
        read_network(saved(tmp_path, content))


def test_checkpoint_that_contains_itself(tmp_path: Path) -> None:
    circular: dict[str, object] = {}
    circular["again"] = circular
    with pytest.raises(UnsupportedModelError, match="no tensors"):
        read_network(saved(tmp_path, circular))


@pytest.mark.filterwarnings("ignore:.*quantized:UserWarning")  # deprecated, but still in use
def test_quantised_layer_that_is_not_dynamic(tmp_path: Path) -> None:
    path = saved(tmp_path, {"0.scale": torch.tensor(1.0), "0._packed_params._packed_params": torch.ones(3)})
    with pytest.raises(UnsupportedModelError, match=r"quantised layers: 0\.scale, 0\._packed"):
        read_network(path)


# --- refused models ---------------------------------------------------------------------------------------


def modules(*parts: nn.Module) -> State:
    return dict(nn.Sequential(*parts).state_dict())


REFUSED: dict[str, tuple[State, list[str]]] = {
    "LayerNorm": (
        modules(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 1)),
        ["normalisation", "1.weight, 1.bias", "--model-code"],
    ),
    "convolution": (
        modules(nn.Conv2d(3, 8, 3), nn.Conv1d(3, 8, 3), nn.Linear(8, 4), nn.Linear(4, 1)),
        ["convolution", "0.weight, 0.bias, 1.weight, 1.bias;"],
    ),
    "embedding": (
        {"embed.weight": torch.ones(50, 8), "1.weight": torch.ones(4, 8), "2.weight": torch.ones(1, 4)},
        ["embedding: embed.weight;"],
    ),
    "recurrent": (modules(nn.LSTM(5, 8), nn.Linear(8, 1)), ["recurrent", "0.weight_ih_l0", "0.bias_hh_l0"]),
    "attention": (
        {f"attn.{name}": value for name, value in nn.MultiheadAttention(8, 2).state_dict().items()},
        ["attention", "attn.in_proj_weight", "attn.out_proj.bias"],
    ),
    "weight norm": (
        modules(nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)), nn.Linear(8, 1)),
        ["stored in parts", "0.parametrizations.weight.original0", "merge"],
    ),
    "unknown names": (
        {**relu_net(5, 8, 1).state_dict(), "temperature": torch.tensor(2.0)},
        ["neither the weight nor the bias", "temperature", "rename"],
    ),
    "bias alone": (
        {**relu_net(5, 8, 1).state_dict(), "9.bias": torch.ones(1)},
        ["bias without a weight: 9.bias"],
    ),
    "two heads": (
        renamed(relu_net(5, 8, 1), ["body", "head"]) | {"head_b.weight": torch.ones(3, 8)},
        [
            "residual or branching: head_b.weight [3, 8] fits nowhere",
            "body.weight [8, 5] > head.weight [1, 8]",
        ],
    ),
    "shortcut": (
        renamed(relu_net(5, 8, 6, 1), ["a", "b", "c"]) | {"shortcut.weight": torch.ones(6, 5)},
        ["residual or branching: shortcut.weight [6, 5]"],
    ),
    "shapes": (
        {"fc1.weight": torch.ones(8, 5), "fc2.weight": torch.ones(6, 9), "fc3.weight": torch.ones(1, 6)},
        ["fc2.weight [6, 9] takes 9 values, but fc1.weight [8, 5] before it gives 8"],
    ),
    "bias length": (
        relu_net(5, 8, 1).state_dict() | {"0.bias": torch.ones(7)},
        ["the bias of 0.weight [8, 5] is [7], not [8]"],
    ),
    "bias shape": (relu_net(5, 8, 1).state_dict() | {"0.bias": torch.ones(1, 8)}, ["is [1, 8], not [8]"]),
    "nan": (
        relu_net(5, 8, 1).state_dict() | {"0.bias": torch.tensor([torch.nan, torch.inf, *[0.0] * 6])},
        ["NaN or infinite values: 0.bias (2 of 8)"],
    ),
    "integers": (
        relu_net(5, 8, 1).state_dict() | {"0.weight": torch.ones(8, 5).int()},
        ["0.weight (int32, strided)"],
    ),
    "complex": (
        relu_net(5, 8, 1).state_dict() | {"0.weight": torch.ones(8, 5) * 1j},
        ["0.weight (complex64"],
    ),
    "float8": (
        relu_net(5, 8, 1).state_dict() | {"0.weight": torch.ones(8, 5).to(torch.float8_e4m3fn)},
        ["0.weight (float8_e4m3fn"],
    ),
    "sparse": (relu_net(5, 8, 1).state_dict() | {"0.weight": torch.ones(8, 5).to_sparse()}, ["sparse_coo"]),
    "meta": (
        relu_net(5, 8, 1).state_dict() | {"0.weight": torch.ones(8, 5, device="meta")},
        ["0.weight (no values)"],
    ),
    "one layer": ({"weight": torch.ones(1, 5), "bias": torch.ones(1)}, ["only one layer, weight [1, 5]"]),
    "flat output": ({"W1": torch.ones(8, 5), "W2": torch.ones(8)}, ["W2", "must be [1, in], not [in]"]),
    "too many": (
        {f"{i}.weight": torch.ones(1, 1) for i in range(MAX_TENSORS + 1)},
        ["257 tensors, more than 256"],
    ),
    "empty": ({}, ["no tensors"]),
}


@pytest.mark.parametrize(("state", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_refusal_names_tensors_and_cure(state: State, expected: list[str]) -> None:
    problem = only_problem(state)
    for part in expected:
        assert part in problem


@pytest.mark.filterwarnings("ignore:.*quantized:UserWarning")
def test_per_channel_quantised_weight() -> None:
    scales, zeros = torch.ones(8), torch.zeros(8, dtype=torch.int64)
    quantised = torch.quantize_per_channel(torch.ones(8, 5), scales, zeros, 0, torch.qint8)
    assert "0.weight (qint8" in only_problem(relu_net(5, 8, 1).state_dict() | {"0.weight": quantised})


@pytest.mark.parametrize("biases", [True, False])
def test_weights_stored_as_in_by_out_are_transposed(biases: bool) -> None:
    """Biases show it; without them the order of the names does, also where safetensors sorts them."""
    first, second = torch.rand(5, 8), torch.rand(8, 1)
    state = {"fc1.weight": first, "fc1.bias": torch.rand(8), "fc2.weight": second, "fc2.bias": torch.rand(1)}
    kept = {name: value for name, value in state.items() if biases or "weight" in name}
    for ordered in (True, False):
        network = dense_network(kept, ordered=ordered)
        assert torch.equal(network.weights[0], first.T)
        assert torch.equal(network.weights[1], second.T)


@pytest.mark.parametrize(
    "parts",
    [
        {"0.weight_g": torch.ones(8, 1, dtype=torch.int32), "0.weight_v": torch.ones(8, 5, dtype=torch.int32)},
        {"0.weight_g": torch.ones(3, 1), "0.weight_v": torch.ones(8, 5)},
        {"0.weight_orig": torch.ones(8, 5), "0.weight_u": torch.ones(8), "0.weight_v": torch.ones(4)},
        {"0.weight_orig": torch.ones(8, 5).to_sparse(), "0.weight_mask": torch.ones(8, 5)},
        {"0.weight": torch.ones(8, 5), "1.running_mean": torch.ones(8), "1.running_var": torch.ones(3)},
        {"0.weight": torch.ones(8, 5), "1.running_mean": torch.tensor(1.0), "1.running_var": torch.tensor(1.0)},
        {
            "0.weight": torch.ones(8, 5),
            "1.running_mean": torch.ones(8, device="meta"),
            "1.running_var": torch.ones(8),
        },
    ],
)
def test_parts_that_do_not_fit_are_refused_not_raised(tmp_path: Path, parts: State) -> None:
    path = saved(tmp_path, {**parts, "2.weight": torch.ones(1, 8)})
    with pytest.raises((UnsupportedModelError, CheckpointError)):
        read_network(path)


def test_several_orders_are_listed_not_guessed() -> None:
    """Sorted, hidden_three comes before hidden_two; alphabetical order proves nothing."""
    net = relu_net(5, 4, 4, 4, 1)
    state = dict(sorted(renamed(net, ["a_in", "hidden_two", "hidden_three", "out"]).items()))
    problem = only_problem(state, ordered=False)
    assert (
        "a_in.weight > hidden_three.weight > hidden_two.weight > out.weight; or a_in.weight > hidden_two"
        in problem
    )
    assert "number their names" in problem


def test_every_problem_is_listed() -> None:
    state = modules(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4), nn.Linear(5, 1))
    state["2.bias"] = torch.full((3,), torch.nan)
    found = "\n".join(problems_of(state))
    for part in (
        "convolution",
        "normalisation",
        "bias of 2.weight",
        "3.weight [1, 5] takes 5",
        "2.bias (3 of 3)",
    ):
        assert part in found


@pytest.mark.timeout(10)
def test_search_of_factorially_many_orders_is_bounded() -> None:
    square = {f"{'x' * i}y.weight": torch.ones(2, 2) for i in range(200)}
    assert "several orders" in only_problem(square, ordered=False)
    detached = square | {"p.weight": torch.ones(3, 3)}
    assert "p.weight [3, 3]" in only_problem(detached, ordered=True)
