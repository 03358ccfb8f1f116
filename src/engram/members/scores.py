"""The scores of every record at every layer: the pool read two or three times, one test after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engram.core.errors import ConfigError, require
from engram.core.progress import Progress, part, silent
from engram.members.layers import LayerPass, Margin, passes, readable_layers
from engram.members.matched_filter import INTERFERENCE, WIDEST, LayerFilter
from engram.members.pool import Pool
from engram.members.pooled_fit import MOST_RECORDS, MOST_VALUES, PooledFit

REFERENCES = 4000
"""Covariances are estimated from this many records of a larger pool; more do not sharpen the scores."""
FILTER, FIT = "filter", "fit"
"""The tests: the matched filter, the pooled fit."""


@dataclass(frozen=True, eq=False)
class LayerScores:
    """The scores [n] of every record by layer and test, the margins [n], and what was left out or simplified."""

    margins: Tensor
    scores: dict[tuple[str, str], Tensor]
    left_out: dict[str, str]
    notes: tuple[str, ...]


def score_layers(
    model: nn.Module,
    pool: Pool,
    margin: Margin,
    *,
    interference: float = INTERFERENCE,
    widest: int = WIDEST,
    progress: Progress = silent,
) -> LayerScores:
    """Score every record of the pool at every layer of a model in eval mode.

    The pool holds the records in question and the controls, so that all of them are treated alike.
    """
    if model.training:
        raise ConfigError("the model is in training mode, where records influence each other; call model.eval()")
    require(interference > 0, "interference", "must be positive", interference)
    layers = readable_layers(model)
    if not layers:
        raise ConfigError(f"no layer of {type(model).__name__} can be read: it has no Linear or Conv layer")
    filters = {name: LayerFilter.of(layer, len(pool), widest) for name, layer in layers.items()}
    fits = {name: PooledFit.of(layer) for name, layer in layers.items()} if len(pool) <= MOST_RECORDS else {}
    left_out: dict[str, str] = {}

    references = min(len(pool), REFERENCES)
    whole = 2 * references + len(pool)
    early, late = references / whole, 2 * references / whole

    def read(what: str, records: int, first: float, last: float, use: Callable[[str, LayerPass], None]) -> Tensor:
        report, margins, done = part(progress, first, last), [], 0
        chosen = {name: layers[name] for name in filters}
        for inputs, labels in pool.spread(records):
            some, seen = passes(model, chosen, inputs, labels, margin)
            for name, one in seen.items():
                use(name, one)
            margins.append(some.cpu())
            done += len(labels)
            report(f"reading records: {what}", done / records)
        return torch.cat(margins)

    held = 0

    def first_look(name: str, one: LayerPass) -> None:
        nonlocal held
        filters[name].add_covariances(one)
        if name in fits and one.positions > 1 and not fits[name].gradients:
            held += len(pool) * filters[name].weight.numel()
            if held > MOST_VALUES:  # no room for the gradients of this layer
                held -= len(pool) * filters[name].weight.numel()
                del fits[name]
        if name in fits:
            fits[name].add(one)

    def add_moments(name: str, one: LayerPass) -> None:
        if filters[name].has_positions:
            filters[name].add_moments(one.gradients())

    read("covariances", references, 0.0, early, first_look)
    for name in [name for name, layer in filters.items() if layer.samples != references]:
        left_out[name] = "the outputs do not depend on it, or it is not called as a module"
        del filters[name]
        fits.pop(name, None)
    if not filters:
        raise ConfigError(f"no layer of {type(model).__name__} can be read: its outputs depend on none")
    for layer in filters.values():
        layer.find_bases()
    scores: dict[tuple[str, str], Tensor] = {}
    for name in list(fits):
        scores[name, FIT] = fits.pop(name).scores().cpu()
    if any(layer.has_positions for layer in filters.values()):
        read("moments", references, early, late, add_moments)
    for layer in filters.values():
        layer.close(interference)
    parts: dict[str, list[Tensor]] = {name: [] for name in filters}
    margins = read(
        "scores", len(pool), late, 1.0, lambda name, one: parts[name].append(filters[name].scores(one).cpu())
    )
    scores |= {(name, FILTER): torch.cat(some) for name, some in parts.items()}
    return LayerScores(
        margins, scores, left_out, _notes(filters, {name for name, test in scores if test == FIT}, len(pool))
    )


def _notes(filters: dict[str, LayerFilter], fitted: set[str], records: int) -> tuple[str, ...]:
    notes = []
    if records > REFERENCES:
        notes.append(
            f"covariances were estimated from {REFERENCES:,} of {records:,} records, the same share of both sets"
        )
    notes += [f"{name} is {layer.note}" for name, layer in filters.items() if layer.note is not None]
    if records > MOST_RECORDS:
        notes.append(
            f"the pooled fit takes at most {MOST_RECORDS:,} records, got {records:,}: the filter is used alone"
        )
    elif unfitted := [name for name in filters if name not in fitted]:
        notes.append(
            f"the pooled fit would take too much memory at {', '.join(unfitted)}: only the filter is used"
        )
    return tuple(notes)
