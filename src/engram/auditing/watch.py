"""Watch a run while it is running: its directory, in the terminal or in a browser on this machine, and the report
of an audit, which grows until the attack ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from engram.attacks.reconstruction import Attack, Reconstruction
from engram.attacks.registry import make_attack
from engram.auditing.comparison import SURE
from engram.auditing.record import REPORT_FILE, Moment
from engram.auditing.visuals import timeline_chart
from engram.core import files
from engram.core.errors import CheckpointError, ConfigError, EngramError
from engram.core.loop import BAD_STATE, Snapshots
from engram.core.runs import RunDirectory, read_record
from engram.models.open.door import open_recorded
from engram.render.html import Picture, data_uri, render_live
from engram.render.svg import Axis, Chart, Series
from engram.scoring.metrics import stretched

MOST_POINTS = 400
"""Points of the loss curve that are kept; longer curves are thinned out."""


@dataclass(frozen=True, eq=False)
class Status:
    """How far a run has got; `images` [k, C, H, W] in [0, 1] are its best candidates, with `captions`."""

    run: Path
    state: str
    step: int
    total: int | None
    """None if it is not known, as under a time limit."""
    share: float | None
    idle_seconds: float
    losses: tuple[tuple[int, float], ...]
    metrics: dict[str, float]
    images: Tensor | None
    captions: tuple[str, ...]
    note: str | None

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def summary(self) -> str:
        """One line for the user."""
        of = "" if self.total is None else f" of {self.total:,}"
        return f"{self.run}: {self.state}, step {self.step:,}{of}, last update {self.idle_seconds:.0f} s ago"


@dataclass(eq=False)
class Watcher:
    """Reads one run repeatedly; the model is opened once, the snapshot again when it has changed."""

    run: Path
    count: int = 8
    _attack: Attack | None = field(default=None, init=False)
    _pictures: tuple[float, Tensor | None, tuple[str, ...]] = field(default=(0.0, None, ()), init=False)

    def look(self) -> Status:
        """What the directory shows now; an error if there is no run."""
        paths = RunDirectory(self.run)
        if not paths.metrics.exists() and not paths.record.exists():
            raise CheckpointError(f"{self.run} contains no run; give the directory that was the run's -o")
        rows = _rows(paths.metrics)
        newest = max(path.stat().st_mtime for path in (paths.metrics, paths.record) if path.exists())
        note = None
        try:
            self._open()
            images, captions = self._candidates()
        except EngramError as error:
            note, images, captions = str(error), None, ()
        last = rows[-1] if rows else {}
        return Status(
            run=self.run,
            state=self._state(),
            step=int(last.get("step", 0)),
            total=self._total(),
            share=self._share(last),
            idle_seconds=max(0.0, time.time() - newest),
            losses=_thinned([(int(row["step"]), float(row["loss"])) for row in rows]),
            metrics={name: float(value) for name, value in last.items() if name != "step"},
            images=images,
            captions=captions,
            note=note,
        )

    def _total(self) -> int | None:
        """The steps of the attack; a budget takes as many as fit."""
        if self._attack is None or getattr(self._attack.settings, "seconds", None) is not None:
            return None
        return self._attack.total_steps

    def _share(self, last: dict[str, Any]) -> float | None:
        if self._attack is None or not last:
            return None
        return min(1.0, self._attack.share_done(int(last["step"]), last))

    def _state(self) -> str:
        if not RunDirectory(self.run).record.exists():  # a training run writes its card at the end
            return "finished" if (self.run / "card.json").exists() else "running"
        outcome = read_record(self.run).get("outcome")
        return str(outcome.get("state", "unknown")) if isinstance(outcome, dict) else "unknown"

    def _open(self) -> None:
        """The attack of the run, from the model that its record names."""
        if self._attack is not None or not RunDirectory(self.run).record.exists():
            return
        self._attack = make_attack(open_recorded(read_record(self.run)), resume_from=self.run)

    def _candidates(self) -> tuple[Tensor | None, tuple[str, ...]]:
        """The best candidates of the result if there is one, else of the last snapshot."""
        paths = RunDirectory(self.run)
        source = next((path for path in (paths.reconstruction, paths.snapshot) if path.exists()), None)
        if self._attack is None or source is None or len(self._attack.view.input_shape) != 3:
            return None, ()
        changed = source.stat().st_mtime
        if changed != self._pictures[0]:
            self._pictures = (changed, *_best(self._reconstruction(source), self.count))
        return self._pictures[1:]

    def _reconstruction(self, source: Path) -> Reconstruction:
        assert self._attack is not None
        if source == RunDirectory(self.run).reconstruction:
            found = Reconstruction.load(source)
            if tuple(found.images.shape[1:]) != tuple(self._attack.view.input_shape):
                raise CheckpointError(f"{source} has images of another shape than the model takes; write it again")
            return found
        snapshots = Snapshots(path=source)
        _, state = snapshots.load(self._attack.fingerprint())
        try:
            return self._attack.reconstruction(state)
        except BAD_STATE as error:
            raise snapshots.damaged(error) from error


def _best(found: Reconstruction, count: int) -> tuple[Tensor, tuple[str, ...]]:
    """By confidence where there is one, else by dual."""
    if found.has_confidence and found.scores is not None:
        order = found.scores.nan_to_num(nan=-1.0).argsort(descending=True, stable=True)[:count]
        captions = [f"{value:.0%}" for value in found.scores[order].tolist()]
    else:
        order = found.duals.abs().argsort(descending=True, stable=True)[:count]
        captions = [f"dual {value:.2g}" for value in found.duals[order].tolist()]
    return stretched(found.shown[order].to(torch.float32)), tuple(captions)


MOST = 1e100
"""No step, loss or other metric of a run is larger; a damaged file may say otherwise."""


def _rows(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file, by step; one that is still being written is left for the next time."""
    rows = [
        # written so that NaN fails, and a number of any size does not overflow
        {name: value for name, value in row.items() if type(value) in (int, float) and -MOST < value < MOST}
        for row in files.read_json_lines(path)
    ]
    return sorted((row for row in rows if type(row.get("step")) is int and "loss" in row), key=itemgetter("step"))


def _thinned(points: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    stride = max(1, -(-len(points) // MOST_POINTS))
    return tuple(points[::-1][::stride][::-1])


HOST = "127.0.0.1"


def live_page(status: Status, every: float) -> str:
    """One page that reloads itself while the run is running."""
    charts = []
    if len(status.losses) > 1:
        steps, losses = zip(*status.losses, strict=True)
        positive = min(losses) > 0
        low = min(losses)
        y = Axis("loss", low, max(max(losses), low + 1e-12), log=positive)
        x = Axis("step", steps[0], max(steps[-1], status.total or 0))
        charts = [Chart("Loss", x, y, [Series("", steps, losses)], summary=f"latest value {losses[-1]:.4g}")]
    pictures = [] if status.images is None else _pictures(status.images, status.captions)
    return render_live(
        title=f"{status.run}: {status.state}",
        summary=status.summary,
        share=status.share,
        charts=charts,
        pictures=pictures,
        note=status.note,
        refresh=max(1, round(every)) if status.is_running else None,
    )


def serve(watcher: Watcher, *, port: int, every: float, started: Callable[[str], None]) -> None:
    """Serve until interrupted, on the loopback address only; `started` is called with the address."""
    lock = Lock()  # one look at a time: the watcher keeps the last one

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Other names for this address would let a page in another tab read the answer (DNS rebinding).
            if self.headers.get("Host") not in [f"{name}:{server.server_port}" for name in (HOST, "localhost")]:
                self._answer(403, "text/plain", b"open the address that engram watch printed")
            elif self.path != "/":
                self._answer(404, "text/plain", b"the only page is /")
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


def _pictures(images: Tensor, captions: Sequence[str]) -> list[Picture]:
    return [
        Picture(data_uri(image), f"Candidate {index}", caption)
        for index, (image, caption) in enumerate(zip(images, captions, strict=True))
    ]


GROWING_PICTURES, RELOADED = 24, 2
"""Pictures of a growing report, and the seconds after which a browser looks at it again."""


@dataclass(frozen=True)
class GrowingReport:
    """The report.html of an audit whose attack is under way: what it has found so far, blind and counted.

    A browser reloads it until the report itself stands in its place.
    """

    directory: Path
    model: str

    def __call__(self, moments: Sequence[Moment], found: Reconstruction, counted: str | None) -> None:
        now = moments[-1]
        page = render_live(
            title=f"{self.model}: the attack is under way",
            summary=f"{now.seconds:.0f} s, {now.candidates:,} candidates, {now.sure:,} of them above {SURE:.0%} "
            "confidence. This page reloads itself, and the report replaces it when the attack has ended.",
            share=None,
            charts=[timeline_chart(moments, counted)],
            pictures=_pictures(*_best(found, GROWING_PICTURES)) if found.images.ndim == 4 else [],
            note=None,
            refresh=RELOADED,
            product="engram audit",
        )
        files.write_bytes(self.directory / REPORT_FILE, page.encode())
