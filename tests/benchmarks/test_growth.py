"""How costs grow: sizes, fits, estimates, and a complete small run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.growth_price import timed

from benchmarks import growth
from engram.core import files


def test_flops_of_a_product_are_counted() -> None:
    a, b, c = torch.ones(3, 4), torch.ones(4, 5), torch.zeros(3, 5)
    works: list[Callable[[], torch.Tensor]] = [
        lambda: a @ b,
        lambda: torch.nn.functional.linear(a, b.T, torch.ones(5)),
        lambda: c.addmm_(a, b),
        lambda: torch.bmm(a[None], b[None])[0],
    ]
    for work in works:
        result, price = timed(work)
        assert price.flops == 2 * 3 * 4 * 5
        assert price.seconds > 0
        assert result.shape == (3, 5)


def test_every_n_is_measured_at_both_ends_of_the_widths() -> None:
    pairs = growth.Sizes().pairs
    assert {n for n, width in pairs if width == 10_000} == {n for n, width in pairs if width == 1000}
    assert {width for n, width in pairs if n == 500} == {1000, 2000, 5000, 10_000}


def test_workers_share_starts_and_a_gpu_is_limited_by_flops_or_bandwidth() -> None:
    training = {"kind": "training", "n": 5, "width": 7, "seconds_an_epoch": 2.0}
    training |= {"flops_an_epoch": 1e13, "bytes_an_epoch": 4e12}
    step = {"seconds_a_step": 1.0, "seconds_a_metric": 50.0, "flops_a_step": 1e13, "flops_a_metric": 5e14}
    trained, attacked = growth.elsewhere([training, {"kind": "engine", "n": 5, "width": 7, **step}])
    assert trained["hours"] == {"here": pytest.approx(20_000 / 3600), "gpu": pytest.approx(40_000 / 3600)}
    # Four restarts of 500 steps; each step is 1 s plus a fiftieth of a metric of 50 s.
    assert attacked["hours"]["here"] == attacked["hours"]["workers_1"] == pytest.approx(2000 * 2 / 3600)
    assert attacked["hours"]["gpu"] == pytest.approx(2000 * 2 / 3600)
    assert attacked["hours"]["workers_2"] == pytest.approx(1000 * 2 / 3600)
    assert attacked["hours"]["workers_4"] == attacked["hours"]["workers_8"] == pytest.approx(500 * 2 / 3600)


def test_a_quick_run_writes_record_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    growth.main(["--quick", "--out", str(tmp_path)])
    record = files.read_json(tmp_path / "growth.json")
    assert [row["kind"] for row in record["rows"]] == ["training"] * 2 + ["engine"] * 2 + ["row_space"]
    assert all(row["peak_bytes"] >= row["loaded_bytes"] > 0 for row in record["rows"])
    engine = record["rows"][2]
    assert engine["flops_a_step"] > 0
    assert engine["metrics"] == engine["width"]
    assert record["assumed"]["gpu_flops_a_second"] == growth.GPU_FLOPS
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert "assumed" in capsys.readouterr().out
