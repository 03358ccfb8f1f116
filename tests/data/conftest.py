"""Real data (from ENGRAM_DATA, else `shared/data` next to the repository) and a server on loopback."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engram.data.catalog import Remote


def _real(folder: str) -> Path:
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    root = Path(os.environ.get("ENGRAM_DATA") or default)
    if not (root / folder).is_dir():
        looked = "ENGRAM_DATA" if "ENGRAM_DATA" in os.environ else "../shared/data (ENGRAM_DATA is not set)"
        pytest.skip(f"needs real data: no {folder} in {looked}")
    return root


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    return _real("MNIST/raw")


@pytest.fixture(scope="session")
def cifar_root() -> Path:
    return _real("cifar-10-batches-py")


CONTENT = bytes(range(256)) * 2000  # half a megabyte


@dataclass
class Server:
    """`content` under any path; each entry of `cuts` ends one connection after that many bytes."""

    url: str
    content: bytes = CONTENT
    cuts: list[int] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)  # the Range header of each request
    knows_ranges: bool = True
    stalls: bool = False  # a cut connection goes silent instead of closing
    status: int = 200

    def file(self, md5: str | None = None, holds: tuple[str, ...] = ()) -> Remote:
        digest = md5 or hashlib.md5(self.content, usedforsecurity=False).hexdigest()
        return Remote(f"{self.url}/data.gz", digest, "set", holds)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.ranges.append(wanted)
            start = int(wanted[6:-1]) if wanted and state.knows_ranges else 0
            if state.status != 200:
                return self.send_error(state.status)
            if start >= len(state.content):
                return self.send_error(416)
            body = state.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if not state.cuts:
                self.wfile.write(body)
                return None
            self.wfile.write(body[: state.cuts.pop(0)])
            if state.stalls:
                finished.wait()
            return None

        def log_message(self, *arguments: object) -> None:
            pass

    finished = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        state = Server(f"http://127.0.0.1:{listening.server_port}")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        finished.set()
        listening.shutdown()
        thread.join()
