"""Atomic files: write a temporary file, flush it to disk, rename it."""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor


ALIGNMENT = 64
"""In bytes: torch's own allocator starts every tensor at a multiple of this."""


# What zipfile and numpy raise when they open or read a damaged, encrypted or oddly packed archive or array.
BROKEN = (
    zipfile.BadZipFile,
    NotImplementedError,
    tokenize.TokenError,
    SyntaxError,
    MemoryError,
    OverflowError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` with `content` atomically; on any failure the old file stays unchanged."""
    with _replaced(path) as aside:
        aside.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """The format of every JSON file that engram writes."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def write_directory(path: Path, contents: Mapping[str, bytes]) -> bool:
    """Create a directory with these files atomically; False if it already exists, which leaves it unchanged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise CheckpointError(_cannot_write(path, error)) from error
    try:
        for name, content in contents.items():
            write_bytes(aside / name, content)
        aside.chmod(0o777 & ~_umask())
        aside.rename(path)  # fails if a directory with files is in the way
    except OSError as error:
        if path.is_dir():
            return False
        raise CheckpointError(_cannot_write(path, error)) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return True


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Let in one process at a time; a process that is killed releases its lock.

    Without `wait`, yield False at once if another process holds the lock.
    """
    import fcntl

    with path.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file atomically, straight from the tensors: those of wide networks are large."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with _replaced(path) as aside:
        try:
            save_file(contiguous, aside, dict(metadata) if metadata else None)
        except SafetensorError as error:
            raise _as_os_error(error) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; the format contains only numbers, and nothing in it is executed."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return _all_aligned(load_file(path))
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no file {path}; check the path") from error
    except (SafetensorError, *BROKEN, LookupError, TypeError, AttributeError) as error:  # an unknown dtype, say
        raise CheckpointError(
            f"{path} is not a complete safetensors file ({error}); copy or save it again"
        ) from error


def tensors_from_bytes(content: bytes) -> dict[str, Tensor]:
    """The same, from the content of a safetensors file."""
    from safetensors.torch import load

    return _all_aligned(load(content))


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, copied unless it starts where torch's own memory would: at a multiple of 64 bytes.

    BLAS libraries round differently at other addresses, and data from files, NumPy and buffers may start anywhere.
    All outside data passes through here, so that results do not depend on its address.
    """
    import torch

    fits = tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0
    return tensor if fits else tensor.clone(memory_format=torch.contiguous_format)


def _all_aligned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One at a time, each original dropped once it is copied: those of wide networks are large."""
    return {name: aligned(tensors.pop(name)) for name in list(tensors)}


def read_json(path: Path, *, cure: str = "write it again") -> Any:
    """The content of a JSON file, or an error that says what is wrong with it, and the `cure`."""
    content = _bounded(path, MAX_JSON, cure)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error}); {cure}") from error


MAX_JSON, MAX_LINES, MAX_LINE = 64 * 1024**2, 256 * 1024**2, 1024**2
"""Bytes of a JSON file, of a file of JSON lines, and of one such line; parsed, they take many times as much."""


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file with one a line; none if there is no file.

    A line that is anything else counts as never written: a kill cuts lines short, and others may be damaged.
    """
    if not path.exists():
        return []
    rows = []
    for line in _bounded(path, MAX_LINES, "delete it").split(b"\n"):
        try:
            row = json.loads(line) if len(line) <= MAX_LINE else None
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _bounded(path: Path, most: int, cure: str) -> bytes:
    """The content of a regular file of at most that many bytes: a pipe would never end."""
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is not a file; {cure}")
        if (size := path.stat().st_size) > most:
            raise CheckpointError(f"{path} has {size:,} bytes, more than the limit of {most:,}; {cure}")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no file {path}; check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise CheckpointError(f"can't read {path}: {error}; {cure}") from error


def read_bounded(path: Path, max_bytes: int, *, cure: str) -> bytes:
    """The content of a file that a stranger may have sent: an ordinary file of at most `max_bytes`."""
    try:
        if not path.is_file():  # a pipe would never end
            problem = "is not a file" if path.exists() else "does not exist"
            raise CheckpointError(f"{path} {problem}; {cure}")
        with path.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointError(f"can't read {path} ({error.strerror or error}); {cure}") from error
    if len(content) > max_bytes:
        raise CheckpointError(f"{path} has more than {max_bytes:,} bytes; {cure}")
    return content


def prepare_directory(path: Path) -> Path:
    """Create an output directory and check that it is writable, before hours of work go into it."""
    write_bytes(path / ".writable", b"")
    (path / ".writable").unlink(missing_ok=True)  # another process may be checking too
    return path


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """A temporary file that replaces `path` once it is complete and on disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise CheckpointError(_cannot_write(path, error)) from error
    os.close(descriptor)
    aside = Path(name)
    try:
        yield aside
        with aside.open("rb+") as stream:
            os.fsync(stream.fileno())
        aside.chmod(0o666 & ~_umask())  # mkstemp creates private files; ours are ordinary ones
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise CheckpointError(_cannot_write(path, error)) from error
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _as_os_error(error: Exception) -> OSError:
    """The system's error, extracted from the text that safetensors wraps it in.

    >>> _as_os_error(ValueError("I/O error: No space left on device (os error 28)")).strerror
    'No space left on device'
    """
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cannot_write(path: Path, error: OSError) -> str:
    return f"can't write {path}: {error.strerror or error}; free some space or choose another location with -o"


def open_archive(path: Path, max_bytes: int, cure: str) -> zipfile.ZipFile:
    """An archive that unpacks to at most `max_bytes`; a larger one is refused before anything is unpacked."""
    try:
        archive = zipfile.ZipFile(path)
    except BROKEN as error:
        raise CheckpointError(f"{path} is truncated or damaged ({error}); copy it again, or {cure}") from error
    unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > max_bytes:
        archive.close()
        raise CheckpointError(
            f"{path} unpacks to {unpacked:,} bytes, more than the limit of {max_bytes:,}; {cure}"
        )
    return archive
