"""A table of counts by two settings, coloured by size."""

from __future__ import annotations

from collections.abc import Sequence

from engram.report.figures import new_figure, png


def heat_figure(
    values: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    row_name: str,
    column_name: str,
    title: str,
) -> bytes:
    """One cell for each row and column, with its number in it."""
    figure = new_figure(0.9 * len(columns) + 2.2, 0.6 * len(rows) + 1.4)
    axis = figure.subplots()
    highest = max(max(row) for row in values)
    axis.imshow(values, cmap="Blues", vmin=0, vmax=max(highest, 1), aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            colour = "white" if value > 0.6 * highest > 0 else "black"
            axis.text(column, row, f"{value:g}", ha="center", va="center", color=colour, fontsize=9)
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    axis.set(xlabel=column_name, ylabel=row_name)
    figure.suptitle(title, fontsize=9)
    return png(figure, chart=True)
