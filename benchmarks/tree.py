"""The source tree in numbers: modules, their sizes, and how many files a command runs through.

    python -m benchmarks.tree [SRC]

A command runs through a file if it calls any of its functions, and loads it if it imports it; both are observed
while a small real command runs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TARGET = (
    "train",
    "--data",
    "faces",
    "--labels",
    "gate",
    "-n",
    "10",
    "--widths",
    "30,30",
    "--epochs",
    "50",
    "-o",
    "t",
)
COMMANDS = {
    "audit": ("audit", "t", "--with-data", "--budget", "1s", "-o", "audit"),
    "reconstruct": ("reconstruct", "t", "--steps", "5", "--restarts", "2", "-o", "run"),
    "sweep": (
        "sweep",
        "t",
        "--space",
        "engine",
        "--set",
        "steps=5",
        "--trials",
        "2",
        "--jobs",
        "0",
        "-o",
        "sweep",
    ),
    "reproduce": ("reproduce", "haim/fig4", "--scale", "smoke", "-o", "papers"),
}
WATCHED = """
import inspect, json, pathlib, sys
home = {home!r}
called = set()
def watch(frame, event, argument):
    code = frame.f_code
    is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name[0] != "<"  # not a class body, not a module
    if event == "call" and is_function and code.co_filename.startswith(home) and code.co_filename.endswith(".py"):
        called.add(code.co_filename)
sys.argv = ["engram", *{arguments!r}]
sys.setprofile(watch)
try:
    from engram.cli.app import main
    main()
except SystemExit as left:
    assert not left.code, left.code
finally:
    sys.setprofile(None)
loaded = [one.__file__ for name, one in sys.modules.items() if name.split(".")[0] == "engram" and one.__file__]
pathlib.Path({report!r}).write_text(json.dumps([sorted(called), loaded]))
"""


def sizes(source: Path) -> list[int]:
    return sorted(len(path.read_text().splitlines()) for path in source.rglob("*.py"))


def files_of(source: Path, place: Path, arguments: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The files that a command runs through, and those it loads."""
    report, home = place / "report.json", str((source / "engram").resolve())
    program = WATCHED.format(home=home, arguments=arguments, report=str(report))
    environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", program], cwd=place, env=environment, check=True, capture_output=True)
    called, loaded = json.loads(report.read_text())
    return called, loaded


def main(source: Path) -> None:
    lines = sizes(source)
    print(f"{source}: {len(lines)} modules, {sum(lines):,} lines, median {statistics.median(lines):g}")
    print(f"  {sum(size <= 50 for size in lines)} of 50 lines or fewer, longest {lines[-1]}")
    with tempfile.TemporaryDirectory() as name:
        files_of(source, Path(name), TARGET)
        for command, arguments in COMMANDS.items():
            called, loaded = files_of(source, Path(name), arguments)
            packages = {Path(path).parent for path in called}
            through = f"runs through {len(called)} files in {len(packages)} packages"
            print(f"  {command:12s} {through}, loads {len(loaded)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "src")
