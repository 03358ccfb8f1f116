"""The page of a sweep, from sweep.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engram.auditing.comparison import deciding_threshold
from engram.auditing.verdict import sweep_verdict
from engram.auditing.visuals import candidate_gallery, pair_gallery
from engram.data.sets import ImageSet
from engram.render.html import Cell, Page, Section, Table, Tile
from engram.render.svg import Axis, BarChart, Chart, Choices, ParallelChart, Series, TrialLine
from engram.scoring.report import ScoreReport
from engram.sweep.summary import BEST_SHARE, ENOUGH_FOR_IMPORTANCE, Conclusion

MOST_LINES = 500


def growth_chart(points: Sequence[Mapping[str, Any]], score: ScoreReport | None) -> Chart:
    """Good images, or confident candidates if blind, against the number of pooled trials."""
    lines: dict[str, list[float]] = {"confident candidates": [point["sure"] for point in points]}
    if score is not None:
        name = deciding_threshold(score).text
        counts = [point["counts"][name] for point in points]
        lines = {f"training, {name}": [count["train"] for count in counts]}
        if score.held_out is not None:
            lines[f"held-out, {name}"] = [count["held_out"] for count in counts]
    trials = [point["trials"] for point in points]
    series = [Series(name, trials, line, colour=index) for index, (name, line) in enumerate(lines.items())]
    series += [Series("", trials, line, kind="dots", colour=index) for index, line in enumerate(lines.values())]
    x = Axis("pooled trials", 1, max(2, trials[-1]), log=True)
    y = Axis("images" if score is not None else "candidates", 0, max(1.0, *map(max, lines.values())))
    summary = "; ".join(f"{name}: {line[-1]:g} with all" for name, line in lines.items())
    return Chart("Against the number of pooled trials", x, y, series, summary=summary)


def history_chart(summary: Mapping[str, Any]) -> Chart:
    """The objective of every complete trial, and the best so far."""
    complete = [row for row in summary["trials"] if row["objective"] is not None]
    numbers, values = [row["number"] for row in complete], [row["objective"] for row in complete]
    last = max(1, summary["trials"][-1]["number"])
    steps: list[tuple[float, float]] = []
    for number, value in summary["best_so_far"]:
        steps += [(number, steps[-1][1]), (number, value)] if steps else [(number, value)]
    steps.append((last, steps[-1][1]))
    best = Series("best so far", [x for x, _ in steps], [y for _, y in steps], colour=2)
    text = f"best {summary['best']['objective']:.4g} in trial {summary['best']['number']}"
    x, y = Axis("trial", 0, last), _range(f"{summary['objective']['name']} objective", values)
    return Chart("Objective of every trial", x, y, [Series("", numbers, values, kind="dots"), best], summary=text)


def settings_chart(summary: Mapping[str, Any]) -> ParallelChart:
    """Parallel coordinates: one axis per setting, the objective last."""
    sign = 1 if summary["objective"]["direction"] == "minimize" else -1
    rows = [row for row in summary["trials"] if row["objective"] is not None]
    rows = sorted(rows, key=lambda row: (sign * row["objective"], row["number"]))
    search = summary["space"]["search"]
    axes: list[Axis | Choices] = [_axis(name, described) for name, described in search.items()]
    axes.append(_range("objective", [row["objective"] for row in rows]))
    best = math.ceil(BEST_SHARE * len(rows))
    lines = [_line(row, axes, is_best=place < best) for place, row in enumerate(rows[:MOST_LINES])]
    text = f"{len(lines)} of {len(rows)} complete trials, the best quarter in colour; the best trial has "
    return ParallelChart("Settings and objective", axes, lines, summary=text + _settings_text(rows[0]))


def importance_chart(shares: Mapping[str, float]) -> BarChart:
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return BarChart("Importance", shares, summary=listed)


def _line(row: Mapping[str, Any], axes: Sequence[Axis | Choices], *, is_best: bool) -> TrialLine:
    values = [row["params"][axis.label] for axis in axes[:-1]]
    shown = [str(value) if isinstance(axis, Choices) else value for axis, value in zip(axes, values, strict=False)]
    text = f"trial {row['number']}: objective {row['objective']:.4g}, {_settings_text(row)}"
    return TrialLine([*shown, row["objective"]], text, is_best)


def _settings_text(row: Mapping[str, Any]) -> str:
    shown = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in row["params"].items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _axis(name: str, described: Mapping[str, Any]) -> Axis | Choices:
    if "choices" in described:
        return Choices(name, [str(choice) for choice in described["choices"]])
    return Axis(name, described["low"], described["high"], log=described["log"])


def _range(label: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    return Axis(label, low, high if high > low else low + 1)


MOST_ROWS = 2000
"""Trials in the table; the others are in sweep.json."""
LIMITS = (
    "No leak found is not a proof of safety: it means that these trials, with these settings, found nothing.",
    "Trials are compared by how much of the first layer their candidates explain, and pooled best first, without "
    "any data. Scoring the result against data changes none of this. With --oracle the data judge the trials, "
    "which no attacker could do.",
    "The confidence was calibrated on the engine's restarts; for other recipes use it only to rank candidates.",
)


def sweep_page(concluded: Conclusion, train: ImageSet | None = None) -> Page:
    """The page of a concluded sweep; `train` has the records that it was scored against."""
    summary, pooled = concluded.summary, concluded.pooled
    verdict = sweep_verdict(pooled, concluded.score, summary["pooled"]["trials"])
    return Page(
        title=f"{summary['model'] or summary['network']}: {summary['counts']['asked']:,} trials",
        outcome=verdict.outcome,
        sentence=verdict.sentence,
        tiles=_tiles(summary),
        sections=[
            _gallery(concluded, train),
            _growth(concluded),
            _settings(summary),
            _importance(summary),
            _trials(summary),
            _repeat(summary),
            Section("limits", "What the numbers do not say", LIMITS),
        ],
        product="engram sweep",
    )


def _tiles(summary: Mapping[str, Any]) -> list[Tile]:
    counts, pooled, best = summary["counts"], summary["pooled"], summary["best"]
    others = {state: count for state, count in counts.items() if state not in ("asked", "complete")}
    return [
        Tile(
            "trials", f"{counts.get('complete', 0):,} complete", ", ".join(f"{n:,} {s}" for s, n in others.items())
        ),
        Tile(
            f"best {summary['objective']['name']} objective", f"{best['objective']:.4g}", f"trial {best['number']}"
        ),
        Tile("pooled candidates", f"{pooled['candidates']:,}", f"from {pooled['trials']:,} trials"),
        Tile("confident candidates", f"{pooled['confident']['90%']:,}", "at 90 %, judged blind"),
        Tile("computing time", f"{summary['seconds']:,.0f} s", "all trials together"),
    ]


def _gallery(concluded: Conclusion, train: ImageSet | None) -> Section:
    title, shape = "The best pooled candidates", tuple(concluded.pooled.images.shape[1:])
    score = concluded.score
    if score is not None and train is not None and score.train.ssim is not None:
        heads = ("recovered", "training records", "held-out records", "excess", "from noise")
        rows = [(text, one.train, one.held_out, one.excess, one.noise) for text, one in score.counts.items()]
        return Section(
            "pooled",
            title,
            ["Each is above the training image it was matched to, best SSIM first. Click to enlarge."],
            gallery=pair_gallery(score, train),
            tables=[Table(heads, rows, f"Counts of {len(score.train)} records; the excess is what was recovered")],
        )
    if len(shape) != 3:
        return Section("pooled", title, ["The inputs are not images; see reconstruction.safetensors."])
    text = "The most confident ones, without the mean image, stretched to full contrast. Click to enlarge."
    return Section("pooled", title, [text], gallery=candidate_gallery(concluded.pooled, shape))


def _growth(concluded: Conclusion) -> Section:
    counted = "Confident candidates (90 %)" if concluded.score is None else "Images"
    return Section(
        "growth",
        "What more trials add",
        [f"{counted} in the pool of the first 1, 2, 4, ... complete trials."],
        [growth_chart(concluded.summary["pooled"]["growth"], concluded.score), history_chart(concluded.summary)],
    )


def _settings(summary: Mapping[str, Any]) -> Section:
    text = f"The objective is {summary['objective']['name']}: {summary['objective']['meaning']}."
    if not summary["space"]["search"]:
        only = "No setting was varied: trials differ only in their random start."
        return Section("settings", "Settings and objective", [text, only])
    more = "Each line is a complete trial, the best quarter in colour; hover over a line to read it."
    return Section("settings", "Settings and objective", [text, more], [settings_chart(summary)])


def _importance(summary: Mapping[str, Any]) -> Section:
    title, shares = "Which settings matter", summary["importance"]
    if not summary["space"]["search"]:
        return Section("importance", title, ["No setting was varied."])
    if shares is None:
        complete = summary["counts"].get("complete", 0)
        text = f"{complete} complete trials are too few to tell; at least {ENOUGH_FOR_IMPORTANCE} are needed."
        return Section("importance", title, [text])
    text = "How much each setting contributes to a trial being in the best quarter (Optuna's PED-ANOVA)."
    return Section("importance", title, [text], [importance_chart(shares)])


def _trials(summary: Mapping[str, Any]) -> Section:
    names = list(summary["space"]["search"])
    rows = sorted(summary["trials"], key=lambda row: (row["state"] != "complete", row["number"]))[:MOST_ROWS]
    table = Table(
        heads=["trial", "complete", "state", "objective", "unexplained", *names, "steps", "seconds", "reason"],
        rows=[_cells(row, names) for row in rows],
        caption=f"{len(rows):,} of {len(summary['trials']):,} finished trials; all are in sweep.json",
        sortable=True,
    )
    return Section("trials", "All trials", tables=[table])


def _cells(row: Mapping[str, Any], names: Sequence[str]) -> list[Cell]:
    settings = [_plain(row["params"].get(name)) for name in names]
    head: list[Cell] = [
        row["number"],
        row["state"] == "complete",
        row["state"],
        row["objective"],
        row["unexplained"],
    ]
    return [*head, *settings, row.get("steps"), row.get("seconds"), row["reason"]]


def _plain(value: Any) -> Cell:
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _repeat(summary: Mapping[str, Any]) -> Section:
    fixed = summary["space"]["fixed"]
    rows = [
        ("recipe", summary["space"]["recipe"]),
        ("sampler", summary["sampler"]),
        ("seed", str(summary["seed"])),
    ]
    rows += [(name, str(value)) for name, value in fixed.items()]
    versions = list(summary["versions"].items())
    return Section(
        "reproduce",
        "Common to all trials",
        [f"Weights (SHA-256): {summary['weights_sha256']}"],
        tables=[
            Table(("setting", "value"), rows, "Settings that were not varied"),
            Table(("software", "version"), versions, "Versions"),
        ],
    )
