"""The published scheme and the engine side by side on one target: images over time, and the ratio of times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from engram.attacks.reconstruction import Attack, Reconstruction
from engram.attacks.registry import make_attack
from engram.attacks.settings import KNOWN_SETTINGS, Haim2022
from engram.core.errors import ConfigError, require
from engram.core.loop import STOP, Budget, State, StepClock, StopReason, Values, run
from engram.core.progress import Progress, silent
from engram.core.runs import machine, peak_memory_bytes
from engram.data.sets import Split
from engram.models.networks import Network
from engram.models.view import AttackerView
from engram.pipeline import compare
from engram.render.plots import RaceLine, RacePanel, race_figure
from engram.scoring.report import Count

Curve = Sequence[tuple[float, float]]
"""(seconds, excess over held-out) at every scored moment, in order; the first is the random start."""

Kind = Literal["measured", "lower bound", "upper bound", "chance", "unknown"]


@dataclass(frozen=True)
class Ratio:
    """published_seconds / engine_seconds to `count` images.

    measured     both reached the count, and these are the first moments at which they were seen to have it
    lower bound  the published scheme had not one image in all its seconds; the count is the engine's first
    upper bound  the engine, in all its seconds, never reached the count of the published scheme
    chance       a random start has the count already, so that reaching it is no achievement; no value
    unknown      neither had an image, or one of them was not run; no value
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
                "so that reaching this is no recovery"
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
                f"{self.metric}: published has {self.count:g} after {slow}, the engine never, in {fast}: "
                f"ratio at most {self.value:.3g} (an upper bound)"
            )
        return (
            f"{self.metric}: published has its best, {self.count:g}, after {slow}, the engine after {fast}: "
            f"ratio {self.value:.3g}"
        )


def time_ratio(metric: str, published: Curve, engine: Curve) -> Ratio:
    """How much sooner the engine has as many images beyond held-out as the published scheme at its best.

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
    """Seconds of the first moment with at least `count`, or None."""
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
    """An attack from its start to where it was stopped; seconds are its own, without scoring.

    `setup_seconds` are those of its planning and its preparation, `peak_memory_bytes` is the process's until then.
    `cpu_seconds` are those of all threads during the steps: far below threads x step_seconds, others were at work.
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
"""Scored after its first step, still a random start, after half a second, and then whenever the clock has grown by
15 %: no count is seen later than that."""

Judge = Callable[[Reconstruction], Mapping[str, Count]]
"""Counts by metric, e.g. "ncc>0.8"."""


@dataclass(eq=False)
class _Scorer:
    """An observer that scores an attack now and then, on a clock that stands still meanwhile."""

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
        """Does nothing if this very state was scored already."""
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
    """Run an attack to its end, or to `limit` seconds of its own; score it now and then, and where it ends.

    `already` seconds were spent on its planning. Ctrl-C ends it early, and what was measured is kept.
    """
    started = time.perf_counter()
    attack.init()  # what it prepares is kept, so that its first step is a step and nothing else
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


SCHEMA_VERSION = 1
METRICS = ("ssim>0.4", "ncc>0.8")
COLOURS = {"published": "tab:orange", "engine": "tab:blue"}


@dataclass(frozen=True, kw_only=True)
class RaceSettings:
    """Seconds of the published scheme, seconds that the engine plans with, and the metric of the headline."""

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
    """What was measured; `published` is None if the run was interrupted before it began."""

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
        """Computed: the measured seconds a step times the number of steps that the authors take."""
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
        """Images beyond held-out over time, both schemes, one panel a metric."""
        traces = {"published": self.published, "engine": self.engine}
        panels = [
            RacePanel(
                metric,
                [
                    RaceLine(
                        name,
                        COLOURS[name],
                        [point.seconds for point in one.points],
                        [point.counts[metric].recovered for point in one.points],
                        [point.counts[metric].held_out or 0 for point in one.points],
                    )
                    for name, one in traces.items()
                    if one is not None
                ],
            )
            for metric in METRICS
        ]
        return race_figure(panels, title=f"{self.target['network']}, {self.target['n']} training images")


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

    `keep` gets what there is when the engine is done, so that a kill during the longer half loses nothing.
    """
    if data.train.images.ndim != 4:
        raise ConfigError("bench counts images by SSIM and NCC, so it needs images; this target takes vectors")
    if not len(data.held_out):
        raise ConfigError(
            f"all of {data.train.name} is training data, so there is nothing held out to count beside; "
            "train on fewer images"
        )
    judge = _judge(data)
    started = time.perf_counter()
    planned = make_attack(view, budget=settings.budget_seconds)
    planning = time.perf_counter() - started
    engine = trace(
        planned,
        judge,
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
    """What the authors' search ended with for this data set, or for CIFAR-10 where they have none; m = 2n.

    >>> authors_settings("mnist", 500).lr_images, authors_settings("faces", 50).candidates
    (0.0305, 100)
    """
    return replace(KNOWN_SETTINGS.get(data_name, KNOWN_SETTINGS["cifar10"]), candidates=2 * n)


def _judge(data: Split) -> Judge:
    def judge(found: Reconstruction) -> dict[str, Count]:
        counts = compare(found, data).counts
        return {metric: counts[metric] for metric in METRICS}

    return judge
