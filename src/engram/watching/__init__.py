"""Watching a run: what its directory says while it grows; nothing is written there.

run directory -> Watcher.look -> Status    state, step, losses, and the best candidates of the last snapshot
Status        -> page / serve              the same in a browser on this machine alone
"""

from engram.watching.server import serve
from engram.watching.status import Status, Watcher

__all__ = ["Status", "Watcher", "serve"]
