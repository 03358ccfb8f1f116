"""The papers' search of a hundred runs beside one run of the engine, from what `benchmarks.search_100` left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engram import files
from engram.report.html import Table

SEARCH_FILE = Path("search", "search.json")
"""In the directory of the experiments."""
SEARCH_COMMAND = "python -m benchmarks.search_100 --out DIR/search"
HEADS = ["attack", "good (held-out)", "NCC > 0.8 (held-out)", "top-10 SSIM", "candidates", "seconds of computing"]


def read_search(home: Path) -> dict[str, Any] | None:
    """The comparison if it was made in that directory."""
    return files.read_json(home / SEARCH_FILE) if (home / SEARCH_FILE).exists() else None


def search_table(result: dict[str, Any]) -> Table:
    """The pool of all runs, the run that was judged best without data, and the engine."""
    searched, engine = result["search"], result["engine"]
    runs = searched["counts_of_trials"]["complete"]
    seconds = searched["seconds_of_all_trials"]
    return Table(
        HEADS,
        [
            _row(f"published scheme, {runs} runs pooled", searched["pooled"], seconds),
            _row("the run of them judged best blind", searched["best_trial_judged_blind"], seconds),
            _row("engine, one run", engine, engine["seconds"]),
        ],
        caption="What the papers' search adds to one run of the engine.",
    )


def search_notes(result: dict[str, Any]) -> list[str]:
    """What it is about, what the search adds, and what was cut."""
    return [
        f"{result['network']}, {result['data']['n']} images of {result['data']['name']}.",
        f"Good images that the pool has and the engine has not: {result['good_in_the_search_alone']}.",
        *result["cuts"],
    ]


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
