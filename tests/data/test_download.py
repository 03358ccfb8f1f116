"""Fetching from a real server on loopback that can cut off connections."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from engram.core.errors import ConfigError, DataError
from engram.data import catalog as download
from engram.data.catalog import Remote, fetch

from .conftest import CONTENT, Server


def archive(**files: bytes) -> bytes:
    """A .tar.gz; the keyword `up` stands for a name outside the folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as members:
        for name, content in files.items():
            member = tarfile.TarInfo("../escaped" if name == "up" else f"set/{name}")
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_fetch_places_the_file_and_reports_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    added = fetch("mine", tmp_path, lambda *now: seen.append(now), files=[server.file()])
    assert added == [tmp_path / "set" / "data.gz"]
    assert added[0].read_bytes() == CONTENT
    assert everything(tmp_path) == ["set/data.gz"]
    size = f"{len(CONTENT) / 1e6:.1f} MB"
    assert seen[-1] == (f"data.gz: {size} of {size}", 1.0)
    assert [share for _, share in seen] == sorted(share for _, share in seen)


def test_existing_files_are_not_fetched_again(server: Server, tmp_path: Path) -> None:
    fetch("mine", tmp_path, files=[server.file()])
    assert fetch("mine", tmp_path, files=[server.file()]) == []
    assert len(server.ranges) == 1


def test_existing_files_that_differ_are_left_alone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data.gz").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"data\.gz exists but differs from the published file; .*move it away"):
        fetch("mine", tmp_path, files=[server.file()])
    assert (tmp_path / "set" / "data.gz").read_bytes() == b"mine"


def test_a_cut_off_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 50_000]
    fetch("mine", tmp_path, files=[server.file()])
    assert (tmp_path / "set" / "data.gz").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_a_silent_connection_is_dropped_and_resumed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_SILENCE", 0.2)
    server.cuts, server.stalls = [100_000], True
    fetch("mine", tmp_path, files=[server.file()])
    assert (tmp_path / "set" / "data.gz").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-"]


def test_a_server_that_sends_without_end_is_stopped(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_BYTES", 200_000)
    with pytest.raises(DataError, match="it sent more than 200,000 bytes"):
        fetch("mine", tmp_path, files=[server.file()])


def test_a_dead_connection_keeps_its_part_for_the_next_run(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 0]
    with pytest.raises(DataError, match="cut off at 100,000 of 512,000 bytes; run `engram data get mine` again"):
        fetch("mine", tmp_path, files=[server.file()])
    assert everything(tmp_path) == ["set/data.gz.part"]
    fetch("mine", tmp_path, files=[server.file()])
    assert server.ranges[-1] == "bytes=100000-"
    assert everything(tmp_path) == ["set/data.gz"]


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.cuts, server.knows_ranges = [100_000], False
    fetch("mine", tmp_path, files=[server.file()])
    assert (tmp_path / "set" / "data.gz").read_bytes() == CONTENT


def test_a_part_that_is_already_complete(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data.gz.part").write_bytes(CONTENT)
    fetch("mine", tmp_path, files=[server.file()])
    assert everything(tmp_path) == ["set/data.gz"]


def test_a_wrong_checksum_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"not the published {'0' * 32}, and was deleted.*by hand, save http"):
        fetch("mine", tmp_path, files=[server.file(md5="0" * 32)])
    assert everything(tmp_path) == []


def test_a_refusing_server_says_how_to_place_the_file_by_hand(server: Server, tmp_path: Path) -> None:
    server.status = 503
    with pytest.raises(
        DataError, match=f"HTTP Error 503.*by hand, save {server.url}/data.gz as {tmp_path}/set/data.gz"
    ):
        fetch("mine", tmp_path, files=[server.file()])


def test_no_server_at_all(tmp_path: Path) -> None:
    nowhere = Remote("http://127.0.0.1:9/set.tar.gz", "0" * 32, "set", ("a",))
    with pytest.raises(
        DataError, match=f"can't fetch .*by hand, unpack http.* in {tmp_path} so that {tmp_path}/set exists"
    ):
        fetch("mine", tmp_path, files=[nowhere])


def test_an_archive_appears_as_its_folder(server: Server, tmp_path: Path) -> None:
    server.content = archive(a=b"one", b=b"two")
    added = fetch("mine", tmp_path, files=[server.file(holds=("a", "b"))])
    assert added == [tmp_path / "set"]
    assert everything(tmp_path) == ["set/a", "set/b"]
    assert fetch("mine", tmp_path, files=[server.file(holds=("a", "b"))]) == []


def test_path_traversal_is_refused(server: Server, tmp_path: Path) -> None:
    server.content, root = archive(a=b"one", up=b"evil"), tmp_path / "root"
    with pytest.raises(DataError, match=r"refused: .*would write outside its folder"):
        fetch("mine", root, files=[server.file(holds=("a",))])
    assert everything(tmp_path) == []


def test_an_archive_without_its_files(server: Server, tmp_path: Path) -> None:
    server.content = archive(a=b"one")
    with pytest.raises(DataError, match="the archive lacks set/b; to place it by hand, unpack"):
        fetch("mine", tmp_path, files=[server.file(holds=("a", "b"))])
    assert not (tmp_path / "set").exists()


def test_an_incomplete_folder_is_left_alone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a").write_bytes(b"mine")
    with pytest.raises(DataError, match="set exists but lacks b; use it as it is, or move it away"):
        fetch("mine", tmp_path, files=[server.file(holds=("a", "b"))])
    assert server.ranges == []


def test_embedded_sets_are_not_fetched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="faces can't be fetched; engram can fetch mnist"):
        fetch("faces", tmp_path)
