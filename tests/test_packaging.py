"""The wheel and the sdist are whole: built, installed into an empty environment, and used from there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

for tool in ("build", "hatchling"):
    pytest.importorskip(tool, reason="packages are built with the extra dev: pip install '.[dev]'")

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, made from the sdist as an installer would, and the sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return out / f"engram-{VERSION}-py3-none-any.whl", out / f"engram-{VERSION}.tar.gz"


@pytest.fixture(scope="module")
def clean(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, and what it depends on from this one.

    A path file names this environment's packages, so that torch need not be installed again. Python reads no path
    files in a directory that comes from one, so an engram installed here for development stays out of sight.
    """
    directory = tmp_path_factory.mktemp("clean")
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    installed = subprocess.run([*command, str(built[0])], capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    packages = next(directory.glob("lib/python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory


def run(clean: Path, *words: str) -> str:
    """The output of a program of the clean environment, which knows nothing of the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(clean / "bin" / words[0]), *words[1:]]
    child = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=clean)
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_the_wheel_has_all_files_of_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        packed = {name for name in wheel.namelist() if not name.startswith(f"engram-{VERSION}.dist-info/")}
        metadata = wheel.read(f"engram-{VERSION}.dist-info/METADATA").decode()
    source = {
        str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "engram").rglob("*") if path.is_file()
    }
    assert packed == {name for name in source if "__pycache__" not in name}
    assert {
        "engram/py.typed",
        *(f"engram/render/templates/report.{kind}" for kind in ("html", "css", "js")),
    } <= packed
    assert "License-Expression: MIT" in metadata
    assert "Project-URL: Source" in metadata


def test_the_sdist_has_what_is_needed_to_test_and_document_it(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "mkdocs.yml",
        "docs/index.md",
    )
    assert not {*needed, "tests/test_packaging.py", "tools/docs_site.py", "CITATION.cff"} - names
    assert not [name for name in names if name.startswith((".venv", "runs", "site/", "dist"))]


def test_the_installed_command_works(clean: Path) -> None:
    assert run(clean, "engram", "--version").strip() == f"engram {VERSION}"
    assert "Audit models that you own or may test" in " ".join(run(clean, "engram", "--help").split())
    assert '"name": "faces"' in run(clean, "engram", "data", "list", "--json")


def test_what_the_readme_says_works_when_pasted(clean: Path) -> None:
    """On a smaller target than the demo's and with a shorter attack, in an environment that has only the wheel."""
    target = (
        "from pathlib import Path; import engram;"
        "assert Path(engram.__file__).is_relative_to(Path.cwd()), engram.__file__;"
        "engram.build_target(engram.DataChoice(name='faces', labels='gate', n=50),"
        " engram.MLPSpec(inputs=625, widths=(20, 20)), engram.Recipe(epochs=50), engram.Binary(),"
        " directory=Path('runs/demo/target'))\n"
    )
    block = README.partition("```python\n")[2].partition("```")[0]
    assert 5 <= len(block.split("\n\n", 1)[1].strip().splitlines()) + 1 <= 6
    assert "leak" in run(clean, "python", "-c", target + block.replace("seconds=15", "seconds=1")).lower()
    demo, audit, membership = re.findall(r"^    (engram .+)$", README, re.MULTILINE)
    assert demo == "engram demo"
    run(clean, *shlex.split(audit.replace("30s", "1s")))
    run(clean, *shlex.split(membership))
    for report in ("runs/audit", "runs/members"):
        assert "<style>" in (clean / report / "report.html").read_text()


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 110
    assert "make demo" in README
    assert "make test" in README
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 15
    assert not [link for link in links if not (ROOT / link).exists()]


def test_one_version_and_one_date_everywhere() -> None:
    released = re.match(r"# Changelog\n\n## ([\d.]+) \((\d{4}-\d\d-\d\d)\)\n", (ROOT / "CHANGELOG.md").read_text())
    assert released is not None
    assert released[1] == VERSION
    assert f"version: {VERSION}\ndate-released: {released[2]}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_workflow_runs_what_everybody_runs() -> None:
    """`make test` and `make demo` on every Python that the package names, with no right but to read."""
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r"- run: (.+)", text) == ["make test", "make demo"]
    assert re.findall(r"permissions:\n((?:  .+\n)+)", text) == ["  contents: read\n"]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", used) for used in re.findall(r"uses: (\S+)", text))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert named == ["3.11", "3.12", "3.13"]
    assert f"python: {named}".replace("'", '"') in text
