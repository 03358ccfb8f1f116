"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engram.attacker import AttackerView
from engram.data.choice import DataChoice
from engram.pipeline import build_target
from engram.targets.recipe import Recipe
from engram.targets.spec import MLPSpec
from engram.task import Binary

SOURCE = Path(__file__).parents[1] / "src" / "engram"

# Imports go one way: a module may import those of its own line and of the lines above it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("files", "task", "extras"),
    ("loop",),
    ("runs", "observers"),
    ("data",),
    ("targets",),
    ("attacker",),
    ("reconstruct",),
    ("baselines",),
    ("matching",),
    ("inspection",),
    ("membership",),
    ("report",),
    ("pipeline",),
    ("auditing",),
    ("watching",),
    ("sweep",),
    ("experiments",),
    ("bench",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# What an attack may never reach.
FORBIDDEN = {
    "attacker": (
        "engram.data",
        "engram.targets.train",
        "engram.targets.descent",
        "engram.targets.recipe",
        "engram.targets.checkpoint",
    ),
    "reconstruct": (
        "engram.data",
        "engram.targets.train",
        "engram.targets.descent",
        "engram.targets.recipe",
        "engram.targets.checkpoint",
        "engram.matching",
    ),
    "baselines": (
        "engram.data",
        "engram.targets.train",
        "engram.targets.descent",
        "engram.targets.recipe",
        "engram.targets.checkpoint",
        "engram.matching",
    ),
    "matching": ("engram.data", "engram.targets"),
    "inspection": ("engram.data",),
    "membership": ("engram.data",),
}


def _imports(path: Path) -> set[str]:
    """Every engram module that a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: write imports in full"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name for name in found if name.startswith("engram.")}


def _stage(module: str) -> str:
    return module.split(".")[1]


FILES = sorted(path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE) != Path("__init__.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for module in _imports(path):
        if (stage := _stage(module)) in RANK:
            assert RANK[stage] <= RANK[own], f"{own} must not import {module}"
        assert not module.startswith(FORBIDDEN.get(own, ())), f"{own} must never reach {module}"


def test_every_stage_has_its_place() -> None:
    stages = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES}
    assert stages == set(RANK)


def test_attack_code_loads_no_data_code() -> None:
    """Not even through what it imports: seen in a fresh interpreter."""
    program = (
        "import sys, engram.reconstruct.published.scheme, engram.baselines;"
        "never = ('engram.data', 'engram.targets.train', 'engram.targets.descent', 'engram.targets.recipe');"
        "print([m for m in sys.modules if m.startswith(never)])"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


def test_only_the_command_line_prints() -> None:
    for path in FILES:
        if path.relative_to(SOURCE).parts[0] != "cli":
            calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            assert not [call for call in calls if isinstance(call, ast.Name) and call.id == "print"], path


def _reachable(root: object) -> list[object]:
    """Everything that can be reached from an object by attributes, items and closures."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | str | bytes | int | float | torch.dtype):
            continue
        seen[id(one)] = one
        if isinstance(one, torch.Tensor):
            continue
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += list(one)
        waiting += list(getattr(one, "__dict__", {}).values())
        waiting += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
    return list(seen.values())


def test_no_training_data_can_be_reached_from_the_attacker_s_view() -> None:
    choice = DataChoice(name="faces", labels="gate", n=10)
    target = build_target(choice, MLPSpec(inputs=625, widths=(8,)), Recipe(epochs=2), Binary())
    view = AttackerView(target.network, (1, 25, 25), Binary())
    tensors = [one for one in _reachable(view) if isinstance(one, torch.Tensor)]
    assert {id(one) for one in tensors} == {id(value) for value in target.network.params.values()}
    data = choice.load().train.images
    assert all(one.numel() != data.numel() and one.grad_fn is None for one in tensors)


def test_walking_the_view_would_find_hidden_data() -> None:
    """The test above can fail: data hung on the view is found."""
    hidden = torch.zeros(3)
    view = AttackerView(
        build_target(
            DataChoice(name="faces", labels="gate", n=4),
            MLPSpec(inputs=625, widths=(2,)),
            Recipe(epochs=1),
            Binary(),
        ).network,
        (1, 25, 25),
        Binary(),
    )
    object.__setattr__(view, "memo", {"deep": [lambda: hidden]})
    assert any(one is hidden for one in _reachable(view))
