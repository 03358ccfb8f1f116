"""`engram inspect` as users and programs run it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from engram.cli.app import app
from engram.core.errors import EngramError
from tests.cli.command import engram

KEYS = {
    "": "model schema_version input_shape task name architecture parameters dtype homogeneous activation layers "
    "row_space equations margin samples verdict",
    "row_space": "layer rank at_edges noise_std edge threshold singular_values",
    "equations": "samples equations unknowns most_samples row_space_equations row_space_unknowns "
    "row_space_most_samples",
    "margin": "margin sum_of_duals",
    "verdict": "in_reach decided_by sentence",
    "samples": "count loss accuracy margins kkt ceiling boundaries each each_held_out",
    "samples.margins": "min median mean max on_margin",
    "samples.kkt": "layers support_vectors margin",
    "samples.ceiling": "recognisable recognisable_by_mean share ssim ncc",
    "samples.boundaries": "train held_out beyond_held_out",
}
LAYER = "name inputs outputs norm largest_singular_value bias_norm noise"
SAMPLE = "index label margin dual support share ssim ncc mean_ssim boundaries"


def invoke(*arguments: object) -> str:
    """Standard output of the command, run in this process; its error is raised."""
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": "200"})
    if isinstance(result.exception, EngramError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small gate: 10 faces, 60-30 network."""
    out = tmp_path_factory.mktemp("gate") / "target"
    command = "train --data faces --labels gate -n 10 --widths 60,30 --epochs 500 --lr 0.05 -o"
    assert CliRunner().invoke(app, [*command.split(), str(out)]).exit_code == 0
    return out


def width_of(png: Path) -> int:
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG")
    return int(struct.unpack(">I", content[16:20])[0])


def test_what_an_attacker_sees(target: Path, tmp_path: Path) -> None:
    printed = invoke(target, "--plot", tmp_path / "spectrum.png")
    assert "60 x 625" in printed
    assert "unknown" in printed, "the output layer is too small to estimate its noise"
    assert "9 directions above" in printed
    assert "as many as the unknowns of 60 samples" in printed
    assert "In reach: the first layer has 9 directions" in printed
    assert "KKT" not in printed
    assert width_of(tmp_path / "spectrum.png") > 400
    assert "600 unknowns of 60 samples" in invoke(target, "-n", 60)
    assert "Out of reach of this attack: 61 samples" in invoke(target, "-n", 61)


def test_what_the_owner_sees_as_well(target: Path, tmp_path: Path) -> None:
    named = invoke(target, "--data", "faces", "--labels", "gate", "-n", 10, "-o", tmp_path / "all.png")
    for words in ("KKT", "accuracy 100.0%", "support vectors", "SSIM above 0.4 for 10 of 10", "held-out"):
        assert words in named
    assert named.replace(f"wrote {tmp_path / 'all.png'}\n", "") == invoke(target, "--with-data")
    invoke(target, "-o", tmp_path / "one.png")
    assert width_of(tmp_path / "all.png") > 2.5 * width_of(tmp_path / "one.png")


def test_json_has_the_documented_keys(target: Path, tmp_path: Path) -> None:
    """From the real command: only JSON on standard output, even when a picture is drawn."""
    found = json.loads(engram("inspect", target, "--with-data", "--json", "-o", tmp_path / "all.png"))
    documented = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text()
    for place, names in KEYS.items():
        part = found
        for key in place.split(".") if place else ():
            part = part[key]
        assert list(part) == names.split(), place
        assert all(f"`{name}`" in documented for name in names.split()), place
    assert all(list(layer) == LAYER.split() for layer in found["layers"])
    assert [layer["noise"] is None for layer in found["layers"]] == [False, False, True]
    assert found["samples"]["count"] == len(found["samples"]["each"]) == 10
    assert all(list(row) == SAMPLE.split() for row in found["samples"]["each"])
    assert all(f"`{name}`" in documented for name in f"{LAYER} {SAMPLE}".split())
    assert [layer["name"] for layer in found["samples"]["kkt"]["layers"]] == ["layers.0", "layers.1", "layers.2"]
    assert json.loads(invoke(target, "--json"))["samples"] is None


def test_points_of_the_plane_have_no_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 30), torch.nn.ReLU(), torch.nn.Linear(30, 1, bias=False))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    shape = ("--input-shape", "2", "--data", "circle", "-n", 20)
    printed = invoke(tmp_path / "model.pt", *shape, "-o", tmp_path / "all.png")
    assert "2 directions in all (the layer is too small to estimate its noise)" in printed
    assert "100.0% of the median sample's energy is in the row space" in printed
    assert "Out of reach" in printed, "the network is untrained"
    assert width_of(tmp_path / "all.png") > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--data npz:DIGITS -n 10", "must have the model's input shape 1x25x25, got '1x28x28'"),
        ("--data faces --labels gate -n 1000", "ask for at most"),
        ("--data faces", "--data needs -n, the number of training images"),
        ("--with-data -n 10", "--with-data takes the data from the model's card; leave -n out"),
        ("--with-data --data faces", "--with-data takes the data from the model's card; leave --data out"),
        ("--labels gate", "--labels can only be used with --data; give --data NAME -n NUMBER too"),
        ("--plot picture.jpeg", "--plot must end in .png, got 'picture.jpeg'"),
        ("--input-shape 3x32x32", "input shape 3x32x32 has 3,072 values, but the first"),
    ],
)
def test_errors_name_cause_and_cure(target: Path, tmp_path: Path, options: str, message: str) -> None:
    digits = tmp_path / "digits.npz"
    np.savez(digits, images=np.zeros((20, 28, 28), np.uint8), labels=np.arange(20) % 2)
    with pytest.raises(EngramError) as caught:
        invoke(target, *options.replace("DIGITS", str(digits)).split())
    assert message in str(caught.value)


def test_with_data_needs_a_card(target: Path) -> None:
    with pytest.raises(EngramError, match="--with-data needs a directory from `engram train`"):
        invoke(target / "model.safetensors", "--input-shape", "1x25x25", "--with-data")
