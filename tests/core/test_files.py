"""Files are written atomically."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engram.core import files
from engram.core.errors import CheckpointError

TOO_BIG = """
import resource, signal, sys, torch
from pathlib import Path
from engram.core import files
from engram.core.errors import CheckpointError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    WRITE
except CheckpointError as error:
    sys.exit(f"refused: {error}")
"""


def test_replaces_the_whole_file(tmp_path: Path) -> None:
    files.write_bytes(tmp_path / "f", b"old")
    files.write_bytes(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_files_have_ordinary_permissions(tmp_path: Path) -> None:
    files.write_bytes(tmp_path / "f", b"x")
    (tmp_path / "plain").write_bytes(b"x")
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    "write",
    [
        'files.write_bytes(Path(sys.argv[1]), b"x" * 100_000)',
        'files.write_tensors(Path(sys.argv[1]), {"x": torch.ones(100_000)})',
    ],
)
def test_a_file_that_outgrows_the_disk_leaves_the_old_one(tmp_path: Path, write: str) -> None:
    """A real failed write: the kernel limits the size of the child's file."""
    files.write_bytes(tmp_path / "f", b"old")
    program = TOO_BIG.replace("WRITE", write)
    child = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "f")], capture_output=True, text=True, check=False
    )
    assert "refused: can't write" in child.stderr
    assert "File too large; free some space or choose another location" in child.stderr
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_full_disk_leaves_the_old_snapshot(tmp_path: Path) -> None:
    """A real full file system of 64 KiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "engram-test", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        files.write_tensors(tmp_path / "s", {"x": torch.ones(10)})
        with pytest.raises(CheckpointError, match="No space left on device; free some space"):
            files.write_tensors(tmp_path / "s", {"x": torch.ones(100_000)})
        assert torch.equal(files.read_tensors(tmp_path / "s")["x"], torch.ones(10))
        assert [path.name for path in tmp_path.iterdir()] == ["s"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"can't write .*file/run.* choose another location with -o"):
        files.prepare_directory(tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write anywhere")
def test_a_read_only_directory_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(CheckpointError, match="Permission denied"):
        files.prepare_directory(tmp_path)


def test_prepared_directory_is_left_empty(tmp_path: Path) -> None:
    assert list(files.prepare_directory(tmp_path / "a" / "b").iterdir()) == []


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no file"):
        files.read_json(tmp_path / "none.json")
    with pytest.raises(CheckpointError, match="there is no file"):
        files.read_tensors(tmp_path / "none")
    (tmp_path / "cut.json").write_text('{"a": ')
    with pytest.raises(CheckpointError, match="not readable JSON"):
        files.read_json(tmp_path / "cut.json")
