"""The documentation builds without a warning, and what is made from the code is complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from engram.cli.app import app

if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
    pytest.skip("the site needs the extra docs: pip install '.[docs]'", allow_module_level=True)

from tools.docs_site import command_line, linked, made_pages, readable

ROOT = Path(__file__).parents[1]


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    # not --quiet, which hides warnings from --strict too
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(root / "mkdocs.yml"), "-d"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([*command, str(site)], capture_output=True, text=True, env=environment, cwd=root)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    built = build(ROOT, directory)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr, built.stderr
    return directory


def test_every_page_is_there_and_reachable(site: Path) -> None:
    written = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    made = {Path(name).with_suffix(".html") for name in made_pages()}
    index = (site / "index.html").read_text()
    for page in written | made:
        assert (site / page).exists(), page
        assert f'href="{page}"' in index, f"{page} is not in the navigation"


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img|iframe)[^>]*\s(?:src|href)=[\"']?(?:https?:)?//[^\s>\"']+")
    remote = {hit for page in site.rglob("*.html") for hit in loaded.findall(page.read_text())}
    styles = {hit for sheet in site.rglob("*.css") for hit in re.findall(r"url\(https?:[^)]*", sheet.read_text())}
    assert not remote | styles


def test_mentions_of_documents_become_links(site: Path) -> None:
    assert '<a href="membership.html">' in (site / "audit.html").read_text()
    assert '<a href="../models.html">' in (site / "guides" / "own-model.html").read_text()


@pytest.mark.timeout(120)
def test_a_broken_link_would_fail(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[gone](gone.md) and [no such part](index.md#nowhere)\n")
    settings = (ROOT / "mkdocs.yml").read_text()
    settings = re.sub(r"(?s)^nav:.*", "", settings, flags=re.MULTILINE)
    settings = re.sub(r"(?s)hooks:.*?markdown_extensions:", "markdown_extensions:", settings)
    (tmp_path / "mkdocs.yml").write_text(settings)
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert "gone.md" in built.stderr
    assert "#nowhere" in built.stderr


def test_the_command_line_page_has_every_command_and_option() -> None:
    page = command_line()

    def walk(command: Any, name: str) -> int:
        part = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert part, f"{name} is missing"
        options = [option for parameter in command.params for option in parameter.opts if option[0] == "-"]
        missing = [
            option
            for option in options
            if option != "--help" and not re.search(rf"`[^`]*(?<![\w-]){option}(?![\w-])", part)
        ]
        assert not missing, f"{name}: {missing}"
        shown = [parameter for parameter in command.params if "--help" not in parameter.opts]
        assert part.count("\n| `") == len(shown)
        inner = getattr(command, "commands", {})
        return 1 + sum(walk(one, f"{name} {word}") for word, one in inner.items())

    assert walk(typer.main.get_command(app), "engram") >= 16


def test_links_and_docstrings_are_translated_as_written() -> None:
    assert linked("see `docs/models.md`", "guides/policy.md") == "see [docs/models.md](../models.md)\n"
    assert linked("this is `docs/models.md`", "models.md") == "this is `docs/models.md`\n"
    assert linked("    `docs/models.md` in code", "audit.md") == "    `docs/models.md` in code\n"
    assert linked("`docs/gone.md`", "audit.md") == "`docs/gone.md`\n"
    text = readable("Do it.\n\nfirst   [n, *shape]\n        and more\nsecond  this\n\n>>> 1 + 1\n2")
    assert "- `first`: \\[n, \\*shape] and more" in text
    assert "- `second`: this" in text
    assert text.endswith("```python\n>>> 1 + 1\n2\n```")
