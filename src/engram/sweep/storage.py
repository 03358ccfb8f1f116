"""Where Optuna keeps a study: a journal in the sweep's directory, or a database that machines share."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage, JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend

from engram import files
from engram.errors import ConfigError

JOURNAL = "study.journal"


class KillSafeJournal(JournalFileBackend):
    """Optuna's journal file with a lock that dies with its holder, and without half lines.

    Optuna's own lock is a file that a killed process leaves behind, for half a minute; and a line that was cut
    short would be glued to the next one.
    """

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        path = Path(self._file_path)
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with files.locked(path.with_suffix(".lock")), path.open("r+b") as stream:
            stream.seek(whole_lines(path))
            stream.truncate()
            stream.write(lines.encode())
            stream.flush()
            os.fsync(stream.fileno())


def without_password(url: str) -> str:
    """As it may be shown and written down.

    >>> without_password("postgresql://me:secret@host/db"), without_password("sqlite:////shared/study.db")
    ('postgresql://me:***@host/db', 'sqlite:////shared/study.db')
    """
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


def whole_lines(path: Path) -> int:
    """Bytes of a file up to its last line end."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        while size > 0:
            start = max(0, size - 4096)
            stream.seek(start)
            found = stream.read(size - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            size = start
    return 0


def open_storage(directory: Path, url: str | None) -> BaseStorage:
    """The journal of a sweep's directory, or the database at an SQLAlchemy URL."""
    if url is None:
        return JournalStorage(KillSafeJournal(str(directory / JOURNAL)))
    try:
        return get_storage(url)
    except Exception as error:  # whatever the database's driver raises
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--storage {without_password(url)} can't be opened ({reason}); "
            "give an SQLAlchemy URL, e.g. sqlite:////shared/study.db"
        ) from error
