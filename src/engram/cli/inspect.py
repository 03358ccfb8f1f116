"""`engram inspect`: is a model in reach of the attack, before any is run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engram.cli import options as opt
from engram.cli.data import AskedData
from engram.cli.options import progress_bar

if TYPE_CHECKING:
    from rich.table import Table

    from engram.auditing.inspect import Description, Examination, LayerDescription, Spectrum
    from engram.auditing.verdict import Verdict
    from engram.models.networks import Network
    from engram.models.view import AttackerView


USED = 0.01
"""Directions of an update with a smaller share of its largest singular value are not counted."""
EXAMPLES = (
    "Examples: engram inspect model.pt --input-shape 3x32x32; engram inspect model.pt --input-shape 3x32x32 "
    "--data folder:my_training_images -n 500 --plot inspection.png; engram inspect runs/gate --with-data --json"
)


def inspect(
    model: opt.Model,
    input_shape: opt.InputShape = None,
    arch: opt.Arch = None,
    activation: opt.ActivationName = None,
    normalize: opt.Normalize = None,
    head: opt.Head = None,
    base: opt.Base = None,
    base_seed: opt.BaseSeed = None,
    task: opt.TaskName = None,
    data: opt.DataName = None,
    n: opt.Number = None,
    labels: opt.Labels = None,
    classes: opt.Classes = None,
    data_root: opt.DataRoot = None,
    data_seed: opt.DataSeed = None,
    with_data: opt.WithData = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--plot",
            metavar="FILE.png",
            help="Draw the spectrum (with convolutions: the kernels); with data also ceiling and duals.",
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show a model's layers, what training wrote into them, and whether the attack can work with it.

    Without data: what an attacker sees; -n alone counts the equations for that many samples. With --data or
    --with-data: also margins, KKT gap and the best possible reconstruction of every training sample. The keys of
    the JSON are in docs/inspect.md.
    """
    from engram.auditing.inspect import describe, examine
    from engram.auditing.verdict import inspection_record, judge
    from engram.core.errors import ConfigError, require
    from engram.members.kkt import dense_part
    from engram.models.open.lora import is_adapter

    require(plot is None or plot.suffix == ".png", "--plot", "must end in .png", str(plot))
    if is_adapter(model):
        if stray := [name for name, one in (("--data", data), ("-n", n), ("--plot", plot)) if one is not None]:
            raise ConfigError(f"{stray[0]} does nothing for an adapter, which is no whole model; leave it out")
        show_adapter(model, as_json)
        return
    opening = {"input_shape": input_shape, "task": task, "arch": arch, "activation": activation}
    view = opt.opened_view(
        model, {**opening, "normalize": normalize, "head": head, "base": base, "base_seed": base_seed}
    )
    asked = AskedData(
        data=data,
        n=n if data is not None or with_data else None,
        labels=labels,
        classes=classes,
        data_seed=data_seed,
        with_data=with_data,
    )
    choice = asked.choice(model, view.task.name, view.input_shape)
    if choice is None and n is not None and view.dense is None:
        raise ConfigError("-n alone counts equations, which is not done with convolutions; leave it out")
    split = None if choice is None else choice.load(data_root)
    if split is not None and view.normalization is not None:
        split = replace(split, mean=view.normalization.mean_of(view.input_shape))
    samples = n if choice is None else choice.n
    examination = None
    with progress_bar() as progress:
        description = describe(view, samples=samples, progress=progress)
        if split is not None:
            examination = examine(
                dense_part(view),
                description.space,
                split.train.images,
                split.train.labels,
                split.mean,
                held_out=split.held_out.images,
                progress=progress,
            )
    verdict = judge(description, examination)
    opt.show_notes(view)
    if as_json:
        record = inspection_record(view, description, verdict, examination)
        typer.echo(json.dumps({"model": str(model), **record}, indent=2, allow_nan=False))
    else:
        show(description, examination, verdict)
    if plot is not None:
        write_figure(plot, view, description, examination, title=f"{model}: {description.name}")
        typer.echo(f"wrote {plot}", err=as_json)


def show_adapter(path: Path, as_json: bool) -> None:
    """The layers that a LoRA adapter changes, and how much of its rank each update uses."""
    from rich.console import Console
    from rich.table import Table

    from engram.models.open.lora import read_adapter

    adapter = read_adapter(path)
    rows = []
    for name, low in adapter.layers.items():
        values = low.singular_values
        used = int((values > USED * values.max()).sum()) if float(values.max()) > 0 else 0
        rows.append((name, low.rank, list(low.shape), low.scale, float(values.norm()), used))
    if as_json:
        keys = ("layer", "rank", "shape", "scale", "norm", "directions")
        layers = [dict(zip(keys, row, strict=True)) for row in rows]
        found = {
            "adapter": str(path),
            "parameters": adapter.parameters,
            "layers": layers,
            "whole": list(adapter.whole),
        }
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    table = Table(
        "layer", "shape", "rank", "scale", "size of the update", f"directions above {USED:.0%} of the largest"
    )
    for name, rank, shape, scale, norm, used in rows:
        table.add_row(name, "x".join(map(str, shape)), str(rank), f"{scale:g}", f"{norm:.3g}", str(used))
    console = Console()
    console.print(table)
    if adapter.whole:
        console.print(f"Trained as a whole: {', '.join(adapter.whole)}")
    console.print(
        f"A LoRA adapter of {adapter.parameters:,} values: nothing but what training wrote. Ask which records it "
        f"was trained on: engram membership BASE --model-code FILE.py:FUNCTION --adapter {path} --data ... "
        "--held-out ...",
        style="bold",
    )


def show(description: Description, examination: Examination | None, verdict: Verdict) -> None:
    """Tables and, last, the verdict."""
    from rich.console import Console

    console = Console()
    console.print(_layers(description.layers, examination))
    console.print(f"{description.name}: {description.parameters:,} parameters, {description.dtype}")
    kind = "homogeneous" if description.homogeneous else "not homogeneous (biases beyond the first layer)"
    if description.activation != "relu" and not description.activation.startswith("leaky"):
        kind = (
            f"not homogeneous ({description.activation}): the first layer is still a sum over the samples, but "
            "margins are not equal, and no sample lies on a neuron's boundary"
        )
    if description.reads_features:
        console.print(f"The network is {kind}; kernels are shown as rows of C k k values.")
        layer = description.read_layer.name
        facts = {f"row space of {layer}, over features": _directions(description.spectrum)}
    else:
        console.print(f"The network is {kind}; the attack can read it.")
        facts = _weights_facts(description)
    console.print(_facts("from the weights alone", facts))
    if examination is not None:
        energy = "features" if description.reads_features else "energy"
        facts = _sample_facts(examination, energy)
        console.print(_facts(f"with {len(examination.margins)} training samples", facts))
    console.print(verdict.sentence, style="bold")


def write_figure(
    path: Path,
    view: AttackerView[Network],
    description: Description,
    examination: Examination | None,
    *,
    title: str,
) -> None:
    """The spectrum, and with samples their ceiling, margins and duals; the kernels of a first convolution."""
    from engram.auditing.inspect import RECOGNISED
    from engram.core.files import write_bytes
    from engram.render.figures import SamplesPanel, SpectrumPanel, inspection_figure, kernels_figure

    if description.architecture is not None:
        write_bytes(path, kernels_figure(view.network.weights[0], title=title))
        return
    spectrum, samples = description.spectrum, None
    if examination is not None:
        ceiling = examination.ceiling
        is_image = ceiling.ssim is not None
        samples = SamplesPanel(
            ceiling=ceiling.share if ceiling.ssim is None else ceiling.ssim,
            ceiling_name="SSIM to the sample" if is_image else "share of the sample's energy",
            good=RECOGNISED if is_image else None,
            margins=examination.margins,
            duals=examination.kkt.duals,
        )
    panel = SpectrumPanel(spectrum.values, spectrum.rank, spectrum.edge, spectrum.threshold)
    write_bytes(path, inspection_figure(panel, samples, title=title))


def _layers(layers: Sequence[LayerDescription], examination: Examination | None) -> Table:
    from rich import box
    from rich.table import Table

    # Narrow enough for a terminal of 80 columns: headers wrap, values never do.
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    gaps = {} if examination is None else {gap.name: gap for gap in examination.kkt.layers}
    last = ["KKT\ngap", "own\nduals"] if gaps else []
    for header in ("layer", "weight", "norm", "largest\ns.v.", "bias\nnorm", "noise\nstd", "noise\nshare", *last):
        table.add_column(header, no_wrap=True)
    for layer in layers:
        noise = layer.noise
        cells = [
            layer.name,
            f"{layer.outputs} x {layer.inputs}",
            f"{layer.norm:.4g}",
            f"{layer.largest_singular_value:.4g}",
            "none" if layer.bias_norm is None else f"{layer.bias_norm:.4g}",
            "unknown" if noise is None else f"{noise.std:.3g}",
            "unknown" if noise is None else f"{noise.share:.1%}",
        ]
        if gaps:  # unknown for convolutions
            gap = gaps.get(layer.name)
            cells += ["-", "-"] if gap is None else [f"{gap.gap:.3f}", f"{gap.own_gap:.3f}"]
        table.add_row(*cells)
    return table


def _facts(title: str, facts: dict[str, str]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def _weights_facts(description: Description) -> dict[str, str]:
    counts, margin = description.equations, description.margin
    assert counts is not None
    whole = f"{counts.equations:,} parameters; "
    space = f"{counts.row_space_equations:,} equations; "
    if counts.samples is None:
        whole += f"as many as the input values of {counts.most_samples:,} samples"
        space += f"as many as the unknowns of {counts.row_space_most_samples:,} samples"
    else:
        whole += f"{counts.unknowns:,} input values of {counts.samples:,} samples"
        space += f"{counts.row_space_unknowns:,} unknowns of {counts.samples:,} samples"
    return {
        "row space": _directions(description.spectrum),
        "equations, all layers": whole,
        "equations, row space": space,
        "margin": "unknown"
        if margin is None
        else f"about {margin.margin:.3g}; duals sum to {margin.sum_of_duals:.3g}",
    }


def _directions(spectrum: Spectrum) -> str:
    edge = "in all (the layer is too small to estimate its noise)"
    if spectrum.edge is not None:
        edge = f"above {spectrum.threshold:.3g} (noise ends at {spectrum.edge:.3g})"
    hidden = f", and {spectrum.hidden} that stand out at low frequencies" if spectrum.hidden else ""
    shown = f", and {spectrum.at_edges} that the edges of its uniform start show" if spectrum.at_edges else ""
    return f"{spectrum.rank - spectrum.hidden - spectrum.at_edges} directions {edge}{hidden}{shown}"


def _sample_facts(found: Examination, energy: str) -> dict[str, str]:
    margins, duals, ceiling = found.margins, found.kkt, found.ceiling
    n = len(margins)
    facts = {
        "fit": f"loss {found.loss:.3g}, accuracy {found.accuracy:.1%}",
        "margins": f"{float(margins.min()):.3g} to {float(margins.max()):.3g}, median "
        f"{float(margins.quantile(0.5)):.3g}; {found.on_margin} within 15 % of the smallest positive one",
        "support vectors": f"{int(duals.support.sum())} of {n}"
        + ("" if duals.margin is None else f"; their duals give a margin of {duals.margin:.3g}"),
        "ceiling": f"{float(ceiling.share.quantile(0.5)):.1%} of the median sample's {energy} is in the row space",
    }
    if ceiling.ssim is not None:
        facts["ceiling"] = (
            f"SSIM above 0.4 for {ceiling.recognisable} of {n} (the mean image alone: "
            f"{ceiling.recognisable_by_mean}); median {float(ceiling.ssim.quantile(0.5)):.3f}"
        )
    unseen, own = found.held_out_boundaries, found.boundaries.double()
    facts["neuron boundaries"] = f"a sample lies on {float(own.mean()):.1f} on average" + (
        ""
        if unseen is None
        else f", a held-out one on {float(unseen.double().mean()):.1f}; "
        f"{found.beyond_held_out} of {n} on more than any held-out one"
    )
    return facts
