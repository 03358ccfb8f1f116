"""Every figure and table of the papers by its name: the cases it needs, how it is drawn, what the paper says.

`Run` makes them from end to end: cases, figures, numbers as JSON.

    DIR/experiments/ID.json   the paper's numbers and ours, or why it failed
    DIR/figures/ID.png        the figure, or ID-PART.png if it has parts

All of these can be written again from DIR/cases without computing anything.
"""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engram.core import files
from engram.core.errors import CheckpointError, ConfigError, EngramError
from engram.core.loop import Progress
from engram.core.runs import commit, versions
from engram.papers.attacks import ATTACKED_BY
from engram.papers.cases import Case, Collector, Said, Setting
from engram.papers.figures import (
    Draw,
    around_threshold,
    baselines,
    decay_scatters,
    first_kernels,
    galleries,
    good_words,
    inverted_images,
    no_figure,
    over_classes,
    over_decay,
    over_kernels,
    own_figures,
    scatters,
    together,
    weight_images,
)
from engram.papers.records import CaseRecord
from engram.training.presets import CHANNELS, DECAYS, KERNELS, Scale

AS_PUBLISHED = "as published"
Judge = Callable[[Sequence[CaseRecord]], tuple[str, str]]
"""What our records show, and how that compares with the paper."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper in short, and how to compute ours from the records of the cases."""

    what: str
    paper: str
    judge: Judge

    def judged(self, records: Sequence[CaseRecord]) -> dict[str, str]:
        here, beside = self.judge(records)
        return {"what": self.what, "paper": self.paper, "here": here, "beside": beside}


@dataclass(frozen=True)
class Experiment:
    """One figure or table."""

    id: str
    title: str
    cases: tuple[Case, ...]
    draw: Draw = no_figure
    claims: tuple[Claim, ...] = ()
    few_cases: tuple[Case, ...] = ()
    """Cases for smaller scales, instead of all."""

    def cases_at(self, scale: Scale) -> tuple[Case, ...]:
        return self.few_cases if self.few_cases and scale != "paper" else self.cases

    def cuts_at(self, scale: Scale) -> tuple[str, ...]:
        few, many = len(self.cases_at(scale)), len(self.cases)
        return (f"{few} targets instead of {many}",) if few < many else ()

    @property
    def stem(self) -> str:
        """Base name of its files."""
        return self.id.replace("/", "-")


def cases(*presets: str) -> tuple[Case, ...]:
    """The presets, attacked with the setting's recipe."""
    return tuple(Case(preset) for preset in presets)


def count_at(place: int, *, low: float = 0, high: float = math.inf) -> Judge:
    """The count of one case beyond held-out; the paper has `low` to `high`."""

    def judge(records: Sequence[CaseRecord]) -> tuple[str, str]:
        record = records[place]
        count = record.good.recovered
        beside = AS_PUBLISHED
        if count < low:
            beside = f"{low - count:g} fewer"
        elif count > high:
            beside = f"{count - high:g} more"
        return good_words(record), beside

    return judge


_DEPTHS = ("cifar500-100-100", "cifar500-1000-500-100", "cifar500-1000-500-100-50", "cifar500-biases")
_FIG4 = cases("cifar50", "cifar100", "cifar500", "cifar1000", *_DEPTHS)
_TABLE2 = cases("cifar10-standard", "cifar50-standard", "cifar500-sgd", "cifar500-early", "mnist500-early")
_BASELINES = tuple(
    Case(preset, attack) for attack in ("inversion", "weights") for preset in ("circle", "cifar500", "mnist500")
)


def _both_ways(preset: str) -> tuple[Case, ...]:
    """Engine and published scheme, whatever the recipe: the standard start is an open problem of the papers."""
    return tuple(Case(preset, attack) for attack in ATTACKED_BY)


HAIM: tuple[Experiment, ...] = (
    Experiment("haim/fig1", "CIFAR-10, 50 images", cases("cifar50"), galleries()),
    Experiment(
        "haim/fig2",
        "Two dimensions: 20 points on the circle",
        (Case("circle", "circle"),),
        own_figures,
        (Claim("points recovered", "all 20", count_at(0, low=20)),),
    ),
    Experiment("haim/fig3", "CIFAR-10 and MNIST, 500 images", cases("cifar500", "mnist500"), galleries()),
    Experiment("haim/fig4", "SSIM against output: numbers of images, architectures", _FIG4, scatters()),
    Experiment("haim/table1", "Losses and test accuracy of the targets of Figure 4", _FIG4),
    Experiment(
        "haim/fig5",
        "Baselines: model inversion and first-layer weights",
        _BASELINES,
        baselines,
        (
            Claim("points that inversion finds", "7 of 20", count_at(0, low=7, high=7)),
            Claim("images of CIFAR-10 that inversion finds", "none: blurred classes", count_at(1, high=0)),
            Claim("images of MNIST that inversion finds", "none: blurred classes", count_at(2, high=0)),
            Claim("weights that look like images of CIFAR-10", "at most 3 or 4", count_at(4, high=4)),
            Claim("weights that look like images of MNIST", "at most 3 or 4", count_at(5, high=4)),
        ),
    ),
    *(
        Experiment(f"haim/fig{6 + place}", f"The 45 best of {preset}", cases(preset), galleries())
        for place, preset in enumerate(("cifar100", "cifar1000", *_DEPTHS))
    ),
    Experiment("haim/fig12", "Model inversion, CIFAR-10", (Case("cifar500", "inversion"),), inverted_images),
    Experiment("haim/fig13", "Model inversion, MNIST", (Case("mnist500", "inversion"),), inverted_images),
    Experiment("haim/fig14", "First-layer weights, CIFAR-10", (Case("cifar500", "weights"),), weight_images),
    Experiment("haim/fig15", "First-layer weights, MNIST", (Case("mnist500", "weights"),), weight_images),
    Experiment("haim/table2", "Beyond the theory: standard start, mini-batches, fewer epochs", _TABLE2),
    Experiment("haim/fig16", "SSIM against output for the targets of Table 2", _TABLE2, scatters(columns=5)),
    Experiment("haim/fig17", "Standard start, 10 images", _both_ways("cifar10-standard"), galleries(best=10)),
    Experiment("haim/fig18", "Standard start, 50 images", _both_ways("cifar50-standard"), galleries(best=10)),
    Experiment("haim/fig19", "10,000 epochs, CIFAR-10", cases("cifar500-early"), galleries()),
    Experiment("haim/fig20", "10,000 epochs, MNIST", cases("mnist500-early"), galleries()),
    Experiment("haim/fig21", "Mini-batches of 50, CIFAR-10", cases("cifar500-sgd"), galleries()),
)


def _ratio(at_least: float) -> Judge:
    """Ratio of the counts with the most classes and with two; the paper has at least `at_least`."""

    def judge(records: Sequence[CaseRecord]) -> tuple[str, str]:
        two, ten = (records[place].good.recovered for place in (0, -1))
        holds = ten > at_least * max(two, 0)
        times = f": {ten / two:.1f} times" if two > 0 else ""
        return f"{ten:g} to {two:g} beyond held-out{times}", AS_PUBLISHED if holds else "less than published"

    return judge


def _best_decay(records: Sequence[CaseRecord]) -> tuple[str, str]:
    """The best count with weight decay against that of the small start."""
    none = next(record.good.recovered for record in records if record.preset == "cifar100-init1e-3")
    decayed = [record for record in records if record.preset.startswith("decay-") and record.preset != "decay-0"]
    best = max(decayed, key=lambda record: record.good.recovered)
    here = f"{best.good.recovered:g} ({best.preset}) to {none:g}, beyond held-out"
    return here, AS_PUBLISHED if best.good.recovered > none else "not the case here"


def _by_kernel(records: Sequence[CaseRecord]) -> tuple[str, str]:
    """Counts by kernel size, with 32 channels."""
    counts = {record.preset: record.good.recovered for record in records if record.preset.endswith("x32")}
    first, *middle, last = counts.values()
    holds = min(middle) < min(first, last)
    here = ", ".join(f"{preset}: {count:g}" for preset, count in counts.items())
    return here, AS_PUBLISHED if holds else "not the case here"


_COUNTS = (2, 3, 4, 5)
_PER_CLASS = cases(*(f"classes{count}x50" for count in _COUNTS), "classes10")
_FIXED = cases(*(f"classes{count}" for count in (*_COUNTS, 10)))
_LOSSES = ("l2", "l2.5", "huber")
_DECAYED = cases(*(f"decay-{value}" for value in DECAYS))
_KERNELS = cases(*(f"conv{k}x{c}" for k in KERNELS for c in CHANNELS))
_FEW_KERNELS = cases(*(f"conv{k}x{c}" for k in KERNELS for c in (8, 32)))

BUZAGLO: tuple[Experiment, ...] = (
    Experiment(
        "buzaglo/fig3",
        "Numbers of classes, 50 images each",
        _PER_CLASS,
        over_classes,
        (Claim("good with 10 classes against 2", "rises with the number of classes", _ratio(1)),),
    ),
    Experiment(
        "buzaglo/fig4",
        "Regression losses: the ten best of each",
        cases(*(f"cifar300-{loss}" for loss in _LOSSES)),
        galleries(best=10, columns=10),
    ),
    Experiment(
        "buzaglo/fig5",
        "Weight decay, 2 classes of 50",
        (*_DECAYED, *cases("cifar100-init1e-3", "decay-0")),
        over_decay({"cifar100-init1e-3": "no decay, start 1e-3", "decay-0": "no decay, standard start"}),
        (Claim("the best decay against none with start 1e-3", "well above for some values", _best_decay),),
    ),
    Experiment("buzaglo/fig6", "A convolutional network: conv(3, 32)", cases("conv3x32"), galleries()),
    Experiment("buzaglo/fig8", "Pairs around SSIM 0.4", cases("cifar500"), around_threshold),
    Experiment(
        "buzaglo/fig9",
        "Weight decay, with the start of the first paper as a baseline",
        (*_DECAYED, *cases("cifar100", "cifar100-init1e-3")),
        over_decay({"cifar100": "no decay, start 1e-4", "cifar100-init1e-3": "no decay, start 1e-3"}),
    ),
    Experiment(
        "buzaglo/fig10",
        "Numbers of classes, 500 images in all",
        _FIXED,
        over_classes,
        (Claim("good with 10 classes against 2", "more than 6 times", _ratio(6)),),
    ),
    *(
        Experiment(f"buzaglo/fig{11 + place}", f"Regression: {loss}", cases(f"cifar300-{loss}"), galleries())
        for place, loss in enumerate(_LOSSES)
    ),
    Experiment("buzaglo/fig14", "Weight decay: SSIM against output, and errors", _DECAYED, decay_scatters),
    Experiment(
        "buzaglo/fig15",
        "Kernel sizes and channels",
        _KERNELS,
        over_kernels,
        (Claim("good images by kernel size", "falls for middle sizes, rises again at 32", _by_kernel),),
        few_cases=_FEW_KERNELS,
    ),
    Experiment("buzaglo/fig16", "The kernels of conv(3, 32)", cases("conv3x32"), first_kernels),
    Experiment(
        "buzaglo/fig17",
        "CIFAR-100, 5,000 images, 10000-10000",
        cases("cifar100-large"),
        together(galleries(), scatters(part="scatter")),
        (Claim("good reconstructions", "a few dozen", count_at(0, low=24)),),
        few_cases=cases("cifar100-large", "cifar100-hour"),
    ),
)


CATALOGUE: dict[str, Experiment] = {experiment.id: experiment for experiment in (*HAIM, *BUZAGLO)}


@dataclass(frozen=True)
class Published:
    """Published numbers of a target: training loss, test accuracy, test loss."""

    loss: float | None = None
    accuracy: float | None = None
    test_loss: float | None = None


PUBLISHED: dict[str, Published] = {
    "cifar50": Published(1.5e-6, 0.72, 2.14),
    "cifar100": Published(2.0e-6, 0.74, 2.41),
    "cifar500": Published(4.0e-6, 0.78, 2.09),
    "cifar1000": Published(5.5e-6, 0.79, 1.96),
    "cifar500-100-100": Published(3.0e-7, 0.77, 2.72),
    "cifar500-1000-500-100": Published(1.2e-7, 0.78, 3.14),
    "cifar500-1000-500-100-50": Published(8.4e-7, 0.77, 2.57),
    "cifar500-biases": Published(4.3e-6, 0.77, 2.12),
    "mnist500": Published(accuracy=0.88),
    "cifar10-standard": Published(8.3e-7, 0.71, 1.68),
    "cifar50-standard": Published(1.5e-6, 0.74, 1.72),
    "cifar500-sgd": Published(4.0e-6, 0.77, 2.21),
    "cifar500-early": Published(0.0039, 0.77, 1.22),
    "mnist500-early": Published(0.014, 0.87, 0.55),
}


def experiment_named(name: str) -> Experiment:
    """The experiment with that id."""
    if name not in CATALOGUE:
        close = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"there is no experiment {name!r}; {hint}see them with `engram reproduce --list`")
    return CATALOGUE[name]


SCHEMA_VERSION = 1
SHARED = ("scale", "recipe", "seed")
"""Settings that all experiments in a directory share."""


@dataclass(frozen=True, eq=False)
class Run:
    """Where and how experiments run, and where they report to."""

    home: Path
    setting: Setting
    said: Said
    progress: Progress

    def experiments(self, chosen: Sequence[Experiment], *, keep_going: bool) -> list[dict[str, Any]]:
        """Run experiments and write their JSON.

        With `keep_going`, cases that another process is computing come last and failures are recorded.
        """
        files.prepare_directory(self.home)
        self._refuse_mixture()
        collector = Collector(self.home, self.setting, self.said, self.progress)
        collector.expect(case for experiment in chosen for case in experiment.cases_at(self.setting.scale))
        if keep_going:
            collector.ahead()
        records = []
        for experiment in chosen:
            try:
                record = self._one(experiment, collector)
            except Exception as error:  # hours of other work must not be lost to any error
                if not keep_going:
                    raise
                reason = str(error) if isinstance(error, EngramError) else f"{type(error).__name__}: {error}"
                record = {**self._head(experiment), "failed": reason}
                self.said(f"{experiment.id} failed: {reason}")
            files.write_json(self.home / "experiments" / f"{experiment.stem}.json", record)
            records.append(record)
        return records

    def _one(self, experiment: Experiment, collector: Collector) -> dict[str, Any]:
        started = time.monotonic()
        finished = [collector.finished(case) for case in experiment.cases_at(self.setting.scale)]
        figures = {}
        for part, content in experiment.draw(finished).items():
            name = f"{experiment.stem}{'-' if part else ''}{part}.png"
            files.write_bytes(self.home / "figures" / name, content)
            figures[part] = name
        self.said(f"{experiment.id}: {experiment.title}, {time.monotonic() - started:.0f} s")
        records = [case.record for case in finished]
        return {
            **self._head(experiment),
            "figures": figures,
            "rows": [
                {**record.row(), "published": asdict(PUBLISHED.get(record.preset, Published()))}
                for record in records
            ],
            "claims": [claim.judged(records) for claim in experiment.claims],
            "failed": None,
        }

    def _head(self, experiment: Experiment) -> dict[str, Any]:
        setting = self.setting
        seed = f" --seed {setting.seed}" if setting.seed else ""
        how = f"--scale {setting.scale} --recipe {setting.recipe}{seed}"
        return {
            "schema_version": SCHEMA_VERSION,
            "id": experiment.id,
            "title": experiment.title,
            **{name: getattr(setting, name) for name in SHARED},
            "cuts": list(experiment.cuts_at(setting.scale)),
            "command": f"engram reproduce {experiment.id} {how} -o DIR",
            "commit": commit(),
            "versions": versions(),
        }

    def _refuse_mixture(self) -> None:
        for record in stored_records(self.home, CATALOGUE):
            found, wanted = (
                [f"--{name} {value[name]}" for name in SHARED] for value in (record, vars(self.setting))
            )
            if found != wanted:
                raise ConfigError(
                    f"{self.home} contains experiments with {' '.join(found)}, not {' '.join(wanted)}; "
                    "use those options, or choose another directory with -o"
                )


def stored_records(home: Path, ids: Iterable[str]) -> list[dict[str, Any]]:
    """The JSON of the experiments in a directory, in the order of `ids`."""
    found = []
    for name in ids:
        path = home / "experiments" / f"{name.replace('/', '-')}.json"
        if not path.exists():
            continue
        record = files.read_json(path, cure="delete it and run the experiment again")
        if not isinstance(record, dict) or record.get("schema_version") != SCHEMA_VERSION:
            raise CheckpointError(
                f"{path} is not a record of this version; delete it and run the experiment again"
            )
        found.append(record)
    return found


def read_records(home: Path, ids: Iterable[str]) -> list[dict[str, Any]]:
    """The same, but an error if there are none."""
    found = stored_records(home, ids)
    if not found:
        raise CheckpointError(f"{home} contains no experiments; run one with `engram reproduce ID -o {home}`")
    return found
