"""The machine of a measurement, and how much memory it took."""

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
    """A warning if other work runs on the machine: seconds are then too long, at best for all equally."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= cores + 0.5:
        return None
    return f"the machine is busy (load {load:.1f} on {cores} cores), so these seconds are upper bounds"


def peak_memory_bytes() -> int:
    """The largest resident memory of this process so far.

    On Linux `ru_maxrss` survives fork and exec, so a small child of a large parent reports the parent's peak;
    VmHWM is the process's own. Elsewhere getrusage is right, in kilobytes, or in bytes on macOS.

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
