"""Model files as other people save them: each is audited on the first try, or refused with what is possible.

    python -m benchmarks.checkpoints [--only gelu,keras] [--out runs/checkpoints]

Makes some forty files with PyTorch, scikit-learn, ONNX and Keras, runs `engram audit` on each as a newcomer would,
and where the message suggests an option, once more with it. Outputs of the network that engram read are compared
with the original's. Prints a table: audited, refused with a reason, or misread.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from engram.core import files
from engram.data.choice import DataChoice
from engram.models.open.door import open_view

SHAPE = (1, 25, 25)
PIXELS = 625
N = 40
MEAN, STD = 0.45, 0.25
SAME = 1e-5
Function = Callable[[Tensor], Tensor]
"""The original's outputs [n, outputs] for pixels [n, *shape]."""


@dataclass(frozen=True, eq=False)
class Made:
    """A file, the options that its owner knows, and what the original computes; None if it must be refused."""

    path: Path
    options: str = ""
    original: Function | None = None
    data: str = "faces"
    activation: str = "relu"
    """What its owner answers when asked for the activation."""
    code: str | None = None
    """What its owner gives as --model-code on reading that layers in one line are assumed, if they are not."""


Case = Callable[[Path], Made]
CASES: dict[str, Case] = {}


def case(make: Case) -> Case:
    CASES[make.__name__.replace("_", "-")] = make
    return make


def mlp(activation: Callable[[], nn.Module] = nn.ReLU, *, norm: bool = False, outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(100)] if norm else []
    hidden = nn.Linear(PIXELS, 100), *middle, activation(), nn.Linear(100, 50), activation()
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(50, outputs))


def cnn(norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm2d(8)] if norm else []
    lower = nn.Conv2d(1, 8, 3, padding=1), *middle, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*lower, nn.Linear(8 * 12 * 12, 50), nn.ReLU(), nn.Linear(50, 1))


def faces() -> tuple[Tensor, Tensor]:
    train = DataChoice(name="faces", labels="gate", n=N).load().train
    return train.images, train.labels


def trained(model: nn.Module, prepare: Function = lambda pixels: pixels, steps: int = 150) -> nn.Module:
    """The model after a short training on faces, in eval mode."""
    pixels, labels = faces()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = model(prepare(pixels))
        loss = nn.functional.softplus(-(2 * labels - 1) * outputs[:, 0]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def function(model: nn.Module, prepare: Function = lambda pixels: pixels) -> Function:
    model = model.eval()
    return lambda pixels: model(prepare(pixels))


def saved(model: nn.Module, path: Path, **more: Any) -> Made:
    torch.save({**more, "state_dict": model.state_dict()} if more else model.state_dict(), path)
    return Made(path, "--input-shape 1x25x25", function(model))


def renamed(model: nn.Module, prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in model.state_dict().items()}


@case
def plain(folder: Path) -> Made:
    return saved(trained(mlp()), folder / "model.pt")


@case
def nested(folder: Path) -> Made:
    return saved(trained(mlp()), folder / "checkpoint.pth", epoch=7, loss=0.1)


@case
def lightning(folder: Path) -> Made:
    model = trained(mlp())
    content = {"state_dict": renamed(model, "model.net."), "epoch": 3, "hyper_parameters": {"lr": 0.001}}
    torch.save(content, folder / "last.ckpt")
    return Made(folder / "last.ckpt", "--input-shape 1x25x25", function(model))


@case
def data_parallel(folder: Path) -> Made:
    model = trained(mlp())
    torch.save(renamed(model, "module."), folder / "model.pt")
    return Made(folder / "model.pt", "--input-shape 1x25x25", function(model))


@case
def compiled(folder: Path) -> Made:
    model = trained(mlp())
    torch.save(renamed(model, "_orig_mod."), folder / "model.pt")
    return Made(folder / "model.pt", "--input-shape 1x25x25", function(model))


@case
def with_optimizer(folder: Path) -> Made:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    trained(model)
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 150}
    torch.save(content, folder / "model.pt")
    return Made(folder / "model.pt", "--input-shape 1x25x25", function(model))


@case
def old_format(folder: Path) -> Made:
    model = trained(mlp())
    torch.save(model.state_dict(), folder / "model.pt", _use_new_zipfile_serialization=False)
    return Made(folder / "model.pt", "--input-shape 1x25x25", function(model))


@case
def half_precision(folder: Path) -> Made:
    model = trained(mlp()).half()
    torch.save(model.state_dict(), folder / "model.pt")
    return Made(folder / "model.pt", "--input-shape 1x25x25", function(model.float()))


@case
def bfloat16_safetensors(folder: Path) -> Made:
    model = trained(mlp()).bfloat16()
    save_file(model.state_dict(), folder / "model.safetensors")
    return Made(folder / "model.safetensors", "--input-shape 1x25x25", function(model.float()))


@case
def double(folder: Path) -> Made:
    model = trained(mlp()).double()
    torch.save(model.state_dict(), folder / "model.pt")
    return Made(folder / "model.pt", "--input-shape 1x25x25", function(model.float()))


@case
def safetensors(folder: Path) -> Made:
    model = trained(mlp())
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    return Made(folder / "model.safetensors", "--input-shape 1x25x25", function(model))


@case
def by_hand(folder: Path) -> Made:
    """W1, b1, ... as people write who do not use modules; weights as [in, out]."""
    model = trained(mlp())
    layers = [layer for layer in model.children() if isinstance(layer, nn.Linear)]
    named = {f"W{place}": layer.weight.data.T.contiguous() for place, layer in enumerate(layers, 1)}
    torch.save({**named, **{f"b{place}": layer.bias.data for place, layer in enumerate(layers, 1)}},
               folder / "weights.pt")  # fmt: skip
    return Made(folder / "weights.pt", "--input-shape 1x25x25", function(model))


@case
def weight_norm(folder: Path) -> Made:
    model = mlp()
    parametrizations.weight_norm(model[1])
    return saved(trained(model), folder / "model.pt")


@case
def spectral_norm(folder: Path) -> Made:
    model = mlp()
    parametrizations.spectral_norm(model[1])
    return saved(trained(model), folder / "model.pt")


@case
def pruned(folder: Path) -> Made:
    model = mlp()
    trained(model)
    prune.l1_unstructured(model[1], "weight", 0.3)  # type: ignore[no-untyped-call]
    return saved(model, folder / "model.pt")


@case
def quantised(folder: Path) -> Made:
    model = trained(mlp())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)  # type: ignore[no-untyped-call]
        torch.save(small.state_dict(), folder / "model.pt")
        for place, layer in enumerate(small):
            if hasattr(layer, "_packed_params"):
                model[place].weight.data = layer.weight().dequantize()  # type: ignore[index]
    return Made(folder / "model.pt", "--input-shape 1x25x25", function(model))


@case
def batch_norm(folder: Path) -> Made:
    return saved(trained(mlp(norm=True)), folder / "model.pt")


@case
def gelu(folder: Path) -> Made:
    return replace(saved(trained(mlp(nn.GELU)), folder / "model.pt"), activation="gelu")


@case
def leaky_relu(folder: Path) -> Made:
    made = saved(trained(mlp(lambda: nn.LeakyReLU(0.2))), folder / "model.pt", epoch=1)
    return replace(made, options=f"{made.options} --activation leaky:0.2")


@case
def tanh(folder: Path) -> Made:
    return replace(saved(trained(mlp(nn.Tanh)), folder / "model.pt"), activation="tanh")


@case
def silu(folder: Path) -> Made:
    return replace(saved(trained(mlp(nn.SiLU)), folder / "model.pt"), activation="silu")


@case
def normalised(folder: Path) -> Made:
    def prepare(pixels: Tensor) -> Tensor:
        return (pixels - 0.5) / 0.5

    model = trained(mlp(), prepare)
    torch.save(model.state_dict(), folder / "model.pt")
    return Made(folder / "model.pt", "--input-shape 1x25x25", function(model, prepare))


@case
def vgg(folder: Path) -> Made:
    model = trained(cnn(norm=False))
    torch.save(model.state_dict(), folder / "model.pt")
    arch = "conv3x8p1 relu maxpool2 flatten 50 relu 1"
    return Made(folder / "model.pt", f"--input-shape 1x25x25 --arch '{arch}'", function(model))


@case
def vgg_batch_norm(folder: Path) -> Made:
    model = trained(cnn())
    torch.save(model.state_dict(), folder / "model.pt")
    arch = "conv3x8p1 relu maxpool2 flatten 50 relu 1"
    return Made(folder / "model.pt", f"--input-shape 1x25x25 --arch '{arch}'", function(model))


def exported(model: nn.Module, path: Path) -> Made:
    torch.export.save(torch.export.export(model, (torch.zeros(2, *SHAPE),)), path)
    return Made(path, "", function(model))


@case
def pt2_gelu(folder: Path) -> Made:
    return exported(trained(mlp(nn.GELU)), folder / "model.pt2")


@case
def pt2_cnn(folder: Path) -> Made:
    return exported(trained(cnn()), folder / "model.pt2")


def onnx(model: nn.Module, path: Path, **options: Any) -> Made:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.zeros(2, *SHAPE),), path, verbose=False, **options)
    return Made(path, "", function(model))


@case
def onnx_mlp(folder: Path) -> Made:
    return onnx(trained(mlp()), folder / "model.onnx", dynamo=True)


@case
def onnx_old_exporter(folder: Path) -> Made:
    return onnx(trained(mlp(nn.GELU)), folder / "model.onnx", dynamo=False, opset_version=13)


@case
def onnx_cnn(folder: Path) -> Made:
    return onnx(trained(cnn()), folder / "model.onnx", dynamo=False)


class Normalised(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model((pixels - MEAN) / STD)  # type: ignore[no-any-return]


@case
def onnx_with_preprocessing(folder: Path) -> Made:
    model = trained(Normalised(mlp()))
    return onnx(model, folder / "model.onnx", dynamo=True)


def perceptron(scaled: bool = False) -> tuple[Any, Function]:
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pixels, labels = faces()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        last = MLPClassifier((100, 50), max_iter=100, random_state=0)
        model = make_pipeline(StandardScaler(), last) if scaled else last
        model.fit(pixels.flatten(1).double().numpy(), labels.numpy())

    def original(pixels: Tensor) -> Tensor:
        chance = torch.from_numpy(model.predict_proba(pixels.flatten(1).double().numpy())[:, 1:])
        return torch.logit(chance.double(), eps=1e-12)

    return model, original


@case
def skops(folder: Path) -> Made:
    from skops.io import dump

    model, original = perceptron()
    dump(model, folder / "model.skops")
    return Made(folder / "model.skops", "--input-shape 1x25x25", original)


@case
def skops_pipeline(folder: Path) -> Made:
    from skops.io import dump

    model, original = perceptron(scaled=True)
    dump(model, folder / "model.skops")
    return Made(folder / "model.skops", "--input-shape 1x25x25", original)


def keras_model(convolutions: bool) -> tuple[Any, Function]:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    lower = (
        [layers.Conv2D(8, 3, padding="same", activation="relu"), layers.MaxPooling2D(2)] if convolutions else []
    )
    model = keras.Sequential(
        [
            keras.Input((25, 25, 1)),
            *([] if convolutions else [layers.Rescaling(1 / 255)]),
            *lower,
            layers.Flatten(),
            layers.Dense(100, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    scale = 1.0 if convolutions else 255.0
    pixels, labels = faces()
    model.compile("adam", "binary_crossentropy")
    model.fit(scale * pixels.permute(0, 2, 3, 1).numpy(), labels.numpy(), epochs=60, verbose=0)

    def original(pixels: Tensor) -> Tensor:
        found = torch.as_tensor(model(scale * pixels.permute(0, 2, 3, 1).numpy()).detach().cpu().numpy())
        return torch.logit(found.double(), eps=1e-12)

    return model, original


@case
def keras(folder: Path) -> Made:
    model, original = keras_model(convolutions=False)
    model.save(folder / "model.keras")
    return Made(folder / "model.keras", "", original)


@case
def keras_h5(folder: Path) -> Made:
    model, original = keras_model(convolutions=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save(folder / "model.h5")
    return Made(folder / "model.h5", "", original)


class Classifier(nn.Module):
    """A backbone and a head, as fine-tuning leaves them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(8 * 144, 100), nn.ReLU(), nn.Dropout(), nn.Linear(100, 1)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        return self.classifier(self.features(pixels))  # type: ignore[no-any-return]


@case
def head(folder: Path) -> Made:
    model = Classifier()
    trained(model)
    torch.save(model.state_dict(), folder / "model.pt")
    choice = DataChoice(name="faces", labels="gate", n=N).load()
    for name, part in (("train", choice.train), ("held", choice.held_out)):
        with torch.no_grad():
            np.savez(
                folder / f"{name}.npz", images=model.features(part.images).numpy(), labels=part.labels.numpy()
            )
    data = f"--data npz:{folder / 'train.npz'} --held-out npz:{folder / 'held.npz'}"
    return Made(folder / "model.pt", "", function(model.classifier), data)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(PIXELS, 100), nn.Linear(100, 100), nn.Linear(100, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = torch.relu(self.first(pixels.flatten(1)))
        return self.last(hidden + torch.relu(self.middle(hidden)))  # type: ignore[no-any-return]


@case
def residual(folder: Path) -> Made:
    """Its state_dict is that of a chain; only the records can tell."""
    needed = f"import torch\nfrom torch import Tensor, nn\n\nPIXELS = {PIXELS}\n\n\n"
    (folder / "code.py").write_text(needed + inspect.getsource(Residual))
    made = saved(trained(Residual()), folder / "model.pt")
    return replace(made, original=None, code=f"{folder / 'code.py'}:Residual")


@case
def whole_module(folder: Path) -> Made:
    torch.save(trained(mlp()), folder / "model.pt")
    return Made(folder / "model.pt", "--input-shape 1x25x25")


@case
def torchscript(folder: Path) -> Made:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(trained(mlp()), torch.zeros(2, *SHAPE)).save(str(folder / "model.pt"))  # type: ignore[no-untyped-call]
    return Made(folder / "model.pt", "--input-shape 1x25x25")


@case
def joblib_pickle(folder: Path) -> Made:
    import pickle

    (folder / "model.pkl").write_bytes(pickle.dumps(perceptron()[0]))
    return Made(folder / "model.pkl", "--input-shape 1x25x25")


@case
def layer_norm(folder: Path) -> Made:
    model = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 50), nn.LayerNorm(50), nn.ReLU(), nn.Linear(50, 1))
    torch.save(trained(model).state_dict(), folder / "model.pt")
    return Made(folder / "model.pt", "--input-shape 1x25x25")


@case
def parquet_table(folder: Path) -> Made:
    """A network for a table, and the table as people keep one."""
    import polars
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    values = ((table.data - table.data.mean(0)) / table.data.std(0)).astype(np.float32)
    for name, rows in (("train", slice(0, 60)), ("held", slice(60, 120))):
        columns = {str(column): values[rows, place] for place, column in enumerate(table.feature_names)}
        polars.DataFrame(columns | {"target": table.target[rows]}).write_parquet(folder / f"{name}.parquet")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 100), nn.ReLU(), nn.Linear(100, 1))
    inputs, labels = torch.from_numpy(values[:60]), torch.from_numpy(table.target[:60]).float()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(1000):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.save(model.state_dict(), folder / "model.pt")
    data = f"--data parquet:{folder / 'train.parquet'} --held-out parquet:{folder / 'held.parquet'}"
    return Made(folder / "model.pt", "--input-shape 30", function(model), data)


@case
def lora_adapter(folder: Path) -> Made:
    """An update of another model: `engram membership` takes it."""
    from safetensors.torch import save_file

    adapter = folder / "adapter"
    adapter.mkdir()
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    factors = {"lora_A": torch.randn(4, PIXELS), "lora_B": torch.zeros(100, 4)}
    named = {f"base_model.model.1.{name}.weight": value for name, value in factors.items()}
    save_file(named, adapter / "adapter_model.safetensors")
    return Made(adapter, "")


FACES = f"--data faces -n {N} --labels gate"
SUGGESTED = re.compile(r"--(activation|normalize|head|input-shape) ([^\s;,]*[^\s;,.])")


def audited(made: Made, folder: Path, budget: str = "4s") -> tuple[str, str, list[str]]:
    """Run the audit, and again with what its message suggests: outcome, last output, and the options used."""
    options = shlex.split(made.options)
    data = FACES if made.data == "faces" else made.data
    text = ""
    for attempt in range(4):
        out = folder / f"audit-{attempt}"
        command = [
            str(Path(sys.executable).parent / "engram"),
            "audit",
            str(made.path),
            *options,
            *shlex.split(data),
        ]
        command += ["--budget", budget, "--baselines", "none", "-o", str(out)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        text = ended.stdout + ended.stderr
        if ended.returncode and "Traceback" in text:
            return "CRASHED", text, options
        report = json.loads((out / "report.json").read_text()) if (out / "report.json").exists() else {}
        doubts = (report.get("comparison") or {}).get("doubts") or []
        asked = [*doubts, "" if report else text]
        found = {f"--{name}": value for one in asked for name, value in SUGGESTED.findall(one)}
        # the owner of the model knows its activation, and reads that another was assumed
        if made.activation != "relu" and "ReLU is assumed" in text:
            found["--activation"] = made.activation
        if made.code is not None and "in one line" in text:
            found = {"--model-code": made.code}
        if report and not doubts and not set(found) - set(options):
            return "audited", text, options
        more = [part for name, value in found.items() if name not in options for part in (name, value)]
        if not more:
            break
        options += more
    return ("in doubt" if report else "refused"), text, options


def difference(made: Made, options: list[str]) -> float | None:
    """The largest difference of outputs between the original and what engram read, relative to their size."""
    if made.original is None:
        return None
    given = dict(zip(options[::2], options[1::2], strict=True))
    names = {"--input-shape": "input_shape", "--arch": "arch", "--activation": "activation",
             "--normalize": "normalize", "--head": "head"}  # fmt: skip
    view = open_view(made.path, **{own: given[name] for name, own in names.items() if name in given})  # type: ignore[arg-type]
    torch.manual_seed(1)
    pixels = torch.rand(20, *view.input_shape)
    inputs = pixels
    if view.normalization is not None:
        inputs = pixels - view.normalization.mean_of(view.input_shape)
    with torch.no_grad():
        own = made.original(pixels).double()
        read = view.network.to(dtype=torch.float64)(inputs.double())
    return float((own - read).abs().max() / own.abs().max().clamp(min=1e-12))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"some of {', '.join(CASES)}")
    parser.add_argument("--out", type=Path, default=Path("runs/checkpoints"))
    parser.add_argument("--budget", default="4s")
    chosen = parser.parse_args(arguments)
    names = chosen.only.split(",") if chosen.only else list(CASES)
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            made = CASES[name](folder)
            outcome, text, options = audited(made, folder, chosen.budget)
            gap = difference(made, options) if outcome in ("audited", "in doubt") else None
            if gap is not None and gap > SAME:
                outcome = "MISREAD"
            said = text.strip().splitlines()[-1 if outcome != "refused" else 0].replace(place, "")
            added = " ".join(options[len(shlex.split(made.options)) :])
            rows.append(
                {"case": name, "outcome": outcome, "difference": gap, "suggested": added, "said": text[-2000:]}
            )
            shown = "" if gap is None else f"{gap:.0e}"
            print(f"{name:24s} {outcome:9s} {shown:6s} {added:40s} {said[:100]}", flush=True)
    counts = {
        kind: sum(row["outcome"] == kind for row in rows) for kind in dict.fromkeys(r["outcome"] for r in rows)
    }
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()), f"of {len(rows)}")
    files.prepare_directory(chosen.out)
    files.write_json(chosen.out / "checkpoints.json", {"rows": rows})


if __name__ == "__main__":
    main()
