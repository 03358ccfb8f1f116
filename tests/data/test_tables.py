"""Tables and embeddings as data: columns keep their names, and a report says which values came back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import engram
from engram.attacks.reconstruction import Reconstruction
from engram.auditing.visuals import values_section
from engram.core.errors import DataError
from engram.data.catalog import load
from engram.data.own_files import load_csv, load_safetensors
from engram.data.sets import ImageSet

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
