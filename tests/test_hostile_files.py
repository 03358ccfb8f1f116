"""A thousand damaged files, over every reader: an error in words, or a result. `benchmarks/fuzz.py` tries 10^5."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks import fuzz
from engram.core import files
from engram.core.errors import CheckpointError

SEED = 2024
EACH = {"run": 12, "card": 20, "folder": 40, "options": 40}
"""Inputs of readers that take longer; of the others `MOST`."""
MOST = 52


@pytest.mark.parametrize("name", fuzz.READERS)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    whole = fuzz.made(name, tmp_path / "made")
    found = {}
    for number in range(EACH.get(name, MOST)):
        problem = fuzz.problem(name, fuzz.changed(name, whole, number, SEED), tmp_path / "input")
        if problem is not None:
            found[number] = problem
    assert not found


def test_a_picture_that_claims_more_than_there_is_memory() -> None:
    """Found by `benchmarks.fuzz`: a part of a PNG file says that it has 4 GB, which Pillow asks for at once."""
    assert fuzz.tried("folder", 3407, 71, first=3406) == []


def test_a_reader_that_fails_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: what is not an error in words is reported, with its place."""
    naive = fuzz.Reader(lambda place: None, lambda place: json.loads((place / "a.json").read_text()))
    monkeypatch.setitem(fuzz.READERS, "naive", naive)
    problem = fuzz.problem("naive", {"a.json": b"{"}, tmp_path / "input")
    assert problem is not None
    assert problem.startswith("JSONDecodeError")


def test_mutations_change_the_content_and_repeat() -> None:
    content = b'{"a": [1, 2, {"b": "text"}], "c": null}'
    made = [fuzz.mutated(content, random.Random(seed)) for seed in range(100)]
    assert made == [fuzz.mutated(content, random.Random(seed)) for seed in range(100)]
    assert sum(one != content for one in made) > 95
    assert len(set(made)) > 60


LINES = {
    "garbage": b"\x00\xff garbage\n",
    "nested without end": b"[" * 100_000 + b"\n",
    "nested objects": b'{"a":' * 100_000 + b"\n",
    "a huge number": b'{"step": ' + b"9" * 10_000 + b"}\n",
    "not UTF-8": b'{"step": "\xff"}\n',
    "a list": b"[1, 2]\n",
    "a line of megabytes": b'{"step": "' + b"x" * 2**21 + b'"}\n',
}


@pytest.mark.parametrize("kind", LINES)
def test_lines_that_are_no_objects_count_as_never_written(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + LINES[kind] + b'{"step": 2}\n')
    assert files.read_json_lines(path) == [{"step": 1}, {"step": 2}]


def test_lines_of_a_directory_or_of_no_file(tmp_path: Path) -> None:
    assert files.read_json_lines(tmp_path / "none") == []
    with pytest.raises(CheckpointError, match="is not a file"):
        files.read_json_lines(tmp_path)
    with pytest.raises(CheckpointError, match="is not a file"):
        files.read_json(tmp_path)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_JSON", 10)
    (tmp_path / "a.json").write_text(json.dumps({"a": "b" * 10}))
    with pytest.raises(CheckpointError, match="more than the limit of 10"):
        files.read_json(tmp_path / "a.json")
