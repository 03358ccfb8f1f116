"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engram.data.choice import DataChoice
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.pipeline import build_target
from engram.training.recipe import MLPSpec, Recipe

SOURCE = Path(__file__).parents[1] / "src" / "engram"

# Imports go one way: a module may import those of its own package and of the packages above it.
ORDER = (
    "core",
    "models",
    "data",
    "training",
    "attacks",
    "scoring",
    "members",
    "render",
    "pipeline",
    "auditing",
    "sweep",
    "defences",
    "papers",
    "cli",
)
RANK = {name: rank for rank, name in enumerate(ORDER)}
# What a package may never reach, not even through what it imports.
FORBIDDEN = {
    "models": {"data", "training", "attacks", "scoring"},
    "attacks": {"data", "training", "scoring"},
    "scoring": {"data", "training"},
    "members": {"data", "training"},
}


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _stage(module: str) -> str:
    return module.split(".")[1]


FILES = sorted(path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE) != Path("__init__.py"))
MODULES = {_module(path): path for path in FILES}


def _imports(tree: ast.AST) -> set[str]:
    """Every engram module that is imported anywhere, also inside functions; not for the type checker alone."""
    typing = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and id(node) not in typing:
            assert node.level == 0, "write imports in full"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found & MODULES.keys()


GRAPH = {module: _imports(ast.parse(path.read_text())) for module, path in MODULES.items()}


def _reached(module: str) -> set[str]:
    """The modules that a module loads, directly or through others."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        for one in GRAPH[waiting.pop()] - reached:
            reached.add(one)
            waiting.append(one)
    return reached


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module: str) -> None:
    own = _stage(module)
    for other in GRAPH[module]:
        assert RANK[_stage(other)] <= RANK[own], f"{own} must not import {other}"
    reached = {_stage(other) for other in _reached(module)}
    assert not reached & FORBIDDEN.get(own, set()), f"{module} reaches {reached & FORBIDDEN[own]}"
    assert module not in _reached(module), f"{module} imports itself through others"


def test_every_package_has_its_place() -> None:
    assert {_stage(module) for module in MODULES} == set(RANK)


def test_a_wrong_import_would_be_found() -> None:
    """The test above can fail: lazy imports are seen, those for the type checker are not."""
    program = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from engram.training.recipe import Recipe\n"
        "def f():\n    from engram.data.sets import ImageSet\n    from engram.core import files\n"
    )
    assert _imports(ast.parse(program)) == {"engram.data.sets", "engram.core", "engram.core.files"}
    assert "engram.core.files" in _reached("engram.training.target")


def test_class_names_are_unique() -> None:
    """One noun a concept: whoever searches for a class finds one."""
    places: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_the_tree_stays_small_enough_to_see_at_a_glance() -> None:
    assert len(MODULES) + 1 <= 125
    long = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {module: lines for module, lines in long.items() if lines > 450} == {}


def test_attack_code_loads_no_data_code() -> None:
    """Seen in a fresh interpreter, not only in the source."""
    modules = ", ".join(module for module in MODULES if _stage(module) == "attacks")
    program = (
        f"import sys, {modules};"
        "never = ('engram.data', 'engram.training', 'engram.scoring');"
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
