"""sweep.html: a sweep as a page that looks like the audit's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engram.auditing.galleries import candidate_gallery, pair_gallery
from engram.data.image_set import ImageSet
from engram.report.html import Cell, Page, Section, Table, Tile
from engram.sweep.graphs import growth_chart, history_chart, importance_chart, settings_chart
from engram.sweep.record import ENOUGH_FOR_IMPORTANCE, Conclusion
from engram.sweep.verdict import sweep_verdict

MOST_ROWS = 2000
"""Trials in the table; the others are in sweep.json."""
LIMITS = (
    "No leak found is not a proof of safety: these trials, with these settings, found nothing.",
    "Trials are compared by how much of the first layer their candidates explain, and pooled best first, without "
    "any data. Data given to score the result change none of it; with --oracle they judge the trials, which no "
    "attacker could do.",
    "The confidence was calibrated on the engine's restarts; for other recipes read it as an order.",
)


def sweep_page(concluded: Conclusion, train: ImageSet | None = None) -> Page:
    """The page of a concluded sweep; `train` are the records that it was scored against."""
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
        Tile("pooled candidates", f"{pooled['candidates']:,}", f"of {pooled['trials']:,} trials"),
        Tile("confident candidates", f"{pooled['confident']['90%']:,}", "at 90 %, judged blind"),
        Tile("computing time", f"{summary['seconds']:,.0f} s", "of all trials together"),
    ]


def _gallery(concluded: Conclusion, train: ImageSet | None) -> Section:
    title, shape = "The best of the pooled candidates", tuple(concluded.pooled.images.shape[1:])
    score = concluded.score
    if score is not None and train is not None and score.train.ssim is not None:
        heads = ("recovered", "training records", "held-out records", "excess", "from noise")
        rows = [(row.threshold.text, row.train, row.held_out, row.excess, row.noise) for row in score.counts]
        return Section(
            "pooled",
            title,
            ["Each stands above the training image it was matched to, best SSIM first. Click to enlarge."],
            gallery=pair_gallery(score, train),
            tables=[Table(heads, rows, f"Counts of {len(score.train)} records; the excess is what was recovered")],
        )
    if len(shape) != 3:
        return Section("pooled", title, ["The inputs are no images; see reconstruction.safetensors."])
    text = "Those of the highest confidence, without the mean image, stretched to full contrast. Click to enlarge."
    return Section("pooled", title, [text], gallery=candidate_gallery(concluded.pooled, shape))


def _growth(concluded: Conclusion) -> Section:
    told = "confident candidates (90 %)" if concluded.score is None else "images"
    return Section(
        "growth",
        "What more trials give",
        [f"The {told} in the pool of the first 1, 2, 4, ... complete trials."],
        [growth_chart(concluded.summary["pooled"]["growth"], concluded.score), history_chart(concluded.summary)],
    )


def _settings(summary: Mapping[str, Any]) -> Section:
    text = f"The objective is {summary['objective']['name']}: {summary['objective']['meaning']}."
    if not summary["space"]["search"]:
        return Section("settings", "Settings and objective", [text, "No setting was varied, only the start."])
    more = "Each line is a complete trial, the best quarter in colour; point at one to read it."
    return Section("settings", "Settings and objective", [text, more], [settings_chart(summary)])


def _importance(summary: Mapping[str, Any]) -> Section:
    title, shares = "Which settings matter", summary["importance"]
    if not summary["space"]["search"]:
        return Section("importance", title, ["No setting was varied."])
    if shares is None:
        complete = summary["counts"].get("complete", 0)
        text = f"{complete} complete trials are too few to tell; it takes {ENOUGH_FOR_IMPORTANCE}."
        return Section("importance", title, [text])
    text = "Each setting's share in what makes a trial one of the best quarter (Optuna's PED-ANOVA)."
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
        "What was the same for all",
        [f"Weights (SHA-256): {summary['weights_sha256']}"],
        tables=[
            Table(("setting", "value"), rows, "Settings that were not varied"),
            Table(("software", "version"), versions, "Versions"),
        ],
    )
