"""Compare two source trees: do training and attacks give the same bits?

    python -m benchmarks.same_bits OLD/src NEW/src

Trains small targets of every kind with each tree, using only the command line, attacks them, and compares the
digests of weights and reconstructions. Exit code 1 if any differ.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ENGRAM = (sys.executable, "-c", "from engram.cli.app import main; main()")
FACES = ("--data", "faces", "--labels", "gate", "-n", "20")
SMALL = ("--widths", "120,60", "--lr", "0.05", "--epochs", "600")
DECAYED = ("--init", "standard", "--weight-decay", "1e-3")
ENGINE = ("--steps", "60", "--restarts", "2")
PUBLISHED = ("--steps", "150", "--candidates", "40")
CONV = "conv3x8s2 relu flatten 60 relu 1"
WHOLE_KERNEL = "conv25x60 relu flatten 30 relu 1"


@dataclass(frozen=True)
class Target:
    """A network to train, and the attacks on it, each with a name and options for `engram reconstruct`."""

    train: tuple[str, ...]
    attacks: dict[str, tuple[str, ...]]


TARGETS = {
    "binary": Target(
        (*FACES, *SMALL),
        {"engine": ENGINE, "haim2022": ("--recipe", "haim2022", *PUBLISHED, "--dtype", "float32")},
    ),
    "multiclass": Target(
        ("--data", "npz:people.npz", "-n", "24", "--task", "multiclass", *SMALL),
        {"engine": ENGINE, "buzaglo2023": ("--recipe", "buzaglo2023", *PUBLISHED)},
    ),
    "regression": Target((*FACES, *SMALL, *DECAYED, "--task", "regression:l2"), {"engine": ENGINE}),
    "conv": Target(
        (*FACES, "--arch", CONV, "--lr", "0.1", "--epochs", "300", *DECAYED),
        {"engine": ENGINE, "buzaglo2023": ("--recipe", "buzaglo2023", *PUBLISHED)},
    ),
    "whole kernel": Target(
        (*FACES, "--arch", WHOLE_KERNEL, "--lr", "0.1", "--epochs", "300", *DECAYED), {"engine": ENGINE}
    ),
    "vectors": Target(("--data", "npz:rows.npz", "-n", "20", *SMALL), {"engine": ENGINE}),
    "flow": Target((*FACES, *SMALL, "--flow", "--loss-threshold", "1e-3"), {"engine": ENGINE}),
    "batches": Target((*FACES, *SMALL, "--batch", "5", "--bias", "all"), {}),
}


def write_data(place: Path) -> None:
    """Faces in four classes, and vectors that are not images."""
    from skimage.data import lfw_subset

    faces = np.asarray(lfw_subset(), dtype=np.float32)[:100]  # type: ignore[no-untyped-call]
    np.savez(place / "people.npz", images=faces, labels=np.arange(100) % 4)
    rows = np.random.default_rng(0).normal(size=(60, 50)).astype(np.float32)
    np.savez(place / "rows.npz", images=rows, labels=np.arange(60) % 2)


def digests(source: Path, place: Path) -> dict[str, str]:
    """SHA-256 of every file of weights and candidates that this tree writes."""
    write_data(place)
    found = {}
    for name, target in TARGETS.items():
        home = place / name.replace(" ", "-")
        _engram(source, place, "train", *target.train, "-o", str(home))
        found[f"{name}: weights"] = _digest(home / "model.safetensors")
        for attack, options in target.attacks.items():
            run = home / attack
            _engram(source, place, "reconstruct", str(home), *options, "-o", str(run))
            found[f"{name}: {attack}"] = _digest(run / "reconstruction.safetensors")
    return found


def _engram(source: Path, place: Path, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
    child = subprocess.run(
        [*ENGRAM, *arguments], cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    if child.returncode:
        sys.exit(f"{source}: engram {' '.join(arguments)}\n{child.stderr}")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(sources: Sequence[str]) -> int:
    if len(sources) != 2:
        sys.exit(__doc__)
    columns = []
    for source in map(Path, sources):
        with tempfile.TemporaryDirectory() as place:
            columns.append(digests(source, Path(place)))
    differing = 0
    for name, before in columns[0].items():
        same = before == columns[1].get(name)
        differing += not same
        print(f"{name:28s} {before[:16]} {'same' if same else columns[1].get(name, 'missing')[:16]}")
    print(f"{len(columns[0]) - differing} of {len(columns[0])} are the same")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
