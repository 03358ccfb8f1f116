"""The restricted unpickler runs nothing: each attack works with the ordinary unpickler and fails here."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engram.core.errors import DataError
from engram.data.readers import read_pickle


class Calls:
    """Pickles to a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    marker, path = tmp_path / "marker", tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": Calls(os.mkdir, str(marker))}, protocol))
    with pytest.raises(
        DataError, match=r"refused: .*batch tries to load .*\.mkdir; .*delete it and fetch it again"
    ):
        read_pickle(path, ["data"])
    assert not marker.exists()
    pickle.loads(path.read_bytes())  # noqa: S301
    assert marker.exists()


@pytest.mark.parametrize("function", [eval, getattr, np.load, np.frombuffer, Path, pickle.loads])
def test_every_other_name_is_refused(tmp_path: Path, function: Callable[..., Any]) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": Calls(function, "1")}))
    with pytest.raises(DataError, match="tries to load"):
        read_pickle(path, ["data"])


def test_permitted_names_run_no_code_either(tmp_path: Path) -> None:
    """numpy.ndarray((2**40,)) would take a terabyte if it were called."""
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"other": Calls(np.ndarray, (2**40,)), "labels": [1]}))
    assert read_pickle(path, ["labels"]) == {"labels": [1]}


def test_state_cannot_change_what_names_stand_for(tmp_path: Path) -> None:
    """BUILD on a name itself: `setattr(numpy.dtype, "state", 1)` would poison every later read."""
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02cnumpy\ndtype\nN}U\x05stateK\x01s\x86b.")
    with pytest.raises(DataError, match="truncated or damaged"):
        read_pickle(path, ["data"])


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": np.array([{}, []], dtype=object)}, protocol=2))
    with pytest.raises(DataError, match=r"refused: .*contains an array of type 'O8'"):
        read_pickle(path, ["data"])


@pytest.mark.parametrize("array", [
    np.arange(6, dtype=">i4").reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)),
    np.array([True, False]),
])  # fmt: skip
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_arrays_are_read_as_numpy_reads_them(tmp_path: Path, array: np.ndarray[Any, Any], protocol: int) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": array}, protocol))
    np.testing.assert_array_equal(read_pickle(path, ["data"])["data"], array, strict=True)


def test_an_array_with_a_false_shape(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    honest = pickle.dumps({"data": np.zeros((2, 3), np.uint8)}, protocol=2)
    path.write_bytes(honest.replace(b"K\x02K\x03\x86", b"K\x7fK\x03\x86"))
    with pytest.raises(DataError, match=r"truncated or damaged.*cannot reshape"):
        read_pickle(path, ["data"])


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    with path.open("wb") as stream:
        stream.truncate(2**30 + 1)  # sparse: takes no disk space
    with pytest.raises(DataError, match=r"refused: .*declares 1,073,741,825 bytes"):
        read_pickle(path, ["data"])
