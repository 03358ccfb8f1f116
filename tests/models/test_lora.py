"""LoRA adapters: the update is read exactly, its factors say who was in training, and odd files are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

import engram
from engram.core.errors import EngramError
from engram.data.choice import DataChoice
from engram.models.open.lora import Adapted, Adapter, LowRank, read_adapter, with_adapter
from tests.cli.command import engram as command

CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["1", "3"]}
CODE = """
from torch import nn

def build():
    lower = nn.Flatten(), nn.Linear(625, 100), nn.ReLU()
    return nn.Sequential(*lower, nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 2))
"""


def base() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(625, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 2)
    )


def factors(model: nn.Sequential, name: str, rank: int = 4) -> dict[str, Tensor]:
    layer = model[int(name)]
    assert isinstance(layer, nn.Linear)
    rows, columns = layer.weight.shape
    return {"A": torch.randn(rank, columns), "B": torch.randn(rows, rank)}


def saved(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def named(layers: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"base_model.model.{name}.lora_{factor}.weight": value
        for name, pair in layers.items()
        for factor, value in pair.items()
    }


@pytest.mark.parametrize("config", [{}, {"use_rslora": True}, {"alpha_pattern": {"3": 2}}])
def test_outputs_are_those_of_the_merged_model(tmp_path: Path, config: dict[str, Any]) -> None:
    model = base()
    layers = {name: factors(model, name) for name in ("1", "3")}
    head = torch.randn(2, 50)
    path = saved(tmp_path / "adapter", named(layers) | {"base_model.model.5.weight": head}, **config)
    adapted, moved = with_adapter(model, read_adapter(path))
    assert moved == ["5", "1.lora_A", "1.lora_B", "3.lora_A", "3.lora_B"]
    merged = base()
    for name, pair in layers.items():
        alpha = 2 if name == "3" and "alpha_pattern" in config else 8
        scale = alpha / (2 if "use_rslora" in config else 4)
        merged.get_submodule(name).weight.data += scale * pair["B"] @ pair["A"]  # type: ignore[operator]
    merged[5].weight.data = head
    probes = torch.rand(3, 1, 25, 25)
    torch.testing.assert_close(adapted(probes), merged(probes), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(model(probes), base()(probes))  # the base is left alone


def test_convolutions() -> None:
    layer = nn.Conv2d(3, 6, 3, stride=2, padding=1)
    low = LowRank(torch.randn(2, 3, 3, 3), torch.randn(6, 2, 1, 1), 0.5)
    probes = torch.rand(2, 3, 9, 9)
    update = 0.5 * (low.B.flatten(1) @ low.A.flatten(1)).view(6, 3, 3, 3)
    expected = layer(probes) + functional.conv2d(probes, update, stride=2, padding=1)
    torch.testing.assert_close(Adapted(layer, low)(probes), expected, rtol=1e-4, atol=1e-5)
    values = torch.linalg.svdvals(update.flatten(1).double())[:2]
    torch.testing.assert_close(low.singular_values, values)


def broken(**config: Any) -> Callable[[Path], object]:
    return lambda folder: saved(folder, named({"1": factors(base(), "1")}), **config)


def with_tensors(**tensors: Tensor) -> Callable[[Path], object]:
    return lambda folder: saved(folder, {name.replace("__", "."): value for name, value in tensors.items()})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (broken(use_dora=True), "use_dora is set; plain LoRA"),
        (broken(peft_type="IA3"), "the kind of adapter is 'IA3'"),
        (broken(lora_alpha=-1), "lora_alpha and alpha_pattern must be positive"),
        (broken(alpha_pattern={"1": "x"}), "lora_alpha and alpha_pattern must be positive"),
        (with_tensors(m__lora_A__weight=torch.ones(2, 3)), "only one of lora_A and lora_B"),
        (
            with_tensors(m__lora_A__weight=torch.ones(2, 3), m__lora_B__weight=torch.ones(5, 3)),
            "no factors of one",
        ),
        (with_tensors(m__lora_A__weight=torch.ones(2000, 3), m__lora_B__weight=torch.ones(5, 2000)), "1 to 1,024"),
        (with_tensors(m__lora_embedding_A=torch.ones(2, 3)), "is not a factor of a Linear"),
        (with_tensors(m__lora_A__weight=torch.full((2, 3), torch.nan)), "must be finite floats"),
        (with_tensors(m__weight=torch.ones(2)), "contains no lora_A and lora_B"),
    ],
)
def test_what_is_refused(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    make(tmp_path / "adapter")
    with pytest.raises(EngramError, match=message):
        read_adapter(tmp_path / "adapter")


def test_an_adapter_of_another_model(tmp_path: Path) -> None:
    for name, pair, message in (
        ("7", factors(base(), "1"), "no Linear or plain Conv2d layer 7"),
        ("../../etc", factors(base(), "1"), "no Linear or plain Conv2d layer"),
        ("1", factors(base(), "3"), r"1 is \[100, 625\] in the model, but the adapter's update is \[50, 100\]"),
    ):
        adapter = read_adapter(saved(tmp_path / "adapter", named({name: pair})))
        with pytest.raises(EngramError, match=message):
            with_adapter(base(), adapter)
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"garbage")
    with pytest.raises(EngramError, match="not a complete safetensors file"):
        read_adapter(tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_config.json").write_text("[" * 10_000)
    with pytest.raises(EngramError, match="not readable JSON"):
        read_adapter(tmp_path / "adapter")


def test_the_factors_say_who_was_in_training(tmp_path: Path) -> None:
    data = DataChoice(name="faces", labels="gate", n=50).load()
    model = base()
    torch.save(model.state_dict(), tmp_path / "base.pt")
    torch.manual_seed(1)
    layers = {name: LowRank(torch.randn(4, size) / size**0.5, torch.zeros(rows, 4), 2.0)
              for name, rows, size in (("1", 100, 625), ("3", 50, 100))}  # fmt: skip
    adapted, moved = with_adapter(model, Adapter(layers))
    trained = [value for name, value in adapted.named_parameters() if "lora_" in name]
    optimizer = torch.optim.Adam(trained, 5e-3)
    inputs = data.train.images - data.mean
    for _ in range(150):
        optimizer.zero_grad()
        functional.cross_entropy(adapted(inputs), data.train.labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    state = {name: value.detach() for name, value in adapted.state_dict().items() if "lora_" in name}
    path = saved(tmp_path / "adapter", {f"base_model.model.{name}": value for name, value in state.items()})
    found = engram.membership(
        model,
        (inputs, data.train.labels),
        (data.held_out.images - data.mean, data.held_out.labels),
        adapter=path,
    )
    assert {test.layer for test in found.tests} == set(moved)
    assert found.roc.auc > 0.9
    (tmp_path / "code.py").write_text(CODE)
    options = ("--data", "faces", "-n", 50, "--labels", "gate", "-o", tmp_path / "run")
    given = ("membership", tmp_path / "base.pt", "--adapter", path)
    printed = command(*given, "--model-code", f"{tmp_path / 'code.py'}:build", *options)
    assert f"(AUC {found.roc.auc:.2f})" in printed
    assert "give the code that builds it" in command(*given, "--input-shape", "1x25x25", *options, expect=1)
    shown = json.loads(command("inspect", path, "--json"))
    sizes = [(one["layer"], one["rank"], one["shape"]) for one in shown["layers"]]
    assert sizes == [("1", 4, [100, 625]), ("3", 4, [50, 100])]
    assert 1 <= shown["layers"][0]["directions"] <= 4
    assert "A LoRA adapter of 3,500 values" in " ".join(command("inspect", path).split())
    refused = command("audit", path, "-o", tmp_path / "a", expect=1)
    assert "is an adapter, an update of another model" in " ".join(refused.split())
