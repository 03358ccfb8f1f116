"""The figure of a sweep: objective against trial, against every setting, and what mattered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engram.report.figures import new_figure, png

COLOURS = {"complete": "tab:blue", "pruned": "tab:orange", "diverged": "tab:red", "failed": "k", "killed": "k"}
COLUMNS = 3


def sweep_figure(summary: Mapping[str, Any]) -> bytes:
    """A PNG from what sweep.json holds."""
    search = summary["space"]["search"]
    panels = 1 + len(search) + (summary["importance"] is not None)
    lines = -(-panels // COLUMNS)
    figure = new_figure(4.0 * COLUMNS, 3.0 * lines)
    axes = list(figure.subplots(lines, COLUMNS, squeeze=False).flat)
    name = summary["objective"]["name"]
    label = "oracle: good images beyond held-out" if name == "oracle" else "unexplained share (blind)"
    _history(axes[0], summary, label)
    for axis, (setting, described) in zip(axes[1:], search.items(), strict=False):
        _slice(axis, summary["trials"], setting, described, label)
    if summary["importance"] is not None:
        _importance(axes[1 + len(search)], summary["importance"])
    for axis in axes[panels:]:
        axis.set_axis_off()
    figure.suptitle(f"{summary['network']}: {len(summary['trials'])} trials of {summary['space']['recipe']}")
    return png(figure)


def _history(axis: Any, summary: Mapping[str, Any], label: str) -> None:
    """Trials without an objective are marks on the lower edge, coloured by how they ended."""
    trials = summary["trials"]
    for state, colour in COLOURS.items():
        numbers = [row["number"] for row in trials if row["state"] == state]
        if not numbers:
            continue
        if state == "complete":
            values = [row["objective"] for row in trials if row["state"] == state]
            axis.plot(numbers, values, ".", color=colour, label=state)
        else:
            edge = axis.get_xaxis_transform()
            axis.plot(numbers, [0.02] * len(numbers), "|", color=colour, label=state, transform=edge)
    curve = [*summary["best_so_far"]]
    if curve:
        curve.append([trials[-1]["number"], curve[-1][1]])
        axis.step(*zip(*curve, strict=True), where="post", color="tab:green", label="best so far")
    axis.set(xlabel="trial", ylabel=label)
    axis.legend(fontsize=7)


def _slice(
    axis: Any, trials: Sequence[Mapping[str, Any]], name: str, described: Mapping[str, Any], label: str
) -> None:
    shown = [row for row in trials if row["objective"] is not None and name in row["params"]]
    values = [row["params"][name] for row in shown]
    if "choices" in described:  # names in the order of the space
        places = {repr(choice): place for place, choice in enumerate(described["choices"])}
        values = [places.get(repr(value), len(places)) for value in values]
        axis.set_xticks(list(places.values()), list(places))
    axis.plot(values, [row["objective"] for row in shown], ".", color=COLOURS["complete"])
    if described.get("log"):
        axis.set_xscale("log")
    axis.set(xlabel=name, ylabel=label)


def _importance(axis: Any, shares: Mapping[str, float]) -> None:
    names = sorted(shares, key=lambda name: shares[name])
    axis.barh(names, [shares[name] for name in names], color="tab:grey")
    axis.set(xlabel="importance (PED-ANOVA)", xlim=(0, 1))
