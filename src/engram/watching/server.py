"""The live view in a browser: served to this machine alone, read-only."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

from torch import Tensor

from engram.errors import ConfigError, EngramError
from engram.report.html import Picture, render_live
from engram.report.html.charts import Axis, Series, chart
from engram.report.html.pictures import data_uri
from engram.watching.status import Status, Watcher

HOST = "127.0.0.1"


def live_page(status: Status, every: float) -> str:
    """One page that asks for itself again while the run goes on."""
    charts = []
    if len(status.losses) > 1:
        steps, losses = zip(*status.losses, strict=True)
        positive = min(losses) > 0
        low = min(losses)
        y = Axis("loss", low, max(max(losses), low + 1e-12), log=positive)
        x = Axis("step", steps[0], max(steps[-1], status.total or 0))
        charts = [chart("Loss", x, y, [Series("", steps, losses)], summary=f"{losses[-1]:.4g} at the end")]
    pictures = [
        Picture(data_uri(image), f"Candidate {index}", caption)
        for index, (image, caption) in enumerate(zip(_images(status), status.captions, strict=True))
    ]
    return render_live(
        title=f"{status.run}: {status.state}",
        summary=status.summary,
        share=None if not status.total else status.step / status.total,
        charts=charts,
        pictures=pictures,
        note=status.note,
        refresh=max(1, round(every)) if status.is_running else None,
    )


def serve(watcher: Watcher, *, port: int, every: float, started: Callable[[str], None]) -> None:
    """Serve until interrupted, on the loopback address alone; `started` is told the address."""
    lock = Lock()  # one look at a time: the watcher remembers the last one

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Other names for this address would let a page in another tab read the answer (DNS rebinding).
            if self.headers.get("Host") not in [f"{name}:{server.server_port}" for name in (HOST, "localhost")]:
                self._answer(403, "text/plain", b"open the address that engram watch printed")
            elif self.path != "/":
                self._answer(404, "text/plain", b"there is one page: /")
            else:
                try:
                    with lock:
                        page = live_page(watcher.look(), every)
                    self._answer(200, "text/html", page.encode())
                except EngramError as error:
                    self._answer(500, "text/plain", str(error).encode())

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Quiet: only the command line prints."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise ConfigError(
            f"--port {port} can't be used ({error.strerror}); choose another, or 0 for any"
        ) from error
    with server:
        started(f"http://{HOST}:{server.server_port}/")
        server.serve_forever(poll_interval=0.2)


def _images(status: Status) -> list[Tensor]:
    return [] if status.images is None else list(status.images)
