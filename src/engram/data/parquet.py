"""Tables and embeddings in Parquet files, read by polars under the conventions of csv tables.

The file's own summary is read first, here: it says to how many values every column unpacks. A few bytes may unpack
to billions, so a file that is too large is refused before anything is unpacked. polars itself runs in a process of
its own, with a limit on its memory: a damaged page can end that process, which no `except` would see.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.core.errors import DataError, optional

if TYPE_CHECKING:
    from engram.data.own_files import Array
    from engram.data.sets import ImageSet

MAGIC = b"PAR1"
MAX_SUMMARY = 2**26
MAX_MEMORY = 2**33
MAX_SECONDS = 300
LONGEST_TEXT = 1000
MOST_TEXTS = 10_000
DEEPEST = 16
"""Structures inside structures; a summary needs six."""
ROWS, GROUPS, CHUNKS, DETAILS, VALUES, UNPACKED = 3, 4, 1, 3, 5, 6
"""Numbers of fields in the summary: its rows and row groups; a group's column chunks; a chunk's details, and in
them its values and its bytes after decompression."""
ARRAYS_FILE, NAMES_FILE = "arrays.npz", "columns.json"
_CURE = "write it again with write_parquet (polars) or to_parquet (pandas)"


def load_parquet(path: Path, label: str | None = None) -> ImageSet:
    """Read a table: numbers as they are, booleans as 0 and 1, texts and categories as one column for each value.

    A column of lists of one length, such as embeddings, becomes one column for each place. The label is found as
    in a csv table.
    """
    from engram.data.own_files import labelled_table

    optional("polars", wanted_by="a .parquet file", install="engram[tables]")
    require_bounded(path)
    columns = _Columns(path, *_read_apart(path))
    return labelled_table(path, list(columns.described), label, columns.texts, columns.numbers)


def _read_apart(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Every column's description and array, by name, as another process read them."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="engram-") as place:
        paths = os.pathsep.join(one for one in sys.path if one)  # and never the current directory: -P
        command = [sys.executable, "-P", "-m", "engram.data.parquet", str(path.absolute()), place]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": paths, "POLARS_MAX_THREADS": "1"},
                capture_output=True,
                timeout=MAX_SECONDS,
                check=False,
            )
        if not (written := Path(place) / NAMES_FILE).exists():
            raise DataError(f"{path} is damaged, or too large to be read; {_CURE}")
        found = json.loads(written.read_text(encoding="utf-8"))
        if "error" in found:
            raise DataError(f"{path} can't be read as Parquet ({found['error']}); {_CURE}")
        with np.load(Path(place) / ARRAYS_FILE, allow_pickle=False) as arrays:
            return found["columns"], {
                name: arrays[str(number)] for number, name in enumerate(found["columns"]) if str(number) in arrays
            }


class _Columns:
    """The columns of a table by name, as texts or as numbers."""

    def __init__(self, path: Path, described: dict[str, Any], arrays: dict[str, Array]) -> None:
        self.path, self.described, self.arrays = path, described, arrays
        if len(described) < 2 or not described or min(len(array) for array in arrays.values()) == 0:
            raise DataError(f"{path} must have records, a label and at least one other column; {_CURE}")

    def texts(self, name: str) -> list[str]:
        """The values as a csv table has them."""
        kind = self.described[name]["kind"]
        if kind == "boolean":
            return ["true" if value else "false" for value in self.arrays[name].tolist()]
        if kind == "number":
            return [str(value) for value in self.arrays[name].tolist()]
        if kind == "text":
            different = self.described[name]["texts"]
            return [different[code] for code in self.arrays[name].tolist()]
        raise self._refused(name, "can't be a label; name another, PATH#COLUMN")

    def numbers(self, name: str) -> dict[str, Array]:
        import numpy as np

        from engram.data.own_files import text_columns

        kind = self.described[name]["kind"]
        if kind in ("boolean", "number"):
            return {name: self.arrays[name].astype(np.float64)}
        if kind == "text":
            return text_columns(self.path, name, self.texts(name))
        if kind == "lists":
            return {f"{name}[{place}]": column for place, column in enumerate(self.arrays[name].T)}
        raise self._refused(name, "give it as it enters the model, or leave it out")

    def _refused(self, name: str, cure: str) -> DataError:
        return DataError(f"{self.path}: column {name!r} {self.described[name]['why']}; {cure}")


def _unpack(path: Path, place: Path) -> None:
    """In the other process: every column as an array, and a description of each."""
    import numpy as np
    import polars

    described: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    found: dict[str, Any]
    try:
        frame = polars.read_parquet(path, glob=False, hive_partitioning=False)
        for number, name in enumerate(frame.columns):
            described[name], array = _unpacked(polars, frame[name])
            if array is not None:
                arrays[str(number)] = array
        np.savez(place / ARRAYS_FILE, **arrays)
        found = {"columns": described}
    except (Exception, polars.exceptions.PanicException) as error:  # a panic is no Exception
        found = {"error": (str(error).splitlines() or [type(error).__name__])[0][:200]}
    (place / NAMES_FILE).write_text(json.dumps(found), encoding="utf-8")


def _unpacked(polars: Any, values: Any) -> tuple[dict[str, Any], Any]:
    kind = values.dtype
    if kind.is_numeric() or kind == polars.Boolean:
        if values.null_count():
            return {"kind": "none", "why": "has missing or infinite values"}, None
        if kind.is_decimal():
            values = values.cast(polars.Float64)
        return {"kind": "boolean" if kind == polars.Boolean else "number"}, values.to_numpy()
    if isinstance(kind, polars.String | polars.Categorical | polars.Enum):
        texts = values.cast(polars.String).fill_null("").str.strip_chars()
        different = texts.unique()
        if len(different) > MOST_TEXTS or different.str.len_bytes().max() > LONGEST_TEXT:
            return {"kind": "none", "why": f"has {len(different):,} different texts, or very long ones"}, None
        ordered = sorted(different.to_list())
        codes = texts.replace_strict(ordered, list(range(len(ordered))), return_dtype=polars.Int32)
        return {"kind": "text", "texts": ordered}, codes.to_numpy()
    if isinstance(kind, polars.List | polars.Array) and kind.inner.is_numeric():
        lists = values.cast(polars.List(polars.Float64))
        lengths = lists.list.len()
        width, flat = int(lengths[0] or 0), lists.explode()
        if lists.null_count() or not width or not bool((lengths == width).all()) or flat.null_count():
            return {"kind": "none", "why": "has lists of different lengths, or missing values"}, None
        return {"kind": "lists", "why": "has lists"}, flat.to_numpy().reshape(len(lists), width)
    return {"kind": "none", "why": f"is of the type {kind}"}, None


def require_bounded(path: Path) -> None:
    """Refuse what is no whole Parquet file, and what unpacks to more than engram reads."""
    from engram.data.own_files import MAX_COLUMNS
    from engram.data.sets import within_bound

    try:
        size = path.stat().st_size
        within_bound(str(path), [size])
        with path.open("rb") as stream:
            start = stream.read(4)
            stream.seek(max(0, size - 8))
            length, end = int.from_bytes(stream.read(4), "little"), stream.read(4)
            if start != MAGIC or end != MAGIC or not 0 < length <= min(size - 12, MAX_SUMMARY):
                raise DataError(f"{path} is not a whole Parquet file, or is encrypted; {_CURE}")
            stream.seek(size - 8 - length)
            summary = _Compact(stream.read(length)).structure()
        chunks = [chunk[DETAILS] for group in summary[GROUPS] for chunk in group[CHUNKS]]
        values = sum(max(0, chunk[VALUES]) for chunk in chunks)
        unpacked = sum(max(0, chunk[UNPACKED]) for chunk in chunks)
        columns = max((len(group[CHUNKS]) for group in summary[GROUPS]), default=0)
        rows = max(0, int(summary[ROWS]))
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path") from error
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: its summary can't be read ({str(error)[:200]}); {_CURE}") from error
    if columns > MAX_COLUMNS:
        raise DataError(f"{path} has {columns:,} columns, more than the {MAX_COLUMNS:,} engram reads")
    within_bound(str(path), [8, max(values, rows * max(columns, 1))])
    within_bound(str(path), [unpacked])


class _Compact:
    """Apache Thrift's compact protocol, in which the summary is written: fields by their number, and no names."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def structure(self, depth: int = 0) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        if depth > DEEPEST:
            raise ValueError("structures inside structures without end")
        while (head := self._byte()) != 0:
            step, kind = head >> 4, head & 15
            number = number + step if step else self._signed()
            found[number] = self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # true and false, without a byte of their own
            return kind == 1
        return self._element(kind, depth)

    def _element(self, kind: int, depth: int) -> Any:
        if kind in (1, 2, 3):  # in a list, a boolean has a byte
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._unsigned())
        if kind in (9, 10):
            head = self._byte()
            count = head >> 4 if head >> 4 != 15 else self._unsigned()
            if count > len(self.data) - self.place:  # every element takes a byte at least
                raise ValueError("a list is longer than the summary")
            return [self._element(head & 15, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.structure(depth + 1)
        raise ValueError(f"values of kind {kind}")

    def _byte(self) -> int:
        self.place += 1
        return self.data[self.place - 1]

    def _bytes(self, count: int) -> bytes:
        if count > len(self.data) - self.place:
            raise ValueError("a text is longer than the summary")
        self.place += count
        return self.data[self.place - count : self.place]

    def _unsigned(self) -> int:
        """Seven bits a byte, the lowest first."""
        found = shift = 0
        while shift < 70:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
        raise ValueError("a number has too many bytes")

    def _signed(self) -> int:
        """0, -1, 1, -2, ... written as 0, 1, 2, 3, ..."""
        found = self._unsigned()
        return (found >> 1) ^ -(found & 1)


def _limit_memory() -> None:
    """Where the system has such limits."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


if __name__ == "__main__":
    _limit_memory()
    _unpack(Path(sys.argv[1]), Path(sys.argv[2]))
