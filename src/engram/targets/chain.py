"""Layers under any names -> their order from input to output, or what is in its way.

A layer is an edge from its input width to its output width, so the layers of a fully-connected network form a
trail that uses every edge once. Of several trails, the numbers in the names decide, then the file's order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor

_MAX_STEPS = 20_000  # of the search for trails: many layers of one width have factorially many


@dataclass(frozen=True, eq=False)
class NamedLayer:
    """A fully-connected layer as a file has it; `inputs` and `outputs` are its widths."""

    name: str
    weight_name: str
    weight: Tensor  # [outputs, inputs]
    bias: Tensor | None
    outputs: int
    inputs: int

    @property
    def bias_fits(self) -> bool:
        return self.bias is None or self.bias.shape == (self.outputs,)

    @property
    def number(self) -> tuple[str, tuple[int, ...]]:
        """The name without its numbers, and the numbers: ("fc#", (10,))."""
        digits = r"\d{1,9}"  # a name of thousands of digits is not worth an int
        return re.sub(digits, "#", self.name), tuple(map(int, re.findall(digits, self.name)))

    def __str__(self) -> str:
        return f"{self.weight_name} {list(self.weight.shape)}"


def chained(layers: list[NamedLayer], ordered: bool) -> tuple[list[NamedLayer], list[str]]:
    """The layers from input to output if there is one such order, and the problems."""
    problems = []
    if _is_transposed(layers, ordered):
        shapes = listed([str(layer) for layer in layers])
        problems.append(f"the layers chain only if every weight is transposed: {shapes}; save weight.T, [out, in]")
        layers = [_flipped(layer) for layer in layers]
    problems += [
        f"the bias of {layer} is {list(layer.bias.shape)}, not [{layer.outputs}]; save both from one model"
        for layer in layers
        if layer.bias is not None and not layer.bias_fits
    ]
    for before in (_numbered_before(layers), {}):
        trails, complete = _trails(layers, before)
        # trails come in lexicographic order, so the file's own order is the first if it is one of them
        if (len(trails) == 1 and complete) or (trails and ordered and trails[0] == tuple(range(len(layers)))):
            return [layers[index] for index in trails[0]], problems
        if trails:
            orders = "; or ".join(listed([layers[i].weight_name for i in trail], " > ") for trail in trails)
            return [], [*problems, f"several orders of the layers fit: {orders}; number their names in order"]
    return [], problems + _misfits(layers if ordered else sorted(layers, key=lambda layer: layer.number))


def _trails(layers: Sequence[NamedLayer], before: Mapping[int, int]) -> tuple[list[tuple[int, ...]], bool]:
    """The first two trails that use every layer, i after before[i]; and whether the search ended."""
    surplus = Counter(layer.inputs for layer in layers)
    surplus.subtract(Counter(layer.outputs for layer in layers))
    if sorted(filter(None, surplus.values())) not in ([], [-1, 1]):  # Euler: there is none
        return [], True
    start = next((width for width, excess in surplus.items() if excess == 1), None)
    found: list[tuple[int, ...]] = []
    stack: list[tuple[int, ...]] = [()]
    for _ in range(_MAX_STEPS):
        if not stack or len(found) == 2:
            return found, True
        trail = stack.pop()
        if len(trail) == len(layers):
            found.append(trail)
            continue
        width, used = (layers[trail[-1]].outputs if trail else start), {None, *trail}
        stack += [
            (*trail, index)
            for index in reversed(range(len(layers)))
            if index not in used and before.get(index) in used and width in (None, layers[index].inputs)
        ]
    return found, False


def _numbered_before(layers: Sequence[NamedLayer]) -> dict[int, int]:
    """Which layer each comes after by number: fc10 after fc2, though safetensors sorts it before."""
    by_number = sorted(range(len(layers)), key=lambda index: layers[index].number)
    return {b: a for a, b in pairwise(by_number) if layers[a].number[0] == layers[b].number[0]}


def _is_transposed(layers: Sequence[NamedLayer], ordered: bool) -> bool:
    """Whether the weights are [in, out]. They chain backwards, so the biases must tell, or the order."""
    flipped = [_flipped(layer) for layer in layers]
    pairs = list(zip(layers, flipped, strict=True))
    if any(layer.bias_fits and not other.bias_fits for layer, other in pairs):
        return False
    if any(other.bias_fits and not layer.bias_fits for layer, other in pairs):
        return bool(_trails(flipped, {})[0])
    return not _chains_in_order(layers, ordered) and _chains_in_order(flipped, ordered)


def _chains_in_order(layers: Sequence[NamedLayer], ordered: bool) -> bool:
    before = _numbered_before(layers)
    in_file = ordered and all(first.outputs == second.inputs for first, second in pairwise(layers))
    return in_file or bool(before and _trails(layers, before)[0])


def _flipped(layer: NamedLayer) -> NamedLayer:
    return replace(layer, outputs=layer.inputs, inputs=layer.outputs)


def _misfits(layers: Sequence[NamedLayer]) -> list[str]:
    """What breaks the chain, walking the layers in their likely order."""
    chain, branches, problems = [layers[0]], [], []
    for previous, layer in pairwise(layers):
        if layer.inputs == chain[-1].outputs:
            chain.append(layer)
        elif any(layer.inputs in (other.inputs, other.outputs) for other in chain):
            branches.append(str(layer))
        elif layer.inputs != previous.outputs:
            problems.append(
                f"{layer} takes {layer.inputs} values, but {previous} before it gives {previous.outputs}; "
                "a layer is missing, or something other than a ReLU lies between them"
            )
    if branches:
        path = listed([str(layer) for layer in chain], " > ")
        problems.append(f"residual or branching: {listed(branches)} fits nowhere in {path}; save a single path")
    return problems


def listed(names: Sequence[str], between: str = ", ", most: int = 8) -> str:
    """
    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return between.join(names[:most]) + more
