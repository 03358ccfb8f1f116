"""Trends on synthetic numbers: each holds on numbers as published and fails on the opposite."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.trends import main

from engram.papers.catalogue import SCHEMA_VERSION
from engram.papers.results import STATEMENTS, trends, trends_table

GOOD = {
    "cifar50": 40,
    "cifar100": 50,
    "cifar500": 60,
    "cifar100-init1e-3": 20,
    "decay-0": 2,
    **{name: 10 + 10 * place for place, name in enumerate(("classes2", "classes3", "classes4", "classes5"))},
    **{name: 10 + 9 * place for place, name in enumerate(("classes2x50", "classes3x50", "classes4x50"))},
    "classes5x50": 50,
    "classes10": 80,
    "decay-1e-3": 45,
}


def _row(preset: str, attack: str, train: int) -> dict[str, Any]:
    n = int(preset.removeprefix("cifar")) if preset in ("cifar50", "cifar100", "cifar500") else 100
    return {
        "preset": preset,
        "attack": attack,
        "n": n,
        "counts": {"ssim>0.4": {"train": train + 3, "held_out": 3, "excess": float(train), "noise": 1}},
        "median_margin": {"good": 1.0, "others": 2.0},
    }


def published() -> list[dict[str, Any]]:
    """Records with numbers as in the papers."""
    needed = dict.fromkeys((preset, attack or "engine") for one in STATEMENTS for preset, attack in one.cases)
    rows = [_row(preset, attack, GOOD.get(preset, 3) if attack == "engine" else 2) for preset, attack in needed]
    shared = {"schema_version": SCHEMA_VERSION, "scale": "cpu", "recipe": "engine", "failed": None}
    return [{**shared, "id": "haim/fig4", "rows": rows}]


def _change(preset: str, value: float, attack: str = "engine") -> Callable[[list[dict[str, Any]]], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        (row,) = [row for row in rows if (row["preset"], row["attack"]) == (preset, attack)]
        row["counts"]["ssim>0.4"]["excess"] = value

    return change


def _swap_margins(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["median_margin"] = {"good": 2.0, "others": 1.0}


def _no_good_ones(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["median_margin"] = {"good": None, "others": 1.0}


def test_all_trends_hold_on_published_numbers() -> None:
    judged = trends(published())
    assert [trend.statement for trend in judged if not trend.holds] == []
    table = trends_table(published())
    assert table is not None
    assert table.rows[0] == [
        "more samples are harder: the share of good images falls",
        "n = 50: 80.0%, n = 100: 50.0%, n = 500: 12.0%",
        "holds",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_change("cifar500", 300.0), "more samples are harder"),
        (_change("cifar100", 81.0), "more samples are harder"),
        (_swap_margins, "good images lie on the margin"),
        (_no_good_ones, "good images lie on the margin"),
        (_change("mnist500", 6.0, "inversion"), "model inversion gives at most a handful"),
        (_change("cifar500", 40.0, "weights"), "first-layer weights give a few"),
        (_change("classes2x50", 90.0), "more classes give more, 50 images each"),
        (_change("classes2", 90.0), "more classes give more, 500 images in all"),
        (_change("decay-0", 45.0), "some weight decay gives more than none from a standard start"),
        (_change("cifar100-init1e-3", 50.0), "some weight decay gives more than none from a small start"),
    ],
)
def test_each_trend_can_fail(change: Callable[[list[dict[str, Any]]], None], words: str) -> None:
    records = published()
    change(records[0]["rows"])
    failing = [trend.statement for trend in trends(records) if trend.holds is False]
    assert len(failing) == 1
    assert failing[0].startswith(words)


def test_trends_that_were_not_run_are_not_judged() -> None:
    records = published()
    records[0]["rows"] = [row for row in records[0]["rows"] if row["preset"] != "cifar100"]
    first = trends(records)[0]
    assert (first.holds, first.numbers) == (None, "not run: cifar100 (engine)")
    records[0]["failed"] = "no data"
    assert all(trend.holds is None for trend in trends(records))


def test_smoke_is_not_judged() -> None:
    assert trends_table([{**record, "scale": "smoke"} for record in published()]) is None


def test_the_script_prints_numbers_and_sets_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "experiments" / "haim-fig4.json"
    path.parent.mkdir()
    records = published()
    path.write_text(json.dumps(records[0]))
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("holds ") == len(STATEMENTS)
    assert "n = 50: 80.0%" in printed
    _change("cifar500", 300.0)(records[0]["rows"])
    path.write_text(json.dumps(records[0]))
    assert main([str(tmp_path)]) == 1
    assert "does not hold  more samples are harder" in capsys.readouterr().out
    path.write_text(json.dumps({**records[0], "failed": "no data"}))
    assert main([str(tmp_path)]) == 2
    path.write_text(json.dumps({**records[0], "scale": "smoke"}))
    assert main([str(tmp_path)]) == 2
    assert main([str(tmp_path / "nothing")]) == 2
