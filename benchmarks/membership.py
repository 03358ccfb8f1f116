"""Membership on ordinary targets: `engram.membership` beside a loss threshold, LiRA and RMIA.

    python -m benchmarks.membership [--targets mlp10,mlp1,cnn,...] [--seeds 1,2,3] [--out runs/membership]
    python -m benchmarks.membership --unseen --targets mlp10,cnn

Every target has a pool of 2n records; a seed makes half of them members, the others are the control. Shadow models
are trained by the target's own recipe on other halves of the same pool, and serve every seed. Prints
true-positive rates at false-positive rates of 0 and 1 %, AUC and processor seconds, and writes them as JSON with a
plot. A run that is killed continues where it was.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from scipy.stats import ks_2samp
from torch import Tensor, nn

import engram
from benchmarks.membership_targets import TARGETS, RecordPool, TargetPlan, train
from benchmarks.shadow_tests import offline_lira, online_lira, rmia
from engram.core import files
from engram.core.runs import versions
from engram.members.layers import Margin
from engram.members.membership import margin_of
from engram.models.tasks import infer_task
from engram.scoring.curves import Roc, epsilon_lower, roc

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


def unseen(name: str, root: Path, splits: int = 100) -> dict[str, Any]:
    """A target asked about records that it never saw, split at random into "records" and "controls".

    The scores do not depend on the split: only the pool enters them. So one run serves all splits.
    """
    plan = TARGETS[name]
    choice = engram.DataChoice(name=plan.data, labels=plan.labels, n=plan.n, seed=1)
    data, others = choice.load(root), choice.load_test(root)
    assert others is not None
    model = train(plan, data.train.images - data.mean, data.train.labels, 1)
    fresh = others.take(torch.randperm(len(others), generator=torch.Generator().manual_seed(0))[: 2 * plan.n])
    inputs, labels = fresh.images - data.mean, fresh.labels
    found = engram.membership(model, (inputs[: plan.n], labels[: plan.n]), (inputs[plan.n :], labels[plan.n :]))
    scores = torch.cat([found.train, found.held_out])
    areas, called, uniform = [], 0, []
    for seed in range(splits):
        order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed))
        own, other = scores[order[: plan.n]], scores[order[plan.n :]]
        curve = roc(own, other)
        split = replace(found, train=own, held_out=other, roc=curve, epsilon_lower=epsilon_lower(own, other))
        areas.append(curve.auc)
        called += split.leaks
        # p-values are ranks among a finite control, so they are uniform if both sets have one distribution
        uniform.append(float(ks_2samp(own.numpy(), other.numpy()).pvalue))
    return {
        "target": name,
        "splits": splits,
        "auc_mean": mean(areas),
        "auc_spread": stdev(areas),
        "auc_of_the_first": areas[0],
        "leaks_called": called,
        "ks_below_5%": sum(value < 0.05 for value in uniform),
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
    parser.add_argument("--unseen", action="store_true", help="ask the targets about records that they never saw")
    parser.add_argument("--no-shadows", action="store_true", help="leave LiRA and RMIA out")
    chosen = parser.parse_args(arguments)
    files.prepare_directory(chosen.out)
    if chosen.unseen:
        nulls = [unseen(name, chosen.data_root) for name in chosen.targets.split(",")]
        for row in nulls:
            print("  ".join(f"{key} {value:.3g}" if key != "target" else str(value) for key, value in row.items()))
        files.write_json(chosen.out / "unseen.json", {"versions": versions(), "rows": nulls})
        return
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
