"""Page and Markdown from the JSON alone; failures are recorded, and `all` continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engram.cli.score import reproduce
from engram.core.errors import CheckpointError, ConfigError, DataError
from engram.papers.cases import Case
from engram.papers.catalogue import CATALOGUE, Run, read_records
from engram.papers.records import Finished
from engram.papers.results import publish
from engram.render.figures import is_chart
from tests.cli.command import engram


@pytest.fixture
def run(tmp_path: Path, smoke: Run) -> Run:
    """A run in its own directory."""
    return replace(smoke, home=tmp_path)


def test_page_and_markdown_show_the_numbers_of_the_json(run: Run, tmp_path: Path) -> None:
    run.experiments([CATALOGUE["haim/fig1"]], keep_going=False)
    path = tmp_path / "experiments" / "haim-fig1.json"
    record = json.loads(path.read_text())
    row = record["rows"][0]
    row["counts"]["ssim>0.4"] = {"train": 8765, "held_out": 43, "excess": 1.0, "noise": 21}
    row["training"]["test_accuracy"] = 0.64
    record["scale"] = "cpu"  # scale smoke is not compared with the papers
    path.write_text(json.dumps(record))
    page, text = publish(tmp_path, tmp_path / "docs" / "results.md")
    assert text == tmp_path / "docs" / "results.md"
    assert "| cifar50 (engine) | 10 | 625-50-50-1 | 8,765 | 43 | 21 |" in text.read_text()
    assert "| 72.0 % | 64.0 % | 2.14 | – | 8.0 points short; cut: 10 images of faces" in text.read_text()
    shown = page.read_text()
    assert "8,765" in shown
    assert "cifar50, test accuracy: 8.0 points short; cut: 10 images of faces" in shown
    assert shown.count("data:image/png;base64,") == 1
    assert "http" not in shown.replace("http-equiv", "")


def test_charts_are_copied_with_the_markdown_and_data_images_are_not(run: Run, tmp_path: Path) -> None:
    """haim/fig1 is a gallery, haim/fig4 has only scatter plots; the run's own Markdown shows both."""
    run.experiments([CATALOGUE["haim/fig1"], CATALOGUE["haim/fig4"]], keep_going=False)
    text = publish(tmp_path, tmp_path / "docs" / "results.md")[1].read_text()
    assert [path.name for path in (tmp_path / "docs" / "figures").iterdir()] == ["haim-fig4.png"]
    assert "![haim-fig4](figures/haim-fig4.png)" in text
    assert "Figure: `DIR/figures/haim-fig1.png`, not included here because it shows images of the data set" in text
    own = publish(tmp_path)[1].read_text()
    assert "![haim-fig1](figures/haim-fig1.png)" in own
    assert not is_chart((tmp_path / "figures" / "haim-fig1.png").read_bytes())
    assert is_chart((tmp_path / "docs" / "figures" / "haim-fig4.png").read_bytes())


def test_a_failure_is_recorded_and_the_next_experiment_runs(run: Run, said: list[str], tmp_path: Path) -> None:
    def broken(cases: Sequence[Finished]) -> dict[str, bytes]:
        raise ValueError("no ink")

    bad = replace(CATALOGUE["haim/fig1"], id="haim/fig3", draw=broken)
    records = run.experiments([bad, CATALOGUE["haim/fig1"]], keep_going=True)
    assert [record["failed"] for record in records] == ["ValueError: no ink", None]
    assert "haim/fig3 failed: ValueError: no ink" in said
    text = publish(tmp_path)[1].read_text()
    assert "- Failed: ValueError: no ink" in text
    assert "- haim/fig3 failed: ValueError: no ink" in text
    with pytest.raises(ValueError, match="no ink"):
        run.experiments([bad], keep_going=False)


def test_a_failed_case_fails_the_experiments_that_need_it(run: Run, said: list[str]) -> None:
    missing = replace(CATALOGUE["haim/fig1"], id="haim/fig3", cases=(Case("cifar50"), Case("nothing")))
    with pytest.raises(ConfigError, match="there is no preset 'nothing'"):
        run.experiments([missing], keep_going=False)

    setting = replace(run.setting, means=replace(run.setting.means, device="nowhere"))
    records = replace(run, setting=setting).experiments([CATALOGUE["haim/fig1"]], keep_going=True)
    assert records[0]["failed"].startswith("RuntimeError")
    assert said[-1].startswith("haim/fig1 failed: RuntimeError")


def test_two_settings_are_never_mixed(run: Run) -> None:
    run.experiments([CATALOGUE["haim/fig1"]], keep_going=False)
    other = replace(run, setting=replace(run.setting, seed=1))
    with pytest.raises(ConfigError, match="--recipe engine --seed 0, not --scale smoke --recipe engine --seed 1"):
        other.experiments([CATALOGUE["haim/fig1"]], keep_going=False)


def test_a_missing_figure_is_an_error_with_a_cure(run: Run, tmp_path: Path) -> None:
    run.experiments([CATALOGUE["haim/fig1"]], keep_going=False)
    (tmp_path / "figures" / "haim-fig1.png").unlink()
    with pytest.raises(CheckpointError, match=r"contains a damaged experiment .FileNotFoundError.*; run it again"):
        publish(tmp_path)
    run.experiments([CATALOGUE["haim/fig1"]], keep_going=False)
    publish(tmp_path)


def test_a_directory_without_experiments_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="contains no experiments; run one with `engram reproduce ID -o"):
        read_records(tmp_path, CATALOGUE)


def test_reproduce_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGRAM_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "papers"
    printed = engram("reproduce", "haim/fig1", "--scale", "smoke", "-o", out)
    assert "cifar50: cut: 10 images of faces instead of 50 of cifar10; network 625-50-50-1" in printed
    assert " of 10 good, held-out " in printed
    again = engram("reproduce", "haim/fig1", "--scale", "smoke", "-o", out)
    assert "of 10 good" not in again, "nothing is computed twice"
    (out / "index.html").unlink()
    reproduce("results", out, markdown=tmp_path / "results.md")
    assert (out / "index.html").exists()
    assert (tmp_path / "results.md").read_text().startswith("# Results")


def test_what_the_command_refuses_and_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(show_list=True)
    listed = capsys.readouterr().out
    assert all(name in listed for name in CATALOGUE)
    with pytest.raises(ConfigError, match="there is no experiment 'haim/fg1'; did you mean haim/fig1"):
        reproduce("haim/fg1", tmp_path)
    with pytest.raises(ConfigError, match="there is no experiment to run"):
        reproduce(out=tmp_path)
    with pytest.raises(ConfigError, match="--markdown can only be used with all and results"):
        reproduce("haim/fig1", tmp_path, markdown=tmp_path / "x")


def test_missing_data_names_the_cure(run: Run, tmp_path: Path) -> None:
    setting = replace(run.setting, scale="cpu", means=replace(run.setting.means, data_root=tmp_path))
    with pytest.raises(DataError, match="engram data get cifar10"):
        replace(run, setting=setting).experiments([CATALOGUE["haim/fig1"]], keep_going=False)
