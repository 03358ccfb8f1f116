"""Blind confidence with smooth activations: do candidates that look confident show training images?

    python -m benchmarks.smooth_confidence [--data-root DIR]

Networks of 300 and 100 neurons learn 50 images of CIFAR-10 in two classes, from a small start as in the papers
and from an ordinary one with Adam. Prints, for every activation, how many candidates are confident and how many
of these show a training image (NCC > 0.8).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import nn

import engram
from benchmarks.membership import DATA
from benchmarks.ordinary import SCRIPTS
from engram.scoring.curves import REAL, best_likeness

SEED, N = 41, 50
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "relu": nn.ReLU,
}
STARTS = {"small start": ("relu", 600), "Adam": ("binary-adam", 100)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=DATA)
    root = parser.parse_args(arguments).data_root
    print("| activation | training | at 90 %, real | at 50 %, real |\n|---|---|---|---|")
    for name, activation in ACTIVATIONS.items():
        for start, (script, epochs) in STARTS.items():
            chosen = replace(
                SCRIPTS[script], activation=activation, name=name, widths=(300, 100), epochs=epochs, n=N
            )
            data = engram.DataChoice(name="cifar10", labels=chosen.labels, n=N, seed=SEED).load(root)
            inputs = data.train.images - data.mean
            record = engram.audit(
                dict(chosen.trained(inputs, data.train.labels, SEED).state_dict()),
                input_shape=(3, 32, 32),
                activation=name,
                settings=engram.EngineSettings(restarts=2, steps=150),
                baselines="none",
            )
            found = record.blind.found
            assert found.scores is not None
            real = best_likeness(found.images, inputs) > REAL
            counts = [
                f"{int((found.scores > level).sum())}, {int(real[found.scores > level].sum())}"
                for level in (0.9, 0.5)
            ]
            print(f"| {name} | {start} | {counts[0]} | {counts[1]} |", flush=True)


if __name__ == "__main__":
    main()
