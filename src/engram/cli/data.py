"""`engram data`: list, fetch and show data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from engram.cli import options as opt
from engram.cli.options import progress_bar

app = typer.Typer(help="List, fetch and show data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `engram data list`.")]
NameOrPath = Annotated[
    str, typer.Argument(metavar="NAME", help="A name from `engram data list`, npz:PATH or folder:PATH.")
]


@app.command("list", epilog="Example: engram data list --data-root ~/datasets")
def list_sets(
    data_root: opt.DataRoot = None,
    as_json: opt.AsJson = False,
) -> None:
    """List every data set that engram knows and whether it is available."""
    rows = _rows(data_root)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "contents", "labels")
    table.add_column("where", overflow="fold")  # a truncated path is useless
    for row in rows:
        absent = f"missing: engram data get {row['name']}"
        table.add_row(row["name"], row["description"], row["labels"], row["where"] or absent)
    console = Console()
    console.print(table)
    console.print("Your own: npz:PATH (arrays images, labels) or folder:PATH (one subfolder per class).")


@app.command("get", epilog="Example: engram data get mnist")
def get(name: Name, data_root: opt.DataRoot = None) -> None:
    """Download a published data set and check it; an interrupted download is resumed where it stopped."""
    from engram.data.catalog import CATALOG
    from engram.data.catalog import data_root as resolve
    from engram.data.download import fetch

    if name in CATALOG and CATALOG[name].embedded:
        typer.echo(f"{name} comes with engram; there is nothing to fetch")
        return
    root = resolve(data_root)
    with progress_bar() as progress:
        added = fetch(name, root, progress)
    for path in added:
        typer.echo(f"wrote {path}")
    typer.echo(f"{name} is ready in {root}")


@app.command("show", epilog="Example: engram data show faces --labels gate -n 40 -o gate.png")
def show(
    name: NameOrPath,
    data_root: opt.DataRoot = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="PNG file to write.")] = Path("sheet.png"),
    labels: Annotated[str, typer.Option("--labels", metavar="MAP", help="Label map to group by.")] = "identity",
    classes: opt.Classes = None,
    n: Annotated[int, typer.Option("-n", min=1, help="About how many images to draw.")] = 100,
) -> None:
    """Draw a contact sheet: the first images of each class under its name."""
    import io

    from engram.core.files import write_bytes
    from engram.data.catalog import load
    from engram.data.choice import apply_labels, first_classes
    from engram.data.sets import class_counts
    from engram.render.figures import contact_sheet

    images = apply_labels(load(name, root=data_root), labels)
    images = images if classes is None else first_classes(images, classes)
    encoded = io.BytesIO()
    contact_sheet(images, n).save(encoded, "PNG")
    write_bytes(out, encoded.getvalue())
    size = "×".join(str(side) for side in images.shape)
    typer.echo(f"{images.name}: {len(images)} images of {size}")
    for label, count in zip(images.classes, class_counts(images), strict=True):
        typer.echo(f"  {label}: {count}")
    typer.echo(f"wrote {out}")


def _rows(data_root: Path | None) -> list[dict[str, Any]]:
    """The catalogue as plain values; files are looked for, not read."""
    from engram.data.catalog import CATALOG
    from engram.data.catalog import data_root as resolve

    root = resolve(data_root)
    rows = []
    for entry in CATALOG.values():
        found = entry.found(root)
        rows.append(
            {
                "name": entry.name,
                "description": entry.description,
                "labels": entry.labels,
                "embedded": entry.embedded,
                "test_split": entry.has_test,
                "where": "in the package" if entry.embedded else str(found) if found else None,
            }
        )
    return rows
