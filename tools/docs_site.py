"""What mkdocs adds to docs/ when it builds the site: pages made from the code, so that they can't go stale.

    reference/cli.md     every command and option, from the command line itself
    changelog.md         CHANGELOG.md
    contributing.md      CONTRIBUTING.md
    examples/NAME.md     the notebooks of examples/

A `docs/NAME.md` or `examples/NAME.ipynb` in backticks, which reads well in a terminal, becomes a link. Docstrings
are written for a terminal too: their columns of arguments become lists, and their examples code.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from engram.cli.app import app

ROOT = Path(__file__).parents[1]
INTRODUCTION = """# Command line

Made from the command line itself when this site is built. `engram COMMAND --help` shows the same in a terminal.
Every command exits with 0 if it did its work and with 1 for an error; other codes are named at the command.
"""


def command_line() -> str:
    """All commands as one page of Markdown."""
    return "\n".join([INTRODUCTION, *_command(typer.main.get_command(app), "engram")])


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: texts as they are, code in fences."""
    cells = json.loads(path.read_text())["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    shown = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts]
    head, *rest = shown
    return "\n\n".join([head, f"This page is `{path.relative_to(ROOT)}` of the repository.", *rest]) + "\n"


def linked(text: str, page: str) -> str:
    """Mentions of documents in backticks as links, relative to `page`; those to itself stay as they are."""

    def link(found: re.Match[str]) -> str:
        name = found["name"].removesuffix(".ipynb") + ".md" if found["name"].endswith(".ipynb") else found["name"]
        target = name.removeprefix("docs/")
        if target == page or not (_is_made(target) or (ROOT / name).exists()):
            return found[0]
        return f"[{found['name']}]({posixpath.relpath(target, posixpath.dirname(page) or '.')})"

    pattern = r"(?<!\[)`(?P<name>docs/[\w/-]+\.md|examples/[\w-]+\.ipynb)`"
    lines, fenced = [], False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        lines.append(line if fenced or line.startswith("    ") else re.sub(pattern, link, line))
    return "\n".join(lines) + "\n"


def readable(docstring: str) -> str:
    """A docstring as Markdown: a column of arguments becomes a list, an example a block of code."""
    lines: list[str] = []
    listed = fenced = False
    for line in docstring.splitlines():
        argument = re.match(r"(?P<names>\w[\w, ]*?) {2,}(?P<says>\S.*)", line)
        if not fenced and line.startswith(">>>"):
            lines, fenced = [*lines, "", "```python"], True
        elif fenced and not line.strip():
            lines, fenced = [*lines, "```"], False
        if fenced:
            lines.append(line)
        elif argument is not None:
            lines += ["" if listed else "\n", f"- `{argument['names']}`: {_plain(argument['says'])}"]
            listed = True
        elif listed and line.startswith("  "):
            lines[-1] += f" {_plain(line.strip())}"
        else:
            lines.append(_plain(line))
            listed = False
    return "\n".join([*lines, "```"] if fenced else lines)


class ReadableDocstrings(griffe.Extension):
    """Called by mkdocstrings for everything it documents."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Called by mkdocs: add the pages that are made."""
    for name, text in made_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Called by mkdocs: the text of a page with its links."""
    return linked(markdown, page.file.src_uri)


def made_pages() -> dict[str, str]:
    """The pages that are in no file of docs/, by name."""
    notebooks = sorted((ROOT / "examples").glob("*.ipynb"))
    return {
        "reference/cli.md": command_line(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text(),
        **{f"examples/{path.stem}.md": notebook_page(path) for path in notebooks},
    }


def _is_made(target: str) -> bool:
    return target == "reference/cli.md" or (target.startswith("examples/") and _notebook(target).exists())


def _notebook(target: str) -> Path:
    return (ROOT / target).with_suffix(".ipynb")


def _command(command: Any, name: str) -> list[str]:
    """A command with its options; a group with its commands."""
    lines = [f"## {name}", "", _plain(_paragraphs(command.help or "")), ""]
    context = command.make_context(name, [], resilient_parsing=True)
    records = [parameter.get_help_record(context) for parameter in command.params]
    if rows := [record for record in records if record is not None and not record[0].startswith("--help")]:
        lines += [
            "| option | meaning |",
            "|---|---|",
            *(f"| `{what}` | {_cell(says)} |" for what, says in rows),
            "",
        ]
    if command.epilog:
        title, _, examples = command.epilog.partition(": ")
        lines += [f"{title}:", "", *(f"    {_example(one)}" for one in examples.split("; ")), ""]
    for word, inner in getattr(command, "commands", {}).items():
        lines += _command(inner, f"{name} {word}")
    return lines


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _example(text: str) -> str:
    """An example of an epilog; a remark in brackets at its end becomes a comment."""
    command, _, remark = text.strip().partition(" (")
    return f"{command}  # {remark.removesuffix(')')}" if remark else command


def _plain(text: str) -> str:
    """Text in which an asterisk is an asterisk, and no bracket a link; what is in backticks stays as it is."""
    parts = text.split("`")
    return "`".join(part if index % 2 else re.sub(r"([*\[<])", r"\\\1", part) for index, part in enumerate(parts))


def _cell(text: str) -> str:
    """Text that stays in its cell of a table."""
    return _plain(" ".join(text.split())).replace("|", "\\|")
