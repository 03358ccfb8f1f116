"""Both schemes on one target, one after the other in one process, scored alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from engram.attacker import AttackerView
from engram.bench.clock import FIRST_MOMENT, MOMENT_GROWTH, Judge, trace
from engram.bench.machine import machine
from engram.bench.moments import Count, Trace
from engram.bench.ratio import Ratio, time_ratio
from engram.data.sampling import Split
from engram.errors import ConfigError, require
from engram.pipeline import compare
from engram.reconstruct.candidates import Reconstruction
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engines import engine_for
from engram.reconstruct.published.scheme import Haim2022, PublishedScheme
from engram.reconstruct.published.settings import KNOWN_SETTINGS
from engram.report.race import RaceLine, RacePanel, race_figure

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
                        [moment.seconds for moment in one.moments],
                        [moment.counts[metric].excess for moment in one.moments],
                        [moment.counts[metric].held_out for moment in one.moments],
                    )
                    for name, one in traces.items()
                    if one is not None
                ],
            )
            for metric in METRICS
        ]
        return race_figure(panels, title=f"{self.target['network']}, {self.target['n']} training images")


def run_race(
    view: AttackerView,
    data: Split,
    settings: RaceSettings,
    *,
    data_name: str,
    progress: Callable[[str, float], None] = lambda scheme, share: None,
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
    planned = engine_for(view, EngineSettings(), settings.budget_seconds)
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
        PublishedScheme(view, authors_settings(data_name, len(data.train))),
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
        counts = {row.threshold.text: row for row in compare(found, data).counts}
        judged = {}
        for metric in METRICS:
            row = counts[metric]
            assert row.held_out is not None
            assert row.excess is not None
            judged[metric] = Count(row.train, row.held_out, row.excess, row.noise)
        return judged

    return judge
