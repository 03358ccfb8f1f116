"""Membership on ordinary targets: `engram.membership` beside a loss threshold, LiRA and RMIA.

    python -m benchmarks.membership [--targets mlp10,mlp1,cnn,...] [--seeds 1,2,3] [--out runs/membership]

Every target has a pool of 2n records; a seed makes half of them members, the others are the control. Shadow models
are trained by the target's own recipe on other halves of the same pool, and serve every seed. Prints
true-positive rates at false-positive rates of 0 and 1 %, AUC and processor seconds, and writes them as JSON with a
plot. A run that is killed continues where it was.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor, nn

import engram
from benchmarks.membership_targets import TARGETS, RecordPool, TargetPlan, train
from benchmarks.shadow_tests import offline_lira, online_lira, rmia
from engram.core import files
from engram.core.runs import versions
from engram.members.layers import Margin
from engram.members.membership import margin_of
from engram.models.tasks import infer_task
from engram.scoring.curves import Roc, roc

DATA = Path(__file__).parents[2] / "shared" / "data"
FIRST_SHADOW = 1000
FEWER = 16


@dataclass(frozen=True, eq=False)
class Shadows:
    """Margins [s, 2n] of shadow models, who was in their training, and the processor seconds of each."""

    margins: Tensor
    members: Tensor
    seconds: Tensor

    def first(self, count: int) -> Shadows:
        return Shadows(self.margins[:count], self.members[:count], self.seconds[:count])


def margins_of(plan: TargetPlan, model: nn.Module, pool: RecordPool) -> Tensor:
    """[2n]; where training flipped images, the mean with the flipped one."""
    margin = _margin(model, pool)
    views = [pool.inputs, pool.inputs.flip(-1)] if plan.augmented else [pool.inputs]
    with torch.no_grad():
        found = [
            torch.cat([margin(model(some), own) for some, own in zip(*_batches(view, pool.labels), strict=True)])
            for view in views
        ]
    return torch.stack(found).mean(0)


def _batches(inputs: Tensor, labels: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return torch.split(inputs, 250), torch.split(labels, 250)


def _margin(model: nn.Module, pool: RecordPool) -> Margin:
    with torch.no_grad():
        return margin_of(infer_task(model(pool.inputs[:2]).shape[1]))


def shadows_of(name: str, plan: TargetPlan, pool: RecordPool, out: Path) -> Shadows | None:
    """Train what is not yet there."""
    path = out / f"shadows-{name}.safetensors"
    known = files.read_tensors(path) if path.exists() else {}
    rows = list(known.get("margins", torch.zeros(0)))
    seconds = list(known.get("seconds", torch.zeros(0)))
    for index in range(len(rows), plan.shadows):
        seed = FIRST_SHADOW + index
        chosen = pool.members(seed)
        started = time.process_time()
        model = train(plan, pool.inputs[chosen], pool.labels[chosen], seed)
        rows.append(margins_of(plan, model, pool))
        seconds.append(torch.tensor(time.process_time() - started))
        files.write_tensors(path, {"margins": torch.stack(rows), "seconds": torch.stack(seconds)})
        print(f"       {name}: shadow model {index + 1} of {plan.shadows}", flush=True)
    if not plan.shadows:
        return None
    members = torch.stack([pool.members(FIRST_SHADOW + index) for index in range(len(rows))])
    return Shadows(torch.stack(rows), members, torch.stack(seconds))


def measure(name: str, seed: int, pool: RecordPool, shadows: Shadows | None) -> dict[str, Any]:
    """Train one target and ask which records it has seen, in every way."""
    plan = TARGETS[name]
    chosen = pool.members(seed)
    started = time.process_time()
    model = train(plan, pool.inputs[chosen], pool.labels[chosen], seed)
    training = time.process_time() - started
    started = time.process_time()
    found = engram.membership(model, *((pool.inputs[some], pool.labels[some]) for some in (chosen, ~chosen)))
    tests = {"engram": _row(found.roc, time.process_time() - started)}
    started = time.process_time()
    margins = margins_of(plan, model, pool)
    tests["loss threshold"] = _row(roc(margins[chosen], margins[~chosen]), time.process_time() - started)
    counts = () if shadows is None else sorted({FEWER, len(shadows.margins)})
    for some in (shadows.first(count) for count in counts if shadows is not None):
        count = len(some.margins)
        for test, score in (("offline LiRA", offline_lira), ("online LiRA", online_lira), ("RMIA", rmia)):
            scores = score(margins, some.margins, some.members)
            tests[f"{test} {count}"] = _row(roc(scores[chosen], scores[~chosen]), float(some.seconds.sum()))
    margin = torch.cat([margins[chosen], margins[~chosen]]) > 0
    return {
        "target": name,
        "seed": seed,
        "records": plan.n,
        "train_accuracy": float(margin[: plan.n].double().mean()),
        "held_out_accuracy": float(margin[plan.n :].double().mean()),
        "outcome": found.to_json()["outcome"],
        "epsilon_lower": found.epsilon_lower,
        "tests": tests,
        "layers": found.layers_json(),
        "training_seconds": training,
    }


def _row(curve: Roc, seconds: float) -> dict[str, Any]:
    return {
        "tpr_at_0": curve.at(0),
        "tpr_at_1%": curve.at(0.01),
        "auc": curve.auc,
        "seconds": seconds,
        "fpr": curve.false_positive.tolist(),
        "tpr": curve.true_positive.tolist(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and spread over the seeds, a line per target and test."""
    lines = ["| target | test | TPR at 0 | at 1 % | AUC | processor seconds |", "|---|---|---|---|---|---|"]
    for target in dict.fromkeys(row["target"] for row in rows):
        own = [row for row in rows if row["target"] == target]
        for test in own[0]["tests"]:
            cells = []
            for key, digits in (("tpr_at_0", 2), ("tpr_at_1%", 2), ("auc", 3)):
                values = [row["tests"][test][key] for row in own]
                spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
                cells.append(f"{mean(values):.{digits}f}{spread}")
            cells.append(f"{mean(row['tests'][test]['seconds'] for row in own):,.0f}")
            lines.append(f"| {target} | {test} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """ROC curves on logarithmic axes, a panel per target, of the first seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    first = {row["target"]: row for row in reversed(rows)}
    names = list(dict.fromkeys(row["target"] for row in rows))
    figure, axes = pyplot.subplots(1, len(names), figsize=(4 * len(names), 4), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        for test, one in first[name]["tests"].items():
            floor = 0.5 / first[name]["records"]
            false, true = ([max(value, floor) for value in one[key]] for key in ("fpr", "tpr"))
            axis.plot(false, true, label=test, linewidth=2.5 if test == "engram" else 1)
        axis.set(xscale="log", yscale="log", title=name, xlabel="false-positive rate", ylabel="true-positive rate")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"some of {', '.join(TARGETS)}")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--out", type=Path, default=Path("runs/membership"))
    parser.add_argument("--data-root", type=Path, default=DATA)
    parser.add_argument("--no-shadows", action="store_true", help="leave LiRA and RMIA out")
    chosen = parser.parse_args(arguments)
    files.prepare_directory(chosen.out)
    rows: list[dict[str, Any]] = []
    for name in chosen.targets.split(","):
        plan = TARGETS[name]
        pool = RecordPool.of(plan, chosen.data_root, chosen.out)
        shadows = None if chosen.no_shadows else shadows_of(name, plan, pool, chosen.out)
        for seed in map(int, chosen.seeds.split(",")):
            rows.append(row := measure(name, seed, pool, shadows))
            accuracy = f"accuracy {row['train_accuracy']:.2f}, held-out {row['held_out_accuracy']:.2f}"
            print(f"{name} seed {seed}: {row['outcome']}; {accuracy}", flush=True)
            for test, one in row["tests"].items():
                rates = "  ".join(f"{rate} {one[rate]:.3f}" for rate in ("tpr_at_0", "tpr_at_1%", "auc"))
                print(f"    {test:16s} {rates}  {one['seconds']:8.1f} s", flush=True)
            files.write_json(chosen.out / "membership.json", {"versions": versions(), "rows": rows})
    print(table(rows))
    files.write_bytes(chosen.out / "membership.md", (table(rows) + "\n").encode())
    plot(rows, chosen.out / "membership.png")


if __name__ == "__main__":
    main()
