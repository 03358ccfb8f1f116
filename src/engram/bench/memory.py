"""Peak memory of an attack, in a process that does nothing else.

Run as a program by `measure_memory`; the result is a file, since the parent's output belongs to the command.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engram import files
from engram.attacker import AttackerView
from engram.bench.machine import peak_memory_bytes
from engram.errors import EngramError
from engram.loop import Budget, run
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engine.solver import Engine
from engram.targets.foreign import read_network
from engram.task import task_named

STEPS = 5


def measure_memory(
    view: AttackerView, candidates: int, *, memory: int = EngineSettings().memory
) -> dict[str, Any]:
    """{candidates, peak_memory_bytes, loaded_bytes}; the last is what Python, torch and the weights take.

    `memory` is the engine's bound.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        files.write_tensors(place / "model.safetensors", view.network.params)
        request = {
            "input_shape": list(view.input_shape),
            "task": view.task.name,
            "pixel_range": list(view.pixel_range),
            "candidates": candidates,
            "memory": memory,
        }
        files.write_json(place / "request.json", request)
        command = [sys.executable, "-m", "engram.bench.memory", name]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        if child.returncode:
            raise EngramError(f"the process that measures memory failed:\n{child.stderr.strip()}")
        result: dict[str, Any] = files.read_json(place / "result.json")
    return result


def attack_once(place: Path) -> None:
    """Two short starts with the prior, pooled and scored: everything that a whole attack holds at once."""
    request = files.read_json(place / "request.json")
    low, high = request["pixel_range"]
    view = AttackerView(
        read_network(place / "model.safetensors"),
        tuple(request["input_shape"]),
        task_named(request["task"]),
        (low, high),
    )
    loaded = peak_memory_bytes()
    prior = 1.0 if len(view.input_shape) == 3 else 0.0
    chosen = {name: request[name] for name in ("candidates", "memory")}
    settings = EngineSettings(**chosen, restarts=2, steps=STEPS, prior=prior)
    engine = Engine(view, settings)
    engine.reconstruction(run(engine, Budget(steps=engine.total_steps)).state)
    result = {
        "candidates": engine.scales.candidates,
        "peak_memory_bytes": peak_memory_bytes(),
        "loaded_bytes": loaded,
    }
    files.write_json(place / "result.json", result)


if __name__ == "__main__":
    attack_once(Path(sys.argv[1]))
