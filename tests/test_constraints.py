"""constraints.txt pins everything that `make install` installs, so that every install is the tested one."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def pinned() -> set[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {plain(line.split("==")[0]) for line in lines if "==" in line}


def plain(name: str) -> str:
    """PyPI's own spelling: typing_extensions and typing-extensions are one package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(requirements: list[str], extras: set[str], found: set[str]) -> set[str]:
    """Names of all packages that the requirements need on this platform, as far as they are installed."""
    for requirement in map(Requirement, requirements):
        marker, name = requirement.marker, plain(requirement.name)
        wanted = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""})
        if wanted and name not in found:
            found.add(name)
            try:
                needed(requires(name) or [], requirement.extras, found)
            except PackageNotFoundError:  # an extra that this environment leaves out
                continue
    return found


def test_everything_that_is_installed_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["project"]["optional-dependencies"].values()
    direct = sum(groups, project["project"]["dependencies"] + project["build-system"]["requires"])
    names = needed(direct, set(), set())
    assert {"torch", "sympy", "ray", "hatchling"} <= names
    assert names <= pinned(), f"pin in constraints.txt: {sorted(names - pinned())}"


def test_make_installs_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.search(r"'\.\[(.+)\]'", (ROOT / "Makefile").read_text())
    assert asked is not None
    assert set(asked[1].split(",")) == set(extras)
