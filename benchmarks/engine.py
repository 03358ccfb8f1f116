"""Published scheme and engine side by side on one target: seconds a step, good images against time, the ratio.

Run: python -m benchmarks.engine [--data faces --labels gate -n 50] [--published-seconds 60] [-o runs/bench]

Both attack the same weights in the same process, one after the other. The published scheme is literal: autograd,
float64, pixels, the authors' settings. Its time to reach the engine's count is a lower bound if it never did.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from engram import (
    AttackerView,
    Binary,
    DataChoice,
    Engine,
    EngineSettings,
    MLPSpec,
    PublishedScheme,
    Recipe,
    build_target,
    compare,
)
from engram.data.sampling import Split
from engram.loop import Budget, State, run
from engram.reconstruct.attack import Attack
from engram.reconstruct.published.settings import KNOWN_SETTINGS


def curve(scheme: Attack, data: Split, *, seconds: float | None, points: int) -> dict[str, Any]:
    """Run a scheme and score it at `points` moments; the clock stands still while scoring."""
    state: State = {}
    total = scheme.total_steps
    scored: list[dict[str, float]] = []
    spent, step = 0.0, 0
    inner = _Resumable(scheme, state)
    while step < total and (seconds is None or spent < seconds):
        part = min(total - step, -(-total // points)) if seconds is None else total - step
        solution = run(inner, Budget(steps=part, seconds=None if seconds is None else seconds / points))
        spent += solution.seconds
        step += solution.steps
        counts = {row.threshold.text: row for row in compare(scheme.reconstruction(inner.state), data).counts}
        row = counts["ncc>0.8"]
        good = counts["ssim>0.4"]
        scored.append({"seconds": spent, "step": step, "ncc>0.8": row.excess or 0, "ssim>0.4": good.excess or 0})
        print(f"  {scheme.recipe:9s} {spent:7.1f} s  step {step:6d}  excess {scored[-1]}", flush=True)
    return {"recipe": scheme.recipe, "seconds_per_step": spent / step, "curve": scored}


class _Resumable:
    """An iteration that goes on from where its last run ended."""

    def __init__(self, scheme: Attack, state: State) -> None:
        self.scheme, self.state = scheme, state
        self.step, self.finished = scheme.step, scheme.finished
        self.fingerprint, self.hint = scheme.fingerprint, scheme.hint

    def init(self) -> State:
        if not self.state:
            self.state = self.scheme.init()
        return self.state


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="faces")
    parser.add_argument("--labels", default="gate")
    parser.add_argument("-n", type=int, default=50)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--epochs", type=int, default=4000)
    parser.add_argument("--published-seconds", type=float, default=60.0)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/bench"))
    chosen = parser.parse_args(arguments)
    choice = DataChoice(name=chosen.data, labels=chosen.labels, n=chosen.n)
    data = choice.load(chosen.data_root)
    inputs = data.train.images[0].numel()
    recipe = Recipe(lr=chosen.lr, epochs=chosen.epochs)
    started = time.monotonic()
    target = build_target(choice, MLPSpec(inputs=inputs), recipe, Binary(), root=chosen.data_root)
    print(f"target {target.network.name} trained in {time.monotonic() - started:.0f} s", flush=True)
    view = AttackerView(target.network, data.train.shape, Binary())
    engine = Engine(view, EngineSettings(restarts=chosen.restarts, steps=chosen.steps))
    published = PublishedScheme(view, replace(KNOWN_SETTINGS["cifar10"], candidates=2 * chosen.n))
    fast = curve(engine, data, seconds=None, points=8)
    slow = curve(published, data, seconds=chosen.published_seconds, points=4)
    for metric in ("ncc>0.8", "ssim>0.4"):
        reached = slow["curve"][-1][metric]
        when = next((row["seconds"] for row in fast["curve"] if row[metric] >= max(reached, 1)), None)
        if when is not None:
            ratio = slow["curve"][-1]["seconds"] / when
            spent = slow["curve"][-1]["seconds"]
            print(f"{metric}: published reaches {reached:g} in {spent:.0f} s; engine in {when:.1f} s")
            print(f"  ratio {ratio:.0f}, at least" if reached <= 0 else f"  ratio {ratio:.0f}")
    print(f"seconds a step: published {slow['seconds_per_step']:.4f}, engine {fast['seconds_per_step']:.4f}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "engine.json").write_text(json.dumps({"published": slow, "engine": fast}, indent=2))
    print(f"wrote {chosen.out / 'engine.json'}")


if __name__ == "__main__":
    main()
