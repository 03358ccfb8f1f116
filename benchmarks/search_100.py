"""The papers' search, a hundred runs with random settings, against one run of the engine.

Run: python -m benchmarks.search_100 [--minutes 40] [--jobs 2] [--dtype float32] [--out runs/search100]

CIFAR-10, 50 images: the preset cifar50 at scale cpu (trained once and cached). The published scheme searches the
space of Haim et al. 2022 with twice as many candidates as images, and no trial is stopped early. Steps per trial
are cut so that all trials take about --minutes, and every cut is printed. Trials are judged and pooled without
data; then pool, best trial and engine are scored in the same way against training and held-out images. The same
command resumes a killed search. Writes search.json (the comparison), search.md (the same as a table),
search/sweep.html and the runs themselves.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import busy_note, machine
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.registry import make_attack
from engram.auditing.verdict import sweep_verdict
from engram.core.files import read_json, write_bytes, write_json
from engram.core.runs import RunDirectory
from engram.data.sets import Split
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.papers.results import markdown_table
from engram.pipeline import attack, build_target, compare
from engram.render.html import Table, render
from engram.scoring.report import ScoreReport
from engram.sweep.executors import Processes, StepPlan, plan_steps, with_steps
from engram.sweep.page import sweep_page
from engram.sweep.space import PRESETS, SweepSpec
from engram.sweep.summary import Conclusion, conclude
from engram.sweep.sweep import Sweep, drive
from engram.training.presets import Plan, plan
from engram.training.target import TargetCache, cache_root

PLAN_FILE = "plan.json"


def opened_target(planned: Plan, root: Path | None) -> AttackerView:
    """The preset's target, trained or taken from the cache."""
    target = build_target(
        planned.data,
        planned.network,
        planned.recipe,
        Binary(),
        root=root,
        cache=TargetCache(cache_root()),
        observers=[_printer("training", 500)],
    )
    assert target.card is not None
    return AttackerView(target.network, target.card.input_shape, Binary()).narrowed(DenseNetwork)


def step_plan(view: AttackerView, spec: SweepSpec, executor: Processes, out: Path, seconds: float) -> StepPlan:
    """Measured once; a resumed search keeps its number of steps."""
    if (out / PLAN_FILE).exists():
        return StepPlan(**read_json(out / PLAN_FILE))
    made = plan_steps(view, spec, executor, seconds=seconds)
    write_json(out / PLAN_FILE, made.to_json())
    return made


def search(
    view: AttackerView, spec: SweepSpec, data: Split, executor: Processes, out: Path
) -> tuple[Conclusion, dict[str, Any]]:
    """All trials, their pool, and both scores."""
    sweep = Sweep(view=view, spec=spec, directory=out, model=f"{view.network.name}, 50 images", resume=True)
    started = time.monotonic()

    def show(_: Sweep, row: dict[str, Any]) -> None:
        print(f"trial {row['number']:3d} {row['state']:8s} {time.monotonic() - started:6.0f} s", flush=True)

    drive([sweep], executor, show)
    seconds = time.monotonic() - started
    found = conclude(sweep, data)
    write_bytes(out / "sweep.html", render(sweep_page(found, data.train)).encode())
    number = min(
        (row for row in found.summary["trials"] if row["state"] == "complete"), key=lambda row: row["unexplained"]
    )["number"]
    best = Reconstruction.load(sweep.trial_directory(number).reconstruction)
    sweep.close()
    assert found.score is not None
    return found, {
        "settings": found.summary["space"],
        "counts_of_trials": found.summary["counts"],
        "seconds_of_this_process": seconds,
        "seconds_of_all_trials": found.summary["seconds"],
        "pooled": scored(found.score),
        "growth": found.summary["pooled"]["growth"],
        "best_trial_judged_blind": {"number": number, **scored(compare(best, data))},
    }


def engine_run(view: AttackerView, data: Split, out: Path) -> tuple[ScoreReport, dict[str, Any]]:
    """One untuned run of the engine; always from scratch, so that its seconds cover all of it."""
    shutil.rmtree(out, ignore_errors=True)
    engine = make_attack(view)
    found, solution = attack(engine, directory=out, observers=[_printer("engine", 200)])
    report = compare(found, data, network=view.network)
    spent = {"settings": asdict(engine.settings), "steps": solution.steps, "seconds": solution.seconds}
    return report, {**spent, **scored(report)}


def good_images(report: ScoreReport) -> set[int]:
    """The training images that came back, SSIM > 0.4 as in the papers."""
    return set(report.train.sample[report.train.passing("ssim", 0.4)].tolist())


def scored(report: ScoreReport) -> dict[str, Any]:
    """What is compared: candidates, and counts with their nulls."""
    record = report.to_json()
    return {name: record[name] for name in ("candidates", "counts", "top10_mean")}


def sentence(searched: dict[str, Any], engine: dict[str, Any], metric: str = "ncc>0.8") -> str:
    """Both counts with their control, and the computing time of each."""

    def counted(part: dict[str, Any]) -> str:
        return f"{part['counts'][metric]['train']} ({part['counts'][metric]['held_out']} held-out)"

    return (
        f"{metric}: search {counted(searched['pooled'])} in {searched['seconds_of_all_trials']:,.0f} s of trials, "
        f"its best trial {counted(searched['best_trial_judged_blind'])}; engine {counted(engine)} in "
        f"{engine['seconds']:,.0f} s"
    )


HEADS = ["attack", "good (held-out)", "NCC > 0.8 (held-out)", "top-10 SSIM", "candidates", "computing seconds"]


def markdown(result: dict[str, Any]) -> str:
    """The pool of all runs, the best run judged blind, and the engine, as a table with notes."""
    searched, engine = result["search"], result["engine"]
    runs, seconds = searched["counts_of_trials"]["complete"], searched["seconds_of_all_trials"]
    rows = [
        _row(f"published scheme, {runs} runs pooled", searched["pooled"], seconds),
        _row("its best run, judged blind", searched["best_trial_judged_blind"], seconds),
        _row("engine, one run", engine, engine["seconds"]),
    ]
    notes = [
        f"{result['network']}, {result['data']['n']} images of {result['data']['name']}.",
        f"Good images in the pool that the engine does not have: {result['good_in_the_search_alone']}.",
        *result["cuts"],
    ]
    table = markdown_table(Table(HEADS, rows, "What the papers' search adds to one run of the engine."))
    return table + "\n\n" + "\n".join(f"- {note}" for note in notes) + "\n"


def _row(name: str, part: dict[str, Any], seconds: float) -> list[str]:
    top = part["top10_mean"].get("ssim")
    good, alike = (part["counts"][metric] for metric in ("ssim>0.4", "ncc>0.8"))
    return [
        name,
        f"{good['train']} ({good['held_out']})",
        f"{alike['train']} ({alike['held_out']})",
        "–" if top is None else f"{top:.3f}",
        f"{part['candidates']:,}",
        f"{seconds:,.0f}",
    ]


def _printer(what: str, every: int) -> Any:
    def observe(step: int, metrics: Any, state: Any) -> None:
        if step % every == 0:
            print(f"{what}: step {step:,}, loss {metrics['loss']:.3g}", flush=True)

    return observe


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--dtype", choices=["float32", "float64"], default="float32", help="the papers use float64"
    )
    parser.add_argument("--scale", default="cpu", help="of the target; smoke tries everything in seconds")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/search100"))
    chosen = parser.parse_args(arguments)
    planned = plan("cifar50", chosen.scale)
    view, data = opened_target(planned, chosen.data_root), planned.data.load(chosen.data_root)
    candidates = 2 * planned.data.n
    space = PRESETS["haim2022"].fixing({"candidates": candidates, "dtype": chosen.dtype})
    spec = SweepSpec(space=space, trials=chosen.trials, keep=1.0)
    executor = Processes(chosen.jobs)
    try:
        steps = step_plan(view, spec, executor, chosen.out, 60 * chosen.minutes)
        cuts = [*(f"target: {cut}" for cut in planned.cuts), steps.sentence]
        if chosen.dtype == "float32":
            cuts.append("float32 instead of float64: about half the time of a step")
        print("\n".join(cuts), flush=True)
        found, searched = search(view, with_steps(spec, steps.steps), data, executor, chosen.out / "search")
    finally:
        executor.close()
    report, engine = engine_run(view, data, chosen.out / "engine")
    assert found.score is not None
    result = {
        "schema_version": 1,
        "kind": "search against engine",
        "data": asdict(planned.data),
        "network": view.network.name,
        "cuts": cuts,
        "step_plan": steps.to_json(),
        "jobs": chosen.jobs,
        "search": searched,
        "engine": engine,
        "good_in_the_search_alone": len(good_images(found.score) - good_images(report)),
        "sentence": sentence(searched, engine),
        "verdict_of_the_search": sweep_verdict(
            found.pooled, found.score, found.summary["pooled"]["trials"]
        ).sentence,
        "machine": machine(),
        "note": busy_note(),
    }
    write_json(chosen.out / "search.json", result)
    write_bytes(chosen.out / "search.md", markdown(result).encode())
    print(result["sentence"])
    print(f"wrote {chosen.out / 'search.json'} and {RunDirectory(chosen.out / 'search').path / 'sweep.html'}")


if __name__ == "__main__":
    main()
