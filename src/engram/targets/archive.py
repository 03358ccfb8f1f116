"""Zip files from strangers: opened with their sizes bounded, and every way of being broken one error."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from pathlib import Path

from engram.errors import CheckpointError

# What a damaged, encrypted or strangely packed archive makes zipfile raise while it is opened or read.
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
)


def open_archive(path: Path, max_bytes: int, cure: str) -> zipfile.ZipFile:
    """An archive that unpacks to `max_bytes` at most; a larger one is refused before anything is unpacked."""
    try:
        archive = zipfile.ZipFile(path)
    except BROKEN as error:
        raise CheckpointError(f"{path} is cut short or damaged ({error}); copy it again, or {cure}") from error
    unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > max_bytes:
        archive.close()
        raise CheckpointError(
            f"{path} unpacks to {unpacked:,} bytes, more than the limit of {max_bytes:,}; {cure}"
        )
    return archive
