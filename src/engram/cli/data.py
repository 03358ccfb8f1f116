"""`engram data`: list, fetch and show data sets; and the records that other commands' options ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli import options as opt
from engram.cli.options import progress_bar
from engram.core.errors import ConfigError

if TYPE_CHECKING:
    from engram.data.choice import DataChoice
    from engram.data.sets import ImageSet
    from engram.models.networks import Network
    from engram.models.view import AttackerView

NO_CONTROL = "none"


@dataclass(frozen=True, kw_only=True)
class AskedData:
    """--data and its options, or --with-data for the model's card; options without effect are refused."""

    data: str | None
    n: int | None
    labels: str | None = None
    classes: int | None = None
    data_seed: int | None = None
    with_data: bool = False

    def __post_init__(self) -> None:
        described = {
            "-n": self.n,
            "--labels": self.labels,
            "--classes": self.classes,
            "--data-seed": self.data_seed,
        }
        given = [name for name, value in described.items() if value is not None]
        if self.with_data and (self.data is not None or given):
            listed = ", ".join([*(["--data"] if self.data is not None else []), *given])
            raise ConfigError(f"--with-data takes the data from the model's card; leave {listed} out")
        if self.data is None and given:
            raise ConfigError(f"{', '.join(given)} can only be used with --data; give --data NAME -n NUMBER too")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> AskedData:
        """From the options of a command by name."""
        return cls(**{field.name: options[field.name] for field in fields(cls) if field.name in options})

    def choice(self, model: Path | None, task: str, shape: tuple[int, ...] | None = None) -> DataChoice | None:
        """The data for a model and its task; None where no data were asked for. Pictures get the model's shape."""
        from engram.data.catalog import sized
        from engram.data.choice import DataChoice

        if self.data is None:
            return card_data(model, "--with-data") if self.with_data else None
        if self.n is None:
            raise ConfigError("--data needs -n, the number of training images, e.g. -n 500")
        labels = self.labels_for(task)
        name = sized(self.data, shape)
        return DataChoice(name=name, labels=labels, n=self.n, seed=self.data_seed, classes=self.classes)

    def labels_for(self, task: str) -> str:
        """The label map: the one asked for, else the one that fits the task best."""
        from engram.data.catalog import default_labels
        from engram.models.tasks import own_classes

        return self.labels or default_labels(self.data or "", own_classes=own_classes(task))


def card_data(model: Path | None, asked_by: str) -> DataChoice:
    """The data that the card of a model names."""
    from engram.training.target import card_of

    card = None if model is None else card_of(model)
    if card is None:
        raise ConfigError(
            f"{asked_by} needs a directory from `engram train`, whose card names the data; otherwise give "
            "--data NAME -n NUMBER [--labels MAP]"
        )
    return card.data


def loaded_records(
    model: Path, task: str, given: Mapping[str, Any], shape: tuple[int, ...] | None = None
) -> tuple[ImageSet, ImageSet | None] | None:
    """Training records and their control by a command's options, or None if none were asked for.

    Without -n these are all records of --data and of --held-out. Pictures of a folder are resized to `shape`.
    """
    found = _loaded(model, task, given, shape)
    for one in () if found is None else found:
        if one is not None and "resized to" in one.name:
            typer.echo(f"note: pictures of {one.name}", err=True)
    return found


def _loaded(
    model: Path, task: str, given: Mapping[str, Any], shape: tuple[int, ...] | None
) -> tuple[ImageSet, ImageSet | None] | None:
    from engram.data.catalog import sized
    from engram.data.choice import labelled
    from engram.data.sets import largest

    asked, root = AskedData.of(given), given["data_root"]
    held_out, held_out_n = given["held_out"], given["held_out_n"]
    if held_out not in (None, NO_CONTROL):
        held_out = sized(held_out, shape)
    if asked.data is None and not asked.with_data:
        control = {"--held-out": held_out, "--held-out-n": held_out_n}
        control["--mean"] = None if given["mean"] == "auto" else given["mean"]
        if stray := [name for name, value in control.items() if value is not None]:
            raise ConfigError(f"{', '.join(stray)} can only be used with --data; give --data NAME too")
        return None
    if asked.data is not None and asked.n is None:
        if held_out is None:
            raise ConfigError(
                f"all records of {asked.data} count as training records, so the control needs others: give them "
                "with --held-out NAME, say with -n how many are training records, or use --held-out none"
            )
        if asked.data_seed is not None:
            raise ConfigError(
                "--data-seed chooses -n records at random, but all are taken; give -n or leave it out"
            )
        train = labelled(sized(asked.data, shape), asked.labels_for(task), asked.classes, root)
        if held_out == NO_CONTROL:
            return train, None
        others = labelled(held_out, asked.labels_for(task), asked.classes, root)
        return train, others if held_out_n is None else others.first(held_out_n)
    choice = asked.choice(model, task, shape)
    assert choice is not None
    if held_out is None:
        split = choice.load(root, held_out=held_out_n)
        if not len(split.held_out):
            raise ConfigError(
                f"no image of {choice.name} is left for the control after {choice.n} training images; give others "
                "with --held-out NAME, or use no control with --held-out none"
            )
        return split.train, split.held_out
    train = choice.load(root, held_out=0).train
    if held_out == NO_CONTROL:
        return train, None
    others_choice = replace(choice, name=held_out, n=len(train.classes))
    available = largest(others_choice.everything(root))
    if not available:
        raise ConfigError(f"--held-out {held_out} does not have an image of every class; choose other data")
    wanted = min(choice.n, available) if held_out_n is None else held_out_n
    return train, replace(others_choice, n=wanted).load(root, held_out=0).train


OF_DATA = "data"
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help="The names of a table's columns, if they are public: age,sex=F,sex=M. The attack then expects a "
        "single 1 in each one-hot value.",
    ),
]
ColumnsOrData = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help="The names of a table's columns, if they are public: age,sex=F,sex=M, or data for those of --data. "
        "The attack then expects a single 1 in each one-hot value.",
    ),
]


def with_columns(
    view: AttackerView[Network], given: str | None, table: ImageSet | None = None
) -> AttackerView[Network]:
    """The view with the names that --columns gives; if it gives none but the table has some, with a note."""
    from engram.models.open.door import parse_columns
    from engram.models.view import Features

    columns = () if table is None else table.columns
    if given == OF_DATA and table is not None:
        if not columns:
            raise ConfigError("--columns data needs a table with names, csv: or parquet:, as --data; leave it out")
        return replace(view, features=Features(columns))
    if given is not None:
        return replace(view, features=parse_columns(given))
    if any("=" in name for name in columns):
        told = (
            "the table has one-hot values. The attack was not told; if the columns' names are public, "
            "--columns data makes it stronger"
        )
        return replace(view, notes=(*view.notes, told))
    return view


app = opt.Commands(help="List, fetch and show data sets.", no_args_is_help=True)

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
    from engram.data.catalog import CATALOG, fetch
    from engram.data.catalog import data_root as resolve

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
