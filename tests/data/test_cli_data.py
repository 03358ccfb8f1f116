"""`engram data` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from engram.cli.data import app
from engram.core.errors import ConfigError, DataError
from engram.data import catalog as download

from .conftest import CONTENT, Server

run = CliRunner().invoke


def test_list_shows_every_set_and_how_to_get_it(tmp_path: Path) -> None:
    result = run(app, ["list", "--data-root", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for words in (
        "faces",
        "in the package",
        "missing: engram data get cifar10",
        "vehicles-animals",
        "folder:PATH",
    ):
        assert words in result.output


def test_list_json_finds_real_data(mnist_root: Path) -> None:
    result = run(app, ["list", "--json", "--data-root", str(mnist_root)])
    rows = {row["name"]: row for row in json.loads(result.output)}
    assert rows["mnist"]["where"] == str(mnist_root / "MNIST" / "raw")
    assert rows["faces"]["embedded"] is True
    assert rows["faces"]["test_split"] is False


def test_show_draws_a_sheet_and_says_what_it_wrote(tmp_path: Path) -> None:
    out = tmp_path / "gate.png"
    result = run(app, ["show", "faces", "--labels", "gate", "-n", "40", "-o", str(out)])
    assert result.exit_code == 0
    assert "faces: 100 images of 1×25×25" in result.output
    assert "admitted: 50" in result.output
    assert f"wrote {out}" in result.output
    with Image.open(out) as sheet:
        width, height = sheet.size
    assert (width, height) == (
        2 * 12 + 10 * 79 - 4,
        2 * 12 + 2 * 26 + 4 * 79,
    )  # 75-pixel tiles, 2 titles, 4 rows


def test_show_real_colour_images(cifar_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "cifar.png"
    result = run(app, ["show", "cifar10", "--data-root", str(cifar_root), "-o", str(out)])
    assert "automobile: " in result.output
    with Image.open(out) as sheet:
        red, _, blue = sheet.convert("RGB").resize((1, 1)).getpixel((0, 0))  # type: ignore[misc]
        assert sheet.mode == "RGB"
        assert red != blue


def test_show_of_the_first_classes(cifar_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "three.png"
    result = run(app, ["show", "cifar10", "--classes", "3", "--data-root", str(cifar_root), "-o", str(out)])
    assert "bird: " in result.output
    assert "cat: " not in result.output


def test_show_of_points_says_that_there_is_no_picture(tmp_path: Path) -> None:
    result = run(app, ["show", "circle", "-o", str(tmp_path / "circle.png")])
    assert isinstance(result.exception, ConfigError)
    assert "circle contains points of shape (2,), not images" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_show_of_a_missing_set(tmp_path: Path) -> None:
    result = run(app, ["show", "cifar100", "--data-root", str(tmp_path)])
    assert isinstance(result.exception, DataError)
    assert "engram data get cifar100" in str(result.exception)


def test_get_fetches_into_the_data_root(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(download.REMOTES, "mnist", (server.file(),))
    result = run(app, ["get", "mnist", "--data-root", str(tmp_path)])
    assert result.exit_code == 0
    assert f"wrote {tmp_path / 'set' / 'data.gz'}" in result.output
    assert f"mnist is ready in {tmp_path}" in result.output
    assert (tmp_path / "set" / "data.gz").read_bytes() == CONTENT


def test_get_of_an_embedded_set_has_nothing_to_do() -> None:
    assert "faces comes with engram; there is nothing to fetch" in run(app, ["get", "faces"]).output


@pytest.mark.parametrize("command", ["list", "get", "show"])
def test_help_has_an_example(command: str) -> None:
    assert f"engram data {command}" in run(app, [command, "--help"], env={"COLUMNS": "200"}).output


def test_import_and_list_are_light() -> None:
    """The command line responds at once: neither importing nor listing loads heavy libraries."""
    code = (
        "import sys; from engram.cli.data import _rows; _rows(None); "
        "print(*{'torch', 'numpy', 'skimage', 'PIL', 'rich.progress'} & set(sys.modules))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == ""
