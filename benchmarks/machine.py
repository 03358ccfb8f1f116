"""What a measurement was made on, and how much memory it took."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from engram.core.runs import versions


def machine() -> dict[str, Any]:
    """Cores, threads, load and versions; seconds mean little without them."""
    return {
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_average": list(os.getloadavg()),
        "versions": versions(),
    }


def busy_note() -> str | None:
    """What to say if others use the machine too: seconds are then too long, for all alike at best."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= cores + 0.5:
        return None
    return f"the machine is busy (load {load:.1f} on {cores} cores), so these seconds are upper bounds"


def peak_memory_bytes() -> int:
    """The largest resident memory of this process so far.

    Linux hands `ru_maxrss` on through fork and exec, so that a small child of a large parent shows the parent's
    peak; VmHWM is the process's own. Elsewhere getrusage is right, in kilobytes, or in bytes on macOS.

    >>> peak_memory_bytes() > 1_000_000
    True
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    own = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    if own:
        return own[0] * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
