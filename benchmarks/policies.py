"""The release decision: three policies on four audits, each made twice.

    python -m benchmarks.policies [--steps 40] [--out runs/policies]

The models are networks of CIFAR-10, 200 images in ten classes: trained with Adam; with flips and shifts; by DP-SGD
with epsilon 8; and the last with a control of 20 held-out images in place of 200. The policies are those of
examples/policies, without the least budget: an attack of so many steps repeats to the bit, one of so many seconds
does not. Fails unless both audits give the same decisions with the same numbers. Prints a table; writes JSON too.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import engram
from benchmarks.membership import DATA
from benchmarks.ordinary import SCRIPTS
from engram.auditing.policy import Decision, Policy
from engram.core import files
from engram.core.runs import versions
from engram.defences.training import Fit, privately_fitted, started
from engram.models.tasks import Multiclass

SEED, N = 41, 200
EXAMPLES = Path(__file__).parents[1] / "examples" / "policies"
POLICIES = ("publish", "internal", "blind")
MODELS = {
    "Adam": ("adam", 200),
    "Adam, flips and shifts": ("adam-augmented", 200),
    "DP-SGD, epsilon 8": ("private", 200),
    "the same, small control": ("private", 20),
}


def policies() -> dict[str, Policy]:
    loaded = {name: Policy.load(EXAMPLES / f"{name}.toml") for name in POLICIES}
    return {name: replace(policy, smallest_budget=None) for name, policy in loaded.items()}


def network_of_three() -> nn.Module:
    layers = nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def privately_trained(inputs: Tensor, labels: Tensor) -> nn.Module:
    fit = Fit(epsilon=8.0, seed=SEED)
    return privately_fitted(started(network_of_three, SEED), inputs, labels, Multiclass(10), fit)[0]


def decided(script: str, control: int, steps: int, root: Path) -> dict[str, Decision]:
    """Train, audit, decide by every policy."""
    chosen = replace(SCRIPTS["adam" if script == "private" else script], n=N, widths=(256, 128))
    data = engram.DataChoice(name="cifar10", labels=chosen.labels, n=chosen.n, seed=SEED).load(root)
    inputs, labels = data.train.images - data.mean, data.train.labels
    network = privately_trained(inputs, labels) if script == "private" else chosen.trained(inputs, labels, SEED)
    others = torch.randperm(len(data.held_out), generator=torch.Generator().manual_seed(SEED))[:control]
    record = engram.audit(
        dict(network.state_dict()),
        input_shape=(3, 32, 32),
        activation=chosen.name,
        train=data.train,
        held_out=data.held_out.take(others.sort().values),
        settings=engram.EngineSettings(restarts=2, steps=steps),
    )
    return {name: policy.decide(record) for name, policy in policies().items()}


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = ["| model | policy | decision | decided by | measured |", "|---|---|---|---|---|"]
    for model, decisions in rows.items():
        for name, one in decisions.items():
            values = {rule["rule"]: f"{rule['value']}, {rule['limit']}" for rule in one["rules"]}
            measured = values.get(one["decided_by"], f"{len(values)} rules hold")
            lines.append(f"| {model} | {name} | {one['outcome']} | {one['decided_by']} | {measured} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="of each of two starts of the attack")
    parser.add_argument("--data-root", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("runs/policies"))
    chosen = parser.parse_args(arguments)
    rows: dict[str, dict[str, Any]] = {}
    for model, (script, control) in MODELS.items():
        first, again = (decided(script, control, chosen.steps, chosen.data_root) for _ in range(2))
        if first != again:
            raise SystemExit(f"{model}: two audits gave different decisions or numbers")
        rows[model] = {name: one.to_json() for name, one in first.items()}
        for name, one in first.items():
            print(f"{model}, {name}: {one.sentence}", flush=True)
    files.prepare_directory(chosen.out)
    files.write_json(chosen.out / "policies.json", {"versions": versions(), "steps": chosen.steps, "rows": rows})
    print(table(rows))


if __name__ == "__main__":
    main()
