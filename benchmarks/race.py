"""The published scheme and the engine side by side on one target: images over time, and the ratio of times.

    python -m benchmarks.race [MODEL] [-o runs/bench] [--published-seconds 60] [--budget 30] [--metric 'ncc>0.8']

MODEL is a directory of `engram train`; without it the demo's target is trained. Writes bench.json and bench.png.
Ctrl-C keeps what was measured so far and exits with 130.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from benchmarks.machine import busy_note, machine, peak_memory_bytes
from engram.attacks.reconstruction import Attack, Reconstruction
from engram.attacks.registry import make_attack
from engram.attacks.settings import KNOWN_SETTINGS, Haim2022
from engram.cli.options import progress_bar
from engram.core import files
from engram.core.errors import ConfigError, EngramError, require
from engram.core.loop import STOP, Budget, Progress, State, StepClock, StopReason, Values, run, silent
from engram.data.sets import Split
from engram.models.networks import Network
from engram.models.open.door import open_view
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.pipeline import build_target, compare
from engram.render.figures import CurvePanel, Line, curves_figure
from engram.scoring.report import Count
from engram.training.presets import GATE
from engram.training.recipe import training_progress
from engram.training.target import Card, card_of

Curve = Sequence[tuple[float, float]]
"""(seconds, excess over held-out) each time it was scored, in order; the first is the random start."""

Kind = Literal["measured", "lower bound", "upper bound", "chance", "unknown"]


@dataclass(frozen=True)
class Ratio:
    """published_seconds / engine_seconds to `count` images.

    measured     both reached the count; the seconds are those of the first score with it
    lower bound  the published scheme recovered no image in all its seconds; the count is the engine's first
    upper bound  the engine never reached the published scheme's count in all its seconds
    chance       a random start already has the count, so reaching it means nothing; no value
    unknown      neither recovered an image, or one of them was not run; no value
    """

    metric: str
    kind: Kind
    count: float | None = None
    published_seconds: float | None = None
    engine_seconds: float | None = None

    @property
    def value(self) -> float | None:
        if self.published_seconds is None or not self.engine_seconds:
            return None
        return self.published_seconds / self.engine_seconds

    @property
    def sentence(self) -> str:
        if self.kind == "chance":
            return (
                f"{self.metric}: no ratio, a random start already has {self.count:g} or more beyond held-out, "
                "so reaching this count means nothing"
            )
        if self.value is None or self.published_seconds is None or self.engine_seconds is None:
            return f"{self.metric}: no ratio, neither scheme has an image beyond held-out yet"
        slow, fast = f"{self.published_seconds:.3g} s", f"{self.engine_seconds:.3g} s"
        if self.kind == "lower bound":
            return (
                f"{self.metric}: published has none after {slow}, the engine has {self.count:g} after {fast}: "
                f"ratio at least {self.value:.3g} (a lower bound)"
            )
        if self.kind == "upper bound":
            return (
                f"{self.metric}: published has {self.count:g} after {slow}, the engine fewer after {fast}: "
                f"ratio at most {self.value:.3g} (an upper bound)"
            )
        return (
            f"{self.metric}: published has its best, {self.count:g}, after {slow}, the engine after {fast}: "
            f"ratio {self.value:.3g}"
        )


def time_ratio(metric: str, published: Curve, engine: Curve) -> Ratio:
    """How much sooner the engine reaches the published scheme's best count of images beyond held-out.

    >>> time_ratio("ncc>0.8", [(10, 2.0), (20, 9.0), (60, 9.0)], [(1, 0.0), (4, 12.0)]).value
    5.0
    >>> time_ratio("ssim>0.4", [(1, 0.0), (60, 7.0)], [(1, 22.0), (4, 30.0)]).kind
    'chance'
    >>> none_yet = time_ratio("ncc>0.8", [(60, 0.0)], [(1, -1.0), (2, 3.0), (4, 12.0)])
    >>> none_yet.kind, none_yet.value
    ('lower bound', 30.0)
    """
    if not published or not engine:
        return Ratio(metric, "unknown")
    best = max(excess for _, excess in published)
    by_chance = max(published[0][1], engine[0][1])
    if by_chance >= max(best, 1):
        return Ratio(metric, "chance", max(best, 1))
    if best < 1:
        reached = first_time(engine, 1)
        if reached is None:
            return Ratio(metric, "unknown")
        count = next(excess for _, excess in engine if excess >= 1)
        return Ratio(metric, "lower bound", count, published[-1][0], reached)
    slow, fast = first_time(published, best), first_time(engine, best)
    if fast is None:
        return Ratio(metric, "upper bound", best, slow, engine[-1][0])
    return Ratio(metric, "measured", best, slow, fast)


def first_time(curve: Curve, count: float) -> float | None:
    """Seconds until the count is first at least `count`, or None."""
    return next((seconds for seconds, excess in curve if excess >= count), None)


def time_to_count(curve: Curve) -> list[tuple[float, float]]:
    """(count, seconds) for every new best of at least one image.

    >>> time_to_count([(1, 0.0), (2, 5.0), (3, 4.0), (4, 7.0)])
    [(5.0, 2), (7.0, 4)]
    """
    records: list[tuple[float, float]] = []
    for seconds, excess in curve:
        if excess >= 1 and (not records or excess > records[-1][0]):
            records.append((excess, seconds))
    return records


INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class TracePoint:
    """What an attack had after `step` steps and `seconds` of its own time."""

    seconds: float
    step: int
    counts: Mapping[str, Count]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """An attack from its start to its stop; seconds are its own, without scoring.

    `setup_seconds` covers planning and preparation; `peak_memory_bytes` is the process's peak up to the end.
    `cpu_seconds` counts all threads during the steps: if it is far below threads x step_seconds, the machine was
    busy with other work.
    """

    recipe: str
    settings: Mapping[str, Any]
    total_steps: int
    steps: int
    setup_seconds: float
    step_seconds: float
    cpu_seconds: float
    stopped: str
    peak_memory_bytes: int
    points: tuple[TracePoint, ...]

    @property
    def is_interrupted(self) -> bool:
        return self.stopped == INTERRUPTED

    @property
    def seconds(self) -> float:
        return self.setup_seconds + self.step_seconds

    @property
    def seconds_per_step(self) -> float | None:
        return self.step_seconds / self.steps if self.steps else None

    def curve(self, metric: str) -> Curve:
        return [(point.seconds, point.counts[metric].recovered) for point in self.points]

    def to_json(self, metrics: tuple[str, ...]) -> dict[str, Any]:
        record = {name: value for name, value in asdict(self).items() if name != "points"}
        times = {
            metric: [{"count": count, "seconds": seconds} for count, seconds in time_to_count(self.curve(metric))]
            for metric in metrics
        }
        return record | {
            "seconds": self.seconds,
            "seconds_per_step": self.seconds_per_step,
            "curve": [asdict(point) for point in self.points],
            "time_to_count": times,
        }


FIRST_MOMENT, MOMENT_GROWTH = 0.5, 1.15
"""An attack is scored after its first step, when it is still a random start, then after half a second, and then
each time the clock has grown by 15 %: no count is noticed later than that."""

Judge = Callable[[Reconstruction], Mapping[str, Count]]
"""Counts by metric, e.g. "ncc>0.8"."""


@dataclass(eq=False)
class _Scorer:
    """An observer that scores an attack from time to time; its clock stops during scoring."""

    attack: Attack
    judge: Judge
    limit: float | None
    due: float
    progress: Callable[[float], None]
    setup_seconds: float
    clock: StepClock = field(default_factory=StepClock)
    step_seconds: float = 0.0
    steps: int = 0
    points: list[TracePoint] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.setup_seconds + self.step_seconds

    @property
    def is_out_of_time(self) -> bool:
        return self.limit is not None and self.seconds >= self.limit

    def __call__(self, step: int, metrics: Values, state: State) -> object:
        _, self.step_seconds = self.clock.tick(state)
        self.steps = step
        done = step / self.attack.total_steps
        self.progress(min(1.0, done if self.limit is None else max(done, self.seconds / self.limit)))
        if step == 1 or self.seconds >= self.due:
            self.score(state)
        self.clock.tock()
        return STOP if self.is_out_of_time else None

    def score(self, state: State) -> None:
        """Does nothing if this state has already been scored."""
        if self.points and self.points[-1].step == self.steps:
            return
        counts = self.judge(self.attack.reconstruction(state))
        self.points.append(TracePoint(self.seconds, self.steps, counts))
        while self.due <= self.seconds:
            self.due *= MOMENT_GROWTH


def trace(
    attack: Attack,
    judge: Judge,
    *,
    limit: float | None = None,
    already: float = 0.0,
    first_moment: float = FIRST_MOMENT,
    progress: Callable[[float], None] = lambda share: None,
) -> Trace:
    """Run an attack to its end, or for `limit` seconds of its own; score it from time to time, and at its end.

    `already` seconds were spent on planning. Ctrl-C ends it early and keeps what was measured.
    """
    started = time.perf_counter()
    attack.init()  # its preparation is cached, so that the first step is only a step
    scorer = _Scorer(attack, judge, limit, first_moment, progress, already + time.perf_counter() - started)
    try:
        solution = run(attack, Budget(steps=attack.total_steps), observers=[scorer])
        stopped = solution.message
        if solution.reason is not StopReason.DIVERGED:
            scorer.score(solution.state)
            out_of_time = solution.reason is StopReason.STOPPED
            stopped = (StopReason.TIME_LIMIT if out_of_time else solution.reason).value
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    return Trace(
        recipe=attack.recipe,
        settings=asdict(attack.settings),
        total_steps=attack.total_steps,
        steps=scorer.steps,
        setup_seconds=scorer.setup_seconds,
        step_seconds=scorer.step_seconds,
        cpu_seconds=scorer.clock.cpu_seconds,
        stopped=stopped,
        peak_memory_bytes=peak_memory_bytes(),
        points=tuple(scorer.points),
    )


SCHEMA_VERSION, INTERRUPTED_CODE = 1, 130
METRICS = ("ssim>0.4", "ncc>0.8")
COLOURS = {"published": "tab:orange", "engine": "tab:blue"}


@dataclass(frozen=True, kw_only=True)
class RaceSettings:
    """Seconds of the published scheme, the engine's time budget, and the headline metric."""

    published_seconds: float = 60.0
    budget_seconds: float = 30.0
    metric: str = "ncc>0.8"
    first_moment: float = FIRST_MOMENT

    def __post_init__(self) -> None:
        for name in ("published_seconds", "budget_seconds", "first_moment"):
            require(getattr(self, name) > 0, name, "must be positive", getattr(self, name))
        require(self.metric in METRICS, "metric", f"must be one of {', '.join(METRICS)}", self.metric)


@dataclass(frozen=True, kw_only=True)
class Race:
    """What was measured; `published` is None if the run was interrupted before that scheme started."""

    settings: RaceSettings
    target: Mapping[str, Any]
    engine: Trace
    published: Trace | None

    @property
    def is_interrupted(self) -> bool:
        return self.published is None or self.published.is_interrupted

    def ratio(self, metric: str) -> Ratio:
        slow = [] if self.published is None else self.published.curve(metric)
        return time_ratio(metric, slow, self.engine.curve(metric))

    @property
    def paper_run_seconds(self) -> float | None:
        """Computed: the measured seconds per step times the authors' number of steps."""
        each = None if self.published is None else self.published.seconds_per_step
        return None if each is None or self.published is None else each * self.published.total_steps

    def to_json(self) -> dict[str, Any]:
        ratios = [self.ratio(metric) for metric in METRICS]
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "race",
            "interrupted": self.is_interrupted,
            "settings": {**asdict(self.settings), "moment_growth": MOMENT_GROWTH},
            "target": dict(self.target),
            "machine": machine(),
            "published_seconds_per_step": None if self.published is None else self.published.seconds_per_step,
            "engine_seconds_per_step": self.engine.seconds_per_step,
            "paper_run": {
                "kind": "computed, not measured: seconds per step x the authors' steps",
                "steps": None if self.published is None else self.published.total_steps,
                "seconds": self.paper_run_seconds,
            },
            "headline": self.settings.metric,
            "ratios": {ratio.metric: {**asdict(ratio), "ratio": ratio.value} for ratio in ratios},
            "engine": self.engine.to_json(METRICS),
            "published": None if self.published is None else self.published.to_json(METRICS),
        }

    def figure(self) -> bytes:
        """Images beyond held-out over time, both schemes, one panel per metric; held-out counts are dashed."""
        traces = {"published": self.published, "engine": self.engine}
        return curves_figure(
            [
                CurvePanel(
                    "seconds of the attack, without scoring",
                    f"images beyond held-out, {metric}",
                    [
                        line
                        for name, one in traces.items()
                        if one is not None
                        for line in _lines(name, one, metric)
                    ],
                    log=True,
                )
                for metric in METRICS
            ],
            title=f"{self.target['network']}, {self.target['n']} training images",
        )


def _lines(name: str, one: Trace, metric: str) -> tuple[Line, Line]:
    seconds, counts = [point.seconds for point in one.points], [point.counts[metric] for point in one.points]
    return (
        Line(name, seconds, [count.recovered for count in counts], COLOURS[name]),
        Line(f"{name}, held-out", seconds, [count.held_out or 0 for count in counts], COLOURS[name], dashed=True),
    )


def run_race(
    view: AttackerView[Network],
    data: Split,
    settings: RaceSettings,
    *,
    data_name: str,
    progress: Progress = silent,
    keep: Callable[[Race], None] = lambda race: None,
) -> Race:
    """The engine within its budget, then the published scheme with the authors' settings and m = 2n.

    `keep` is called with the result so far when the engine is done, so that a later kill does not lose it.
    """
    if data.train.images.ndim != 4:
        raise ConfigError("the race counts images by SSIM and NCC, so it needs images; this target takes vectors")
    if not len(data.held_out):
        raise ConfigError(
            f"all of {data.train.name} is training data, so nothing is held out to compare with; "
            "train on fewer images"
        )
    judge = _judge(data)
    started = time.perf_counter()
    planned = make_attack(view, budget=settings.budget_seconds)
    planning = time.perf_counter() - started
    engine = trace(
        planned,
        judge,
        limit=settings.budget_seconds,
        already=planning,
        first_moment=settings.first_moment,
        progress=lambda share: progress("engine", share),
    )
    target = {
        "network": view.network.name,
        "weights_sha256": view.network.digest(),
        "input_shape": list(view.input_shape),
        "data": data_name,
        "n": len(data.train),
        "held_out": len(data.held_out),
    }
    half = Race(settings=settings, target=target, engine=engine, published=None)
    keep(half)
    if engine.is_interrupted:
        return half
    published = trace(
        make_attack(view, settings=authors_settings(data_name, len(data.train))),
        judge,
        limit=settings.published_seconds,
        first_moment=settings.first_moment,
        progress=lambda share: progress("published", share),
    )
    return replace(half, published=published)


def authors_settings(data_name: str, n: int) -> Haim2022:
    """The result of the authors' search for this data set, or for CIFAR-10 if they have none; m = 2n.

    >>> authors_settings("mnist", 500).lr_images, authors_settings("faces", 50).candidates
    (0.0305, 100)
    """
    return replace(KNOWN_SETTINGS.get(data_name, KNOWN_SETTINGS["cifar10"]), candidates=2 * n)


def _judge(data: Split) -> Judge:
    def judge(found: Reconstruction) -> dict[str, Count]:
        counts = compare(found, data).counts
        return {metric: counts[metric] for metric in METRICS}

    return judge


def trained(model: Path | None, root: Path | None) -> tuple[AttackerView[Network], Card]:
    """A target trained by engram, as an attacker sees it, and its card, which names the data to score against."""
    if model is not None:
        card = card_of(model)
        if card is None:
            raise ConfigError(f"{model} does not say what it was trained on; give a directory of `engram train`")
        return open_view(model), card
    with progress_bar() as progress:
        observers = [training_progress(progress, GATE.recipe)]
        target = build_target(GATE.data, GATE.network, GATE.recipe, Binary(), root=root, observers=observers)
    assert target.card is not None
    return open_view(target.network, input_shape=target.card.input_shape), target.card


def _show(race: Race) -> None:

    table = Table("scheme", "seconds per step", "steps", "seconds", *METRICS)
    for name, one in (("published", race.published), ("engine", race.engine)):
        if one is None:
            continue
        each = "-" if one.seconds_per_step is None else f"{one.seconds_per_step:.4f}"
        best = [_best(one.curve(metric)) for metric in METRICS]
        table.add_row(name, each, f"{one.steps:,}", f"{one.seconds:.1f}", *best)
    console = Console()
    console.print(table)
    console.print("counts: images beyond held-out at the random start -> at their best")
    headline = race.settings.metric
    for metric in sorted(METRICS, key=lambda metric: metric != headline):
        console.print(race.ratio(metric).sentence, style="bold" if metric == headline else None)
    if race.published is not None and race.paper_run_seconds is not None:
        whole, minutes = race.published.total_steps, race.paper_run_seconds / 60
        console.print(f"computed, not measured: the authors' {whole:,} steps would take {minutes:.0f} min")
    if (note := busy_note()) is not None:
        console.print(f"note: {note}")


def _best(curve: Curve) -> str:
    return f"{curve[0][1]:g} -> {max(excess for _, excess in curve):g}" if curve else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--published-seconds", type=float, default=RaceSettings.published_seconds)
    parser.add_argument("--budget", type=float, default=RaceSettings.budget_seconds, help="the engine's seconds")
    parser.add_argument("--metric", default=RaceSettings.metric, help=f"headline metric: {' or '.join(METRICS)}")
    parser.add_argument("--data-root", type=Path)
    given = parser.parse_args(arguments)

    def keep(race: Race) -> None:
        files.write_json(given.out / "bench.json", race.to_json())
        files.write_bytes(given.out / "bench.png", race.figure())

    try:
        settings = RaceSettings(
            published_seconds=given.published_seconds, budget_seconds=given.budget, metric=given.metric
        )
        files.prepare_directory(given.out)
        view, card = trained(given.model, given.data_root)
        data = card.data.load(given.data_root)
        with progress_bar() as progress:
            race = run_race(view, data, settings, data_name=card.data.name, progress=progress, keep=keep)
    except EngramError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    keep(race)
    _show(race)
    print(f"wrote {given.out / 'bench.json'} and {given.out / 'bench.png'}")
    if race.is_interrupted:
        print("interrupted: wrote only what was measured so far", file=sys.stderr)
    return INTERRUPTED_CODE if race.is_interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
