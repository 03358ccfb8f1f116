"""`make bench`: every benchmark that takes minutes; each prints its numbers and the ratio it is about."""

from __future__ import annotations

import importlib

NAMES = ("engine", "sweep")

for name in NAMES:
    print(f"== benchmarks.{name}", flush=True)
    importlib.import_module(f"benchmarks.{name}").main([])
