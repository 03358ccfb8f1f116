"""Two audits side by side: real runs, the tests against scipy's, and runs that can't be compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engram.auditing.membership_report import run_membership
from engram.auditing.side_by_side import Hits, Side, SideBySide, difference_tests, read_side, side_by_side_page
from engram.core.errors import CheckpointError, ConfigError
from engram.models.open.modules import as_module
from engram.render.html import render
from tests.auditing.cases import faces, innocent, leaking, memorising
from tests.cli.command import engram


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    leaking().save(folder / "before")
    innocent().save(folder / "after")
    return folder


def hits(each: str) -> Hits:
    return Hits(each.count("1"), len(each), tuple(one == "1" for one in each))


def side(runs: Path, **changes: object) -> Side:
    return replace(read_side(runs / "before"), **changes)  # type: ignore[arg-type]


def test_a_model_that_forgot_its_records_differs_by_more_than_chance(runs: Path) -> None:
    found = SideBySide(read_side(runs / "before"), read_side(runs / "after"))
    assert found.more_than_chance
    assert found.same_weights is False
    assert found.sentence.startswith("More than chance: ")
    rows = {name: (one, two) for name, one, two in found.rows()}
    assert rows["verdict"] == ("leak found", "no leak found")
    comparison = leaking().comparison
    assert comparison is not None
    assert rows["records recovered"][0].startswith(f"{comparison.count.train} of 20 (")
    assert rows["the same of the control"][0].startswith("0 of 20 (")
    assert ("baselines", "model inversion, first-layer weights", "none") in found.differing_settings
    text = render(side_by_side_page(found))
    assert "More than chance" in text
    stored = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert stored["tests"][0]["p_value"] < 0.025
    assert stored["before"]["sentence"] == leaking().verdict.sentence


def test_the_same_model_twice_does_not_differ(runs: Path) -> None:
    found = SideBySide(side(runs), side(runs, run="again"))
    assert found.more_than_chance is False
    assert found.same_weights
    assert "Chance explains the difference" in found.sentence
    assert "the same weights" in found.sentence


def test_the_same_records_are_compared_one_by_one(runs: Path) -> None:
    """Six records lost and none gained: 2 / 2^6 by McNemar; Fisher does not know that they are the same."""
    one, two = side(runs, recovered=hits("1" * 20)), side(runs, recovered=hits("1" * 14 + "0" * 6))
    paired, apart = (difference_tests(one, two, paired=paired)[0] for paired in (True, False))
    assert paired.p_value == pytest.approx(2 / 2**6)
    assert apart.p_value == pytest.approx(2 * 38_760 / 3_838_380), "C(20, 6) of C(40, 6), on both sides"
    assert {paired.test, apart.test} == {"McNemar's exact test", "Fisher's exact test"}
    assert paired.level == 0.025, "two tests share 5 %"


def test_records_are_the_same_by_their_digest(runs: Path) -> None:
    train = side(runs).train
    assert train is not None
    known = side(runs, train=replace(train, sha256="a"))
    other = side(runs, train=replace(train, sha256="b"))
    assert SideBySide(known, known).same_records
    assert SideBySide(known, other).same_records is False
    assert SideBySide(side(runs, train=replace(train, name="others", sha256=None)), known).same_records is False


def test_runs_that_have_nothing_in_common_are_refused(runs: Path) -> None:
    before = side(runs)
    with pytest.raises(ConfigError, match="was audited blind"):
        SideBySide(before, side(runs, train=None))
    with pytest.raises(ConfigError, match=r"other inputs \(1x25x25 and 3x32x32\)"):
        SideBySide(before, side(runs, input_shape=(3, 32, 32)))
    with pytest.raises(ConfigError, match=r"counts as recovered by ncc>0\.8"):
        SideBySide(before, side(runs, threshold="relative_l2<0.3"))


def test_a_membership_report_is_compared_by_membership_alone(runs: Path, tmp_path: Path) -> None:
    run_membership(as_module(memorising()), faces(0), faces(20), name="gate").save(tmp_path)
    found = SideBySide(read_side(runs / "before"), read_side(tmp_path))
    assert [test.what for test in found.tests] == ["members were identified"]
    assert found.after.recovered is None


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        "null",
        "[" * 100_000,
        '{"mode": "with data"}',
        '{"mode": "membership only", "membership": 7, "verdict": {}}',
    ],
)
def test_a_damaged_report_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"report.json is damaged"):
        read_side(tmp_path)


def test_counts_that_contradict_themselves_are_refused(runs: Path, tmp_path: Path) -> None:
    stored = json.loads((runs / "before" / "report.json").read_text())
    stored["comparison"]["scores"]["counts"]["ncc>0.8"]["train"] = 21
    (tmp_path / "report.json").write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match="21 hits among 20 records"):
        read_side(tmp_path)


def test_the_command_prints_a_table_and_writes_page_and_numbers(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "compared"
    printed = engram("compare", runs / "before", runs / "after", "-o", out)
    assert "records recovered" in printed
    assert "More than chance" in printed
    assert json.loads((out / "compare.json").read_text())["more_than_chance"] is True
    assert (out / "compare.html").read_text().startswith("<!doctype html>")
    assert "are the same run" in engram("compare", runs / "before", runs / "before", expect=1)
    assert "neither report.json nor membership.json" in engram("compare", runs, runs / "after", expect=1)


def test_the_report_is_made_again_without_computing(runs: Path, tmp_path: Path) -> None:
    run = runs / "before"
    first = (run / "report.html").read_bytes()
    engram("report", run, "-o", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == first
    rule = {"rule": "images", "limit": "at most 0", "value": "9", "outcome": "fail", "reason": "They came back."}
    decision = {"outcome": "fail", "sentence": "Fail: images.", "decided_by": "images", "rules": [rule]}
    (run / "decision.json").write_text(json.dumps(decision))
    engram("report", run)
    assert "Fail: images." in (run / "report.html").read_text()
    assert read_side(run).rows()["decision"] == "fail"
    (run / "decision.json").unlink()


def test_what_can_t_be_made_again_is_said(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report.json").write_text("{}")
    assert "was written by an older engram" in engram("report", tmp_path, expect=1)
    assert "is not a directory" in engram("report", tmp_path / "nothing", expect=1)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "--pdf needs Chromium or Chrome" in engram("report", runs / "before", "--pdf", expect=1)
