"""Tables and embeddings as data: columns keep their names, and a report says which values came back."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import engram
from engram.attacks.reconstruction import Reconstruction
from engram.auditing.visuals import values_section
from engram.cli.app import app
from engram.core.errors import DataError, EngramError
from engram.data.catalog import load
from engram.data.own_files import load_csv, load_safetensors
from engram.data.parquet import require_bounded
from engram.data.sets import ImageSet
from engram.models.open.door import open_recorded
from engram.models.view import Features

TABLE = "age,sex,income,label\n44,F,1.5,yes\n30,M,2.5,no\n\n51,F,0.5,no\n"


def written(path: Path, text: str = TABLE) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_numbers_texts_and_labels(tmp_path: Path) -> None:
    found = load_csv(written(tmp_path / "people.csv"))
    assert found.columns == ("age", "sex=F", "sex=M", "income")
    assert found.images.tolist() == [[44, 1, 0, 1.5], [30, 0, 1, 2.5], [51, 1, 0, 0.5]]
    assert (found.classes, found.labels.tolist(), found.name) == (("no", "yes"), [1, 0, 0], "people")
    by_name = load(f"csv:{tmp_path / 'people.csv'}#sex")
    assert by_name.classes == ("F", "M")
    assert by_name.columns == ("age", "income", "label=no", "label=yes")
    assert load(str(tmp_path / "people.csv")).take(torch.tensor([0])).columns == found.columns


def test_numbered_labels_keep_their_order(tmp_path: Path) -> None:
    found = load_csv(written(tmp_path / "t.csv", "x,y\n1,10\n2,2\n3,0\n"))
    assert found.classes == ("0", "2", "10")
    assert found.labels.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "must have a line of different column names"),
        ("a,a\n1,2\n", "must have a line of different column names"),
        ("a,b\n1,2\n1,2,3\n", "line 3: 2 values expected"),
        ("a,label\n,1\n2,0\n3,1\n".replace("\n,1", "\nnan,1"), "column 'a' has missing or infinite values"),
        ("name,label\n" + "".join(f"p{i},1\n" for i in range(101)), "column 'name' has 101 different texts"),
    ],
)
def test_tables_that_can_not_be_read(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_csv(written(tmp_path / "t.csv", text))


def test_a_missing_column_or_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no column 'z'; it has age, sex, income, label"):
        load(f"csv:{written(tmp_path / 't.csv')}#z")
    for reader in (load_csv, load_safetensors):
        with pytest.raises(DataError, match="there is no file"):
            reader(tmp_path / "none")
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="save it as UTF-8"):
        load_csv(tmp_path / "t.csv")


def test_embeddings_in_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "e.safetensors"
    save_file({"embeddings": torch.rand(4, 7), "labels": torch.tensor([0, 1, 0, 1])}, path)
    assert load(f"safetensors:{path}").shape == (7,)
    save_file({"a": torch.rand(4, 7), "b": torch.rand(4, 7)}, path)
    with pytest.raises(DataError, match="must contain the tensor labels and one other"):
        load_safetensors(path)
    path.write_bytes(b"not safetensors")
    with pytest.raises(DataError, match="can't be read as safetensors"):
        load_safetensors(path)


def test_the_report_says_which_values_came_back(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(24, 6, generator=generator)
    columns = ("age", "weight", "income", "height", "sex=F", "sex=M")
    labels = torch.arange(24) % 2
    sets = [
        ImageSet(values[part], labels[part], "people", ("no", "yes"), columns)
        for part in (slice(0, 12), slice(12, 24))
    ]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 200), nn.ReLU(), nn.Linear(200, 1))
    with torch.no_grad():
        next(model.parameters()).mul_(0.01)
    inputs = sets[0].images - sets[0].images.mean(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(1500):
        optimizer.zero_grad()
        nn.functional.softplus(-(2 * sets[0].labels - 1) * model(inputs)[:, 0]).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    settings = engram.EngineSettings(steps=150, restarts=2)
    record = engram.audit(
        model, input_shape=(6,), train=sets[0], held_out=sets[1], settings=settings, baselines="none"
    )
    assert record.comparison is not None
    page = record.to_html()
    assert "Records read out of the weights" in page
    perfect = Reconstruction(inputs, torch.ones(12), sets[0].labels)
    near = replace(record.comparison, score=engram.compare(perfect, record.comparison.data))
    assert near.count.train == 12
    section = values_section(replace(record, comparison=near))
    assert section is not None
    index, _, text = section.tables[0].rows[0]
    found = [part.split() for part in str(text).split(", ")]
    assert [name for name, _, _ in found] == ["age", "weight", "income", "height", "sex"]
    assert isinstance(index, int)
    assert found[0][1:] == [f"{float(sets[0].images[index, 0]):.4g}", f"({float(sets[0].images[index, 0]):.4g})"]


def frame(rows: int = 40) -> Any:
    """A table with a column of every kind that both formats can hold."""
    rng = np.random.default_rng(0)
    return polars.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "weight": rng.normal(70, 10, rows),
            "single": rng.normal(size=rows).astype(np.float32),
            "smokes": rng.random(rows) > 0.5,
            "sex": rng.choice(["F", "M"], rows),
            "city": polars.Series(rng.choice(["New York", "Bonn", ""], rows)).cast(polars.Categorical),
            "byte": rng.integers(0, 255, rows, dtype=np.uint8),
            "label": rng.choice(["yes", "no"], rows),
        }
    )


@pytest.mark.parametrize("label", ["", "#smokes", "#age"])
def test_csv_and_parquet_of_one_table_give_the_same_bits(tmp_path: Path, label: str) -> None:
    frame().write_parquet(tmp_path / "t.parquet", row_group_size=16)
    frame().write_csv(tmp_path / "t.csv")
    one, other = (load(f"{kind}:{tmp_path / 't'}.{kind}{label}") for kind in ("parquet", "csv"))
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)
    assert (one.columns, one.classes, one.name) == (other.columns, other.classes, other.name)
    assert label or one.columns[3:8] == ("smokes", "sex=F", "sex=M", "city=", "city=Bonn")
    assert label or set(one.images[:, 3].tolist()) == {0.0, 1.0}


def test_lists_in_parquet_are_embeddings(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(6, 3))
    path = tmp_path / "e.parquet"
    polars.DataFrame({"emb": values.tolist(), "y": [0, 1] * 3}).write_parquet(path)
    found = load(str(path))
    assert found.columns == ("emb[0]", "emb[1]", "emb[2]")
    np.testing.assert_array_equal(found.images.numpy(), values.astype(np.float32))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0, None], "y": [0, 1]}, "column 'a' has missing or infinite values"),
        ({"a": [1.0, float("inf")], "y": [0, 1]}, "column 'a' has missing or infinite values"),
        ({"a": [date(2020, 1, 1)] * 2, "y": [0, 1]}, "column 'a' is of the type Date; give it as it enters"),
        ({"a": [[1.0], [1.0, 2.0]], "y": [0, 1]}, "column 'a' has lists of different lengths"),
        ({"a": [1.0, 2.0], "y": [[0], [1]]}, "column 'y' has lists; can't be a label"),
        ({"y": [0, 1]}, "must have records, a label and at least one other column"),
        ({"a": [f"p{i}" for i in range(101)], "y": [0] * 101}, "column 'a' has 101 different texts"),
    ],
)
def test_parquet_tables_that_can_not_be_read(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    polars.DataFrame(columns).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=message):
        load(str(tmp_path / "t.parquet"))


def test_hostile_parquet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    zeros = polars.Series(np.zeros(200_000))
    polars.DataFrame({"a": zeros, "y": zeros.cast(polars.Int8)}).write_parquet(path)
    assert path.stat().st_size < 5000  # and unpacks to 3 MB
    monkeypatch.setattr("engram.data.sets.MAX_BYTES", 2_000_000)
    with pytest.raises(DataError, match=r"refused: .* declares 3,200,000 bytes"):
        load(str(path))
    monkeypatch.undo()
    frame().write_parquet(path, compression="uncompressed")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError, match="not a whole Parquet file"):
        load(str(path))
    length = int.from_bytes(whole[-8:-4], "little")
    path.write_bytes(whole[: -8 - length] + b"\xff" * length + whole[-8:])
    with pytest.raises(DataError, match="its summary can't be read"):
        load(str(path))
    path.write_bytes(whole[:8] + b"\xff" * (len(whole) - 16 - length) + whole[-8 - length :])
    with pytest.raises(DataError, match=r"is damaged|can't be read as Parquet"):  # whichever way polars ends
        load(str(path))
    with pytest.raises(DataError, match="there is no file"):
        load(f"parquet:{tmp_path / 'none'}")


def test_damaged_summaries_of_parquet_are_errors_not_crashes(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    frame(5).write_parquet(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(whole)
        for place in rng.integers(len(whole) - int.from_bytes(whole[-8:-4], "little") - 8, len(whole), 3):
            broken[place] = rng.integers(256)
        path.write_bytes(bytes(broken))
        with suppress(DataError):
            require_bounded(path)


def test_a_table_with_a_gap_in_its_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'a' has missing"):
        load_csv(written(tmp_path / "t.csv", "a,label\n1.5,1\n,0\n"))


def test_npy_with_labels_beside_or_in_the_last_column(tmp_path: Path) -> None:
    values, labels = np.random.default_rng(0).normal(size=(6, 4)), np.array([0, 1, 2, 0, 1, 2])
    path = tmp_path / "x.npy"
    np.save(path, np.c_[values, labels])
    np.save(tmp_path / "other.npy", labels[::-1].copy())
    found = load(f"npy:{path}")
    np.testing.assert_array_equal(found.images.numpy(), values.astype(np.float32))
    assert found.labels.tolist() == labels.tolist()
    assert load(f"{path}#other.npy").shape == (5,)
    np.save(path, values)
    with pytest.raises(DataError, match=r"has no labels: put them beside it as x_labels\.npy"):
        load(str(path))
    np.save(tmp_path / "x_labels.npy", labels)
    assert load(str(path)).shape == (4,)
    np.save(path, np.array([{}, {}]), allow_pickle=True)
    with pytest.raises(DataError, match=r"not a whole \.npy file of numbers"):
        load(str(path))
    path.write_bytes(
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 9), }\n"
    )
    with pytest.raises(DataError, match=r"not a whole \.npy file of numbers"):
        load(str(path))


def people(path: Path, rows: int = 24) -> Path:
    """A table whose label follows from its texts."""
    rng = np.random.default_rng(0)
    sex, town = rng.choice(["F", "M"], rows), rng.choice(["a", "b", "c"], rows)
    values = zip(rng.random(rows), sex, town, strict=True)
    lines = [f"{age},{one},{other},{int(one == 'F')}" for age, one, other in values]
    return written(path, "\n".join(["age,sex,town,label", *lines]) + "\n")


def run_command(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, EngramError):
        return str(result.exception)
    assert result.exit_code == 0, result.output
    return result.output


def test_names_of_columns_on_the_command_line(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    data = f"csv:{people(tmp_path / 'people.csv')}"
    names = "age,sex=F,sex=M,town=a,town=b,town=c"
    start = ("reconstruct", tmp_path / "model.pt", "--input-shape", 6, "--steps", 6, "--restarts", 1, "-m", 6)
    for run, more in (("plain", ()), ("named", ("--columns", names))):
        run_command(*start, *more, "-o", tmp_path / run)
    record = json.loads((tmp_path / "named" / "run.json").read_text())
    assert record["columns"] == names.split(",")
    plain, named = (
        Reconstruction.load(tmp_path / run / "reconstruction.safetensors") for run in ("plain", "named")
    )
    assert not torch.equal(plain.images, named.images)
    view = open_recorded(record)
    assert view.features == Features(tuple(names.split(",")))
    resumed = ("reconstruct", tmp_path / "model.pt", "-o", tmp_path / "plain", "--resume", "--columns", names)
    assert "columns is" in run_command(*resumed)
    audited = ("audit", tmp_path / "model.pt", "--input-shape", 6, "--baselines", "none", "--budget", "1s")
    with_data = (*audited, "--data", data, "-n", 12)
    assert "--columns data makes it stronger" in run_command(*with_data, "-o", tmp_path / "told")
    run_command(*with_data, "--columns", "data", "-o", tmp_path / "audit")
    report = json.loads((tmp_path / "audit" / "report.json").read_text())
    assert report["model"]["columns"] == names.split(",")
    for wrong in ("data", "age", "a=1,a=2"):
        assert "columns" in run_command(*audited, "--columns", wrong, "-o", tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()
