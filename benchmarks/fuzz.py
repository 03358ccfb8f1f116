"""Damaged and hostile files for every reader: an error in words, or a result; no traceback, no hang, no flood.

    python -m benchmarks.fuzz [--inputs 100000] [--seed 1] [--readers onnx,keras]

Each reader has a valid file or directory. Every input is a copy of it in which one file was changed: cut short,
bits flipped, bytes overwritten, length fields set to extremes, parts moved, members of archives changed and packed
again, values of JSON replaced. Readers run in worker processes with 2 GB more memory than they need to start and
90 seconds for an input. A failure is printed with the command that repeats it. The tests use the same mutations
(`tests/test_hostile_files.py`).
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY = 2 * 1024**3
SECONDS = 90.0
FILES = dict[str, bytes]


# --- mutations -------------------------------------------------------------------------------------------------


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _flip(content: bytes, rng: random.Random) -> bytes:
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def _overwrite(content: bytes, rng: random.Random) -> bytes:
    start, size = rng.randrange(len(content)), rng.choice((1, 2, 4, 16, 256))
    fill = rng.choice((rng.randbytes(size), b"\0" * size, b"\xff" * size, b"[" * size))
    return content[:start] + fill + content[start + size :]


EXTREMES = (0, 1, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)


def _length(content: bytes, rng: random.Random) -> bytes:
    """A number of 2, 4 or 8 bytes, in either order, set to an extreme; most length fields stand near the ends."""
    size = rng.choice((2, 4, 8))
    number: bytes = (rng.choice(EXTREMES) % 2 ** (8 * size)).to_bytes(size, rng.choice(("little", "big")))
    near = rng.randrange(min(len(content), 256))
    start = rng.choice((near, len(content) - near, rng.randrange(len(content))))
    return content[:start] + number + content[start + size :]


def _splice(content: bytes, rng: random.Random) -> bytes:
    """A part moved, repeated or left out."""
    start, size = rng.randrange(len(content)), rng.choice((1, 8, 64, 1024))
    part, to = content[start : start + size], rng.randrange(len(content))
    kinds: tuple[bytes, ...] = (
        content[:to] + part + content[to:],
        content[:start] + content[start + size :],
        content[:to] + part + content[to + size :],
    )
    return rng.choice(kinds)


BYTES = (_cut, _flip, _flip, _overwrite, _length, _length, _splice)
DEEP: Any = "deep"
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 0.5, 1e308, float("nan"), float("inf"), 2**31, 2**63, 2**64, 10**400, "", "x",
    "NaN", "x" * 1000, "a\0b", "\ud800", "../../etc/passwd", "/", [], {}, [[]], [0] * 50, {"": None}, DEEP,
)  # fmt: skip


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            _places(value[key], found)
    return found


def _json(value: Any, rng: random.Random) -> bytes:
    """A value somewhere in JSON replaced, removed, or put under another name."""
    places = _places(value, [])
    if not places:
        return json.dumps(rng.choice(VALUES[:-1])).encode()
    holder, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.1:
        del holder[key]
    elif kind < 0.2 and isinstance(holder, dict):
        holder[rng.choice(("", "x", f"{key} "))] = holder.pop(key)
    else:
        holder[key] = rng.choice(VALUES)
    return json.dumps(value).encode().replace(b'"deep"', b"[" * 5000 + b"]" * 5000)


def _as_json(content: bytes) -> Any:
    if content[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(content)
    except ValueError:
        return None


def _zip(content: bytes, rng: random.Random) -> bytes:
    """A member changed, removed or doubled; the archive itself stays in order."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(made, "w") as target:
        members = [(one, source.read(one)) for one in source.infolist()]
        chosen, kind = rng.randrange(len(members)), rng.random()
        for place, (member, inner) in enumerate(members):
            if place == chosen and kind < 0.05:
                continue
            changed = mutated(inner, rng) if place == chosen and kind > 0.1 else inner
            fresh = zipfile.ZipInfo(member.filename)
            fresh.compress_type = rng.choice((member.compress_type, zipfile.ZIP_DEFLATED))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                target.writestr(fresh, changed)
                if place == chosen and 0.05 < kind < 0.1:
                    target.writestr(fresh, mutated(inner, rng))
    return made.getvalue()


def _safetensors(content: bytes, rng: random.Random) -> bytes:
    """The header changed, its length right."""
    size = int.from_bytes(content[:8], "little")
    header = _json(json.loads(content[8 : 8 + size]), rng)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The content with one change, of a kind that its format admits."""
    if not content:
        return rng.randbytes(rng.randrange(16))
    deeper = rng.random() < 0.6
    if deeper and content.startswith(b"PK\x03\x04"):
        return _zip(content, rng)
    if deeper and content[8:9] == b"{" and int.from_bytes(content[:8], "little") < len(content):
        return _safetensors(content, rng)
    if deeper and content.startswith(b"\x1f\x8b"):
        return gzip.compress(mutated(gzip.decompress(content), rng), 1)
    if deeper and (value := _as_json(content)) is not None:
        return _json(value, rng)
    if deeper and content[:1] == b"{" and b"\n" in content:  # JSON lines
        lines = content.split(b"\n")
        place = rng.randrange(len(lines))
        value = _as_json(lines[place])
        lines[place] = rng.choice(BYTES)(lines[place] or b"{", rng) if value is None else _json(value, rng)
        return b"\n".join(lines)
    return rng.choice(BYTES)(content, rng)


# --- readers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """How to make a valid directory, how to read it, and whether the reader also writes into it."""

    make: Callable[[Path], object]
    read: Callable[[Path], object]


READERS: dict[str, Reader] = {}


def reader(name: str, make: Callable[[Path], object], read: Callable[[Path], object]) -> None:
    READERS[name] = Reader(make, read)


def _mlp() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))


def _cnn() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 1))


def _model(name: str) -> Callable[[Path], object]:
    def read(place: Path) -> object:
        from engram.models.open.door import open_view

        return open_view(place / name, input_shape=(1, 4, 4)).network.digest()

    return read


def _state(name: str, *, old: bool = False, nested: bool = False) -> Callable[[Path], None]:
    def make(place: Path) -> None:
        import torch

        state: Any = _mlp().state_dict()
        content = {"epoch": 3, "state_dict": state} if nested else state
        torch.save(content, place / name, _use_new_zipfile_serialization=not old)

    return make


def _tensors(place: Path) -> None:
    from safetensors.torch import save_file

    save_file(_mlp().state_dict(), place / "model.safetensors")


def _config(place: Path) -> None:
    _tensors(place)
    (place / "config.json").write_text('{"architectures": ["Net"], "hidden_sizes": [6, 4]}')


def _exported(place: Path) -> None:
    import torch

    torch.export.save(torch.export.export(_cnn().eval(), (torch.rand(1, 1, 4, 4),)), place / "model.pt2")


def _onnx(place: Path) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(_cnn().eval(), (torch.rand(1, 1, 4, 4),), place / "model.onnx", dynamo=False)


def _skops(place: Path) -> None:
    import numpy as np
    import skops.io
    from sklearn.neural_network import MLPClassifier

    inputs = np.random.default_rng(0).random((20, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLPClassifier((6,), max_iter=3).fit(inputs, np.arange(20) % 2)
    skops.io.dump(model, place / "model.skops")


LAYERS = [
    {"class_name": "InputLayer", "config": {"name": "input", "batch_shape": [None, 4, 4, 1]}},
    {"class_name": "Flatten", "config": {"name": "flatten"}},
    {"class_name": "Dense", "config": {"name": "a", "units": 6, "use_bias": True, "activation": "relu"}},
    {"class_name": "Dense", "config": {"name": "b", "units": 1, "use_bias": True, "activation": "sigmoid"}},
]
KERAS = {"class_name": "Sequential", "config": {"name": "net", "layers": LAYERS}}


def _weights(group: Any, names: tuple[str, str]) -> None:
    import numpy as np

    generator = np.random.default_rng(0)
    for name, shape in zip(names, ((16, 6), (6, 1)), strict=True):
        for part, values in (("kernel:0", generator.random(shape, np.float32)), ("bias:0", np.ones(shape[1]))):
            new = f"{name}/vars/{int(part == 'bias:0')}"
            place = new if names[0] == "dense" else f"{name}/{name}/{part}"
            group[place] = values.astype(np.float32)


def _h5(place: Path) -> None:
    import h5py

    with h5py.File(place / "model.h5", "w") as file:
        file.attrs["model_config"] = json.dumps(KERAS)
        _weights(file.create_group("model_weights"), ("a", "b"))


def _keras(place: Path) -> None:
    import h5py

    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        _weights(file.create_group("layers"), ("dense", "dense_1"))
    with zipfile.ZipFile(place / "model.keras", "w") as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", json.dumps(KERAS))
        archive.writestr("model.weights.h5", content.getvalue())


reader("state_dict", _state("model.pt"), _model("model.pt"))
reader("checkpoint", _state("model.pt", nested=True), _model("model.pt"))
reader("legacy", _state("model.pth", old=True), _model("model.pth"))
reader("safetensors", _tensors, _model("model.safetensors"))
reader("config", _config, _model(""))
reader("pt2", _exported, _model("model.pt2"))
reader("onnx", _onnx, _model("model.onnx"))
reader("skops", _skops, _model("model.skops"))
reader("keras", _keras, _model("model.keras"))
reader("h5", _h5, _model("model.h5"))


def _pixels() -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(0, 255, (8, 6, 6), np.uint8)


def _npz(place: Path) -> None:
    import numpy as np

    np.savez_compressed(place / "data.npz", images=_pixels(), labels=np.arange(8) % 2)


def _vectors(place: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"embeddings": torch.rand(8, 5), "labels": torch.arange(8) % 2}, place / "data.safetensors")


def _csv(place: Path) -> None:
    rows = [f"{age},{age / 7:.3f},{('a', 'b', 'c')[age % 3]},{age % 2}" for age in range(12)]
    (place / "data.csv").write_text("\n".join(["age,rate,kind,label", *rows]) + "\n")


def _idx(place: Path) -> None:
    import numpy as np

    raw = place / "MNIST" / "raw"
    raw.mkdir(parents=True)
    header = bytes([0, 0, 8, 3]) + b"".join(side.to_bytes(4, "big") for side in (8, 6, 6))
    (raw / "train-images-idx3-ubyte").write_bytes(header + _pixels().tobytes())
    labels = bytes([0, 0, 8, 1]) + (8).to_bytes(4, "big") + np.arange(8, dtype=np.uint8).tobytes()
    (raw / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def _cifar(place: Path) -> None:
    import pickle

    import numpy as np

    folder = place / "cifar-10-batches-py"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (2, 3072), np.uint8)
    for number, protocol in ((1, 2), (2, 5)):
        content = {b"data": pixels, b"labels": [3, 7], b"batch_label": b"one"}
        (folder / f"data_batch_{number}").write_bytes(pickle.dumps(content, protocol))


def _cifar_binary(place: Path) -> None:
    folder = place / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(bytes([3]) + bytes(3072) + bytes([7]) + bytes(3072))


def _folder(place: Path) -> None:
    from PIL import Image

    for number, suffix in enumerate(("png", "jpg", "gif", "bmp", "tif", "webp", "ppm")):
        inner = place / "pictures" / ("cat", "dog")[number % 2]
        inner.mkdir(parents=True, exist_ok=True)
        Image.fromarray(_pixels()[number]).convert("RGB").save(inner / f"{number}.{suffix}")


def _data(name: str) -> Callable[[Path], object]:
    def read(place: Path) -> object:
        from engram.data.catalog import load

        return load(name.format(place=place), root=place).images.sum()

    return read


reader("npz", _npz, _data("npz:{place}/data.npz"))
reader("csv", _csv, _data("csv:{place}/data.csv"))
reader("vectors", _vectors, _data("safetensors:{place}/data.safetensors"))
reader("idx", _idx, _data("mnist"))
reader("cifar", _cifar, _data("cifar10"))
reader("cifar-binary", _cifar_binary, _data("cifar10"))
reader("folder", _folder, _data("folder:{place}/pictures@3x5x5"))


def _run(place: Path) -> None:
    from engram.attacks.registry import make_attack
    from engram.cli.options import OPTIONS_FILE
    from engram.models.open.door import open_view
    from engram.pipeline import attack

    _state("model.pt")(place)
    view = open_view(place / "model.pt", input_shape=(1, 4, 4))
    settings = {"candidates": 4, "steps": 2, "restarts": 2, "prior": 0.0}
    attack(make_attack(view, settings=settings), directory=place / "run", model="model.pt")
    moment = {"step": 2, "seconds": 0.1, "candidates": 4, "sure": 1, "counts": None}
    (place / "run" / "timeline.jsonl").write_text(json.dumps(moment) + "\n" + json.dumps(moment) + "\n")
    options = {
        "input_shape": "1x4x4",
        "n": None,
        "mean": "auto",
        "baselines": "none",
        "images": None,
        "data": None,
    }
    (place / "run" / OPTIONS_FILE).write_text(json.dumps(options))


def _read_run(place: Path) -> object:
    """Watch it, load its result, and resume it for a moment, as `watch`, `score` and `--resume` do."""
    import os

    from engram.attacks.reconstruction import Reconstruction
    from engram.attacks.registry import make_attack
    from engram.auditing.record import Timeline
    from engram.auditing.watch import Watcher, live_page
    from engram.cli.reconstruct import view as shown
    from engram.core.errors import EngramError
    from engram.models.open.door import open_view
    from engram.pipeline import attack

    here, run = Path.cwd(), place / "run"
    os.chdir(place)  # where the record's model is
    try:
        for look in (
            lambda: (live_page(status := Watcher(run).look(), 1.0), shown(status)),
            lambda: Reconstruction.load(run / "reconstruction.safetensors"),
        ):
            try:
                look()
            except EngramError:
                continue
        chosen = make_attack(open_view(Path("model.pt"), input_shape=(1, 4, 4)), resume_from=run)
        timeline = Timeline(chosen, None, None, run / "timeline.jsonl")
        timeline.resume()
        return attack(chosen, seconds=0.02, directory=run, resume=True, observers=[timeline])
    finally:
        os.chdir(here)


def _read_options(place: Path) -> object:
    """The options of a run, as a command takes them up with --resume."""
    from typer.main import get_command

    from engram.cli.app import app
    from engram.cli.options import remembered

    command: Any = get_command(app)
    context = command.commands["audit"].make_context("audit", [str(place / "model.pt"), "-o", str(place / "run")])
    return remembered(context, place / "run", resume=True)


def _card(place: Path) -> None:
    from engram.data.choice import DataChoice
    from engram.models.tasks import Binary
    from engram.pipeline import build_target
    from engram.training.recipe import MLPSpec, Recipe

    choice = DataChoice(name="circle", labels="identity", n=8)
    build_target(choice, MLPSpec(inputs=2, widths=(4,)), Recipe(epochs=2), Binary(), directory=place / "target")
    shutil.rmtree(place / "target" / "nothing", ignore_errors=True)
    for left in ("snapshot.safetensors", "metrics.jsonl"):
        (place / "target" / left).unlink()


def _read_card(place: Path) -> object:
    from engram.training.target import open_target

    found = open_target(place / "target")
    return None if found.card is None else found.card.data.load()


def _trials(place: Path) -> None:
    row = {"number": 0, "state": "complete", "objective": 0.5, "params": {"steps": 3}, "seconds": 1.0}
    rows = [{**row, "number": number} for number in range(3)]
    (place / "trials.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (place / "run.json").write_text(json.dumps({"sweep": {"objective": "blind"}, "trials": 3}))


def _read_trials(place: Path) -> object:
    from contextlib import redirect_stdout

    from engram.cli.sweep import show_trials

    with redirect_stdout(io.StringIO()):
        show_trials(place, as_json=False)
    return None


SPACE = 'recipe = "haim2022"\n[fixed]\nsteps = 30\n[search.lr_images]\nlow = 1e-5\nhigh = 1.0\nlog = true\n'


def _read_space(place: Path) -> object:
    from engram.sweep.space import read_space

    return read_space(place / "space.toml")


reader("run", _run, _read_run)
reader("options", _run, _read_options)
reader("card", _card, _read_card)
reader("trials", _trials, _read_trials)
reader("space", lambda place: (place / "space.toml").write_text(SPACE), _read_space)


# --- trying ----------------------------------------------------------------------------------------------------

ONLY = {"run": ("run/",), "options": ("run/options.json",)}
"""Of these only some files are changed; of all others, every one."""


def made(name: str, place: Path) -> FILES:
    """A valid example of a reader's files, by path; the reader must accept it."""
    READERS[name].make(place)
    READERS[name].read(place)
    shutil.rmtree(place)
    place.mkdir()
    READERS[name].make(place)
    found = sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


def changed(name: str, files: Mapping[str, bytes], number: int, seed: int) -> FILES:
    """The input of that number: all files, one of them changed."""
    rng = random.Random(f"{seed}/{name}/{number}")
    open_to = [path for path in files if path.startswith(ONLY.get(name, ("",)))]
    chosen = rng.choice(open_to)
    return {**files, chosen: mutated(files[chosen], rng)}


def problem(name: str, files: Mapping[str, bytes], place: Path) -> str | None:
    """What went wrong, beside an error in words; `place` is emptied and filled first."""
    from engram.core.errors import EngramError

    shutil.rmtree(place, ignore_errors=True)
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            READERS[name].read(place)
    except EngramError as error:
        return None if str(error).strip() else "an error without a message"
    except Exception as error:  # anything else would be a traceback
        frames = [one for one in traceback.extract_tb(error.__traceback__) if "engram" in one.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        return f"{type(error).__name__} at {where}: {str(error)[:160]}"
    return None


def work(name: str, first: int, last: int, seed: int) -> None:
    """The worker: a line for every input, flushed, so that a hang or a death shows where it came."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="engram-fuzz-") as folder:
        (Path(folder) / "made").mkdir()
        files = made(name, Path(folder) / "made")
        pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
        if pages:
            limit = pages * resource.getpagesize() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        print("ready", flush=True)
        for number in range(first, last):
            found = problem(name, changed(name, files, number, seed), Path(folder) / "input")
            print(json.dumps([number, found]), flush=True)


def tried(name: str, inputs: int, seed: int, first: int = 0) -> list[tuple[int, str]]:
    """The inputs of a reader in workers, one after another; a new one for each that hangs or dies."""
    failures: list[tuple[int, str]] = []
    done = first
    while done < inputs:
        command = [sys.executable, "-m", "benchmarks.fuzz", "--work", name, str(done), str(inputs), str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            patience, is_ready = 300.0, False  # until it has made its files
            while True:
                ready, _, _ = select.select([child.stdout], [], [], patience)
                line = child.stdout.readline() if ready else b""
                if not line:
                    break
                patience, is_ready = SECONDS, True
                if line.startswith(b"["):
                    number, found = json.loads(line)
                    done = number + 1
                    if found is not None:
                        failures.append((number, found))
            hung = child.poll() is None and not ready
            child.kill()
            told = child.stderr.read().decode(errors="replace").strip().splitlines()
            if not is_ready:
                raise RuntimeError(f"the worker of {name} could not start: {told[-1:]}")
            if done < inputs:
                cause = f"no answer within {patience:.0f} s" if hung else f"died ({child.wait()}) {told[-1:]}"
                failures.append((done, cause))
                done += 1
            child.wait()
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="in all, divided between the readers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--readers", default=",".join(READERS))
    parser.add_argument("--one", type=int, help="try this input of one reader alone, in this process")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        name, *numbers = given.work
        work(name, *map(int, numbers))
        return
    names = given.readers.split(",")
    if given.one is not None:
        with tempfile.TemporaryDirectory(prefix="engram-fuzz-") as folder:
            place = Path(folder)
            (place / "made").mkdir()
            files = changed(names[0], made(names[0], place / "made"), given.one, given.seed)
            print(problem(names[0], files, place / "input") or "an error in words, or a result")
        return
    each, failed = -(-given.inputs // len(names)), 0
    for name in names:
        started = time.monotonic()
        failures = tried(name, each, given.seed)
        failed += len(failures)
        print(
            f"{name:14s} {each:7,d} inputs, {len(failures)} failures, {time.monotonic() - started:.0f} s",
            flush=True,
        )
        kinds = Counter(cause for _, cause in failures)
        for cause, count in kinds.most_common():
            number = next(place for place, other in failures if other == cause)
            print(f"    {count} x {cause}")
            print(f"        python -m benchmarks.fuzz --seed {given.seed} --readers {name} --one {number}")
    print(f"{each * len(names):,} inputs, {failed} failures")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
