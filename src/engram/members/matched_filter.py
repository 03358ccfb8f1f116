"""The matched filter: is this record's gradient in the weights?

At a stationary point every weight matrix is a sum over the training samples, W = c W(0) + sum_i lambda_i u_i h_iᵀ,
with h_i what enters the layer and u_i the gradient of sample i's margin by the layer's output. Whether a record is
in that sum is a detection problem: a known signal g = u hᵀ in coloured noise, which is the other samples (second
moments S in the Kronecker-factored eigenbasis) and the initialisation (white, sigma²). The best linear detector,
in the eigenbases C_u = Q_u diag(a) Q_uᵀ and C_h = Q_h diag(b) Q_hᵀ, is

    t(x) = <g~, G o W~> / sqrt(<g~², G>),    G = 1 / (f s S + sigma²),    x~ = Q_uᵀ x Q_h

for every layer of every network. At layers with positions (convolutions, tokens) g is the sum of u_p h_pᵀ over
them, and S is measured in the eigenbasis; elsewhere S = a bᵀ. All of it is computed from the weights and the
pooled records: no shadow model, and nobody says who is a member.

The pool is read two or three times: covariances, second moments at layers with positions, scores. Memory is
bounded by the sizes of the layers, not by the number of records. A side too wide for an eigenbasis is cut into
blocks, each with its own.

The pooled fit: how much of a layer's weight does a record explain that no other record of the pool explains?

With the whole training set in the pool, W = sum_i lambda_i g_i + noise is a regression with one unknown a record.
Its ridge is not tuned: lambda ~ N(0, tau²) and noise ~ N(0, sigma²) give W a likelihood, whose maximum fixes both.
A record's score is what remains of its lambda when all others have explained what they can, in units of its
standard deviation (leave-one-out, in closed form):

    score_i = lambda_i / (sigma sqrt(C_ii)),    C = (K + rho)⁻¹,    lambda = C b,    rho = sigma² / tau²

with K_ij = <g_i, g_j> and b_i = <g_i, W>. It knows the other members and cancels them exactly, where the matched
filter treats them as noise; the filter in turn needs no other member. The two fail on different records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engram.members.layers import Layer, LayerPass, blocks_of, blocks_of_vectors, layer_weight

MOST_RECORDS = 3000
"""The fit takes the square of their number in memory and its cube in time."""
MOST_VALUES = 128 * 1024 * 1024
"""Values of per-sample gradients that are held for layers with positions, over all layers."""
RIDGES = torch.logspace(-9, 3, 49, dtype=torch.float64).tolist()
"""rho as a multiple of the largest eigenvalue of K."""


@dataclass(eq=False)
class PooledFit:
    """The fit of one layer; vectors are kept where a gradient is their product, else gradients."""

    weight: Tensor
    entering: list[Tensor] = field(default_factory=list)
    signals: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, layer: Layer) -> PooledFit:
        return cls(layer_weight(layer))

    def add(self, one: LayerPass) -> None:
        if one.positions == 1:
            entering, signals = one.vectors(1)
            self.entering.append(entering[:, :, 0].transpose(0, 1).double())
            self.signals.append(signals[:, :, 0].transpose(0, 1).double())
        else:
            self.gradients.append(one.gradients().flatten(1))

    def state(self) -> dict[str, Tensor]:
        """What was added."""
        if self.gradients:
            return {"gradients": torch.cat(self.gradients)}
        return {"entering": torch.cat(self.entering, 1), "signals": torch.cat(self.signals, 1)}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Add what another part of the pool gave."""
        for name, value in state.items():
            getattr(self, name).append(value)

    def scores(self) -> Tensor:
        """Of every record that was added, [n]."""
        if self.gradients:
            rows = torch.cat(self.gradients)
            gram, products = _gram(rows), (rows @ self.weight.flatten().to(rows)).double()
        else:
            h, u = torch.cat(self.entering, 1), torch.cat(self.signals, 1)  # [g, n, p], [g, n, q]
            gram = ((h @ h.transpose(1, 2)) * (u @ u.transpose(1, 2))).sum(0)
            products = ((u @ self.weight) * h).sum((0, 2))
        return left_out_scores(gram, products, float(self.weight.square().sum()), self.weight.numel())


def _gram(rows: Tensor, at_once: int = 256) -> Tensor:
    """rows rowsᵀ in float64, a few rows at a time in it."""
    gram = torch.empty(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    parts = torch.split(rows, at_once)
    for i, first in enumerate(parts):
        for j, second in enumerate(parts[: i + 1]):
            block = (first @ second.T).double()
            gram[i * at_once : i * at_once + len(first), j * at_once : j * at_once + len(second)] = block
            gram[j * at_once : j * at_once + len(second), i * at_once : i * at_once + len(first)] = block.T
    return gram


def left_out_scores(gram: Tensor, products: Tensor, energy: float, size: int) -> Tensor:
    """The scores [n] from K [n, n] and b [n], for a weight of `size` values with the sum of squares `energy`."""
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp(min=0)
    along = vectors.T @ products
    rho, variance = _likeliest(values, along, energy, size)
    inverse = 1 / (values + rho)
    duals = vectors @ (inverse * along)
    spread = (vectors.square() @ inverse).sqrt()
    scores: Tensor = duals / spread / math.sqrt(variance)
    return scores


def _likeliest(values: Tensor, along: Tensor, energy: float, size: int) -> tuple[float, float]:
    """rho and sigma² of the largest likelihood of W ~ N(0, tau² sum_i g_i g_iᵀ + sigma²)."""
    top = float(values[-1])
    if top <= 0 or energy <= 0:
        return 1.0, 1.0
    kept = values > 1e-12 * top
    values, along = values[kept], along[kept]
    explained = along.square() / values
    rest = max(energy - float(explained.sum()), 1e-12 * energy)
    best = (-math.inf, 1.0, 1.0)
    for ridge in RIDGES:
        rho = ridge * top
        variance = (float((explained * rho / (rho + values)).sum()) + rest) / size
        likelihood = -0.5 * (size * math.log(variance) + float(torch.log1p(values / rho).sum()))
        best = max(best, (likelihood, rho, variance))
    return best[1], best[2]


MEDIAN_OF_CHI2 = 0.4549
"""Median of the square of a standard normal variable."""
INTERFERENCE = 3.0
"""f: how much the other samples count as noise, as a multiple of what the energy of the weights suggests."""
WIDEST = 4096
"""The largest eigenbasis; wider sides are cut into blocks, unless the pool is so small that it spans little."""
POSITIONS = 64
"""Positions of a record that the eigenbases of convolutions and tokens are found from; moments take all."""
_AT_ONCE = 16 * 1024 * 1024
"""Values of per-sample gradients that are held at once."""
_KEPT = 128 * 1024 * 1024
"""Values of a small pool's vectors that are held instead of an eigenbasis."""


@dataclass(eq=False)
class Directions:
    """Second moments of vectors [g, n, d], of which the eigenvectors are the basis.

    Few vectors are kept as they are: they are smaller than the moments, and span all that is needed.
    """

    width: int
    kept: list[Tensor] = field(default_factory=list)
    moments: Tensor | None = None

    def add(self, vectors: Tensor) -> None:
        vectors = vectors.detach()
        if self.moments is None:
            self.kept.append(vectors.double())
            if sum(some.shape[1] for some in self.kept) * 2 > self.width:
                self._sum_up()
        else:
            self.moments += vectors.transpose(1, 2) @ vectors

    def state(self) -> dict[str, Tensor]:
        return {"kept": torch.cat(self.kept, 1)} if self.moments is None else {"moments": self.moments}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Add what another part of the pool gave; the order of the parts decides the rounding."""
        if "kept" in state:
            self.add(state["kept"])
        elif self.moments is None and not self.kept:
            self.moments = state["moments"].clone()
        else:
            self.moments = self._sum_up() + state["moments"]

    def _sum_up(self) -> Tensor:
        """From vectors to moments, in one product: its rounding must not depend on where a run was resumed."""
        if self.moments is None:
            vectors, self.kept = torch.cat(self.kept, 1), []
            self.moments = vectors.transpose(1, 2) @ vectors
        return self.moments

    def basis(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues [g, r] and eigenvectors [g, d, r]; vectors outside the basis are none of those added."""
        if self.moments is not None:
            values, vectors = torch.linalg.eigh(self.moments)
            return values.clamp(min=0), vectors
        spanned, triangle = torch.linalg.qr(torch.cat(self.kept, 1).transpose(1, 2))
        values, vectors = torch.linalg.eigh(triangle @ triangle.transpose(1, 2))
        return values.clamp(min=0), spanned @ vectors


@dataclass(eq=False)
class LayerFilter:
    """The filter of one layer, filled in by reading the pool."""

    weight: Tensor
    entering: Directions
    leaving: Directions
    samples: int = 0
    has_positions: bool = False
    columns: Tensor = field(default_factory=lambda: torch.zeros(0))
    rows: Tensor = field(default_factory=lambda: torch.zeros(0))
    moments: Tensor = field(default_factory=lambda: torch.zeros(0))
    gain: Tensor = field(default_factory=lambda: torch.zeros(0))
    template: Tensor = field(default_factory=lambda: torch.zeros(0))
    blocks: tuple[int, int] = (1, 1)
    """How many blocks of rows and of columns the weight is cut into."""

    @classmethod
    def of(cls, layer: Layer, records: int, widest: int = WIDEST) -> LayerFilter:
        """The empty filter of a layer, for a pool of so many records."""
        weight = layer_weight(layer)
        blocks = tuple(_block_count(side, records, widest) for side in weight.shape[1:])
        weight = blocks_of(weight, *blocks)
        return cls(weight, Directions(weight.shape[2]), Directions(weight.shape[1]), blocks=(blocks[0], blocks[1]))

    def emptied(self) -> LayerFilter:
        """The same filter before anything was read."""
        empty = Directions(self.weight.shape[2]), Directions(self.weight.shape[1])
        return LayerFilter(self.weight, *empty, blocks=self.blocks)

    def add_covariances(self, one: LayerPass) -> None:
        entering, signals = blocks_of_vectors(*one.vectors(POSITIONS), *self.blocks)
        self.entering.add(entering.transpose(0, 1).flatten(1, 2))
        self.leaving.add(signals.transpose(0, 1).flatten(1, 2))
        self.samples += one.records
        self.has_positions |= one.positions > 1

    @property
    def note(self) -> str | None:
        """What was simplified."""
        if self.blocks == (1, 1):
            return None
        rows, columns = self.blocks
        return f"cut into {rows} x {columns} blocks, each with its own eigenbasis"

    def state(self) -> dict[str, Tensor]:
        """What reading the covariances gave."""
        parts = {"entering": self.entering, "leaving": self.leaving}
        found = {f"{side}.{name}": value for side, one in parts.items() for name, value in one.state().items()}
        return found | {"samples": torch.tensor(self.samples), "positions": torch.tensor(self.has_positions)}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Add what another part of the pool gave."""
        for side, one in (("entering", self.entering), ("leaving", self.leaving)):
            one.merge({name.partition(".")[2]: value for name, value in state.items() if name.startswith(side)})
        self.samples += int(state["samples"])
        self.has_positions |= bool(state["positions"])

    def find_bases(self) -> None:
        b, self.columns = self.entering.basis()
        a, self.rows = self.leaving.basis()
        self.moments = a[:, :, None] * b[:, None, :] / self.samples**2
        if self.has_positions:
            self.moments = torch.zeros_like(self.moments)
        self.entering, self.leaving = Directions(0), Directions(0)  # they are not needed any more

    def add_moments(self, one: LayerPass) -> None:
        """At a layer with positions."""
        for some in self._rotated(one.gradients()):
            self.moments += some.square().sum(0, dtype=torch.float64) / self.samples

    def _turned(self) -> Tensor:
        """The weight in the eigenbasis."""
        return self.rows.transpose(1, 2) @ self.weight @ self.columns

    def close(self, interference: float) -> None:
        """Fix the gain once the moments are known."""
        weight = self._turned()
        energy = weight.square()
        outside = self.weight.numel() - energy.numel()
        if outside >= energy.numel():  # no record reaches there, so it is noise alone
            noise = (self.weight.square().sum() - energy.sum()).clamp(min=0) / outside
        else:
            noise = energy.median() / MEDIAN_OF_CHI2
        scale = (energy.sum() - noise * energy.numel()).clamp(min=0) / self.moments.sum().clamp(min=1e-300)
        self.gain = 1 / (interference * scale * self.moments + noise.clamp(min=1e-30))
        self.template = self.gain * weight

    def scores(self, one: LayerPass) -> Tensor:
        """t of every record, [b]."""
        if self.has_positions:
            gradients = one.gradients()
            template, gain = self.template.to(gradients).flatten(), self.gain.to(gradients).flatten()
            parts = [
                (some.flatten(1) @ template, some.flatten(1).square() @ gain) for some in self._rotated(gradients)
            ]
            match, size = (torch.cat(values).double() for values in zip(*parts, strict=True))
        else:
            entering, signals = blocks_of_vectors(*one.vectors(1), *self.blocks)
            h = entering[:, :, 0].transpose(0, 1).double() @ self.columns  # [g, b, p]
            u = signals[:, :, 0].transpose(0, 1).double() @ self.rows
            match = ((u @ self.template) * h).sum((0, 2))
            size = ((u.square() @ self.gain) * h.square()).sum((0, 2))
        return match / size.clamp(min=1e-300).sqrt()

    def _rotated(self, gradients: Tensor) -> Iterator[Tensor]:
        """Gradients in the eigenbasis, [b, g, q, p], a few samples at a time.

        Samples are rows of one large matrix, since a product of many small ones would copy the basis for each.
        """
        rows, columns = self.rows.to(gradients), self.columns.to(gradients)
        for some in torch.split(gradients, max(1, _AT_ONCE // self.weight.numel())):
            some = blocks_of(some, *self.blocks).transpose(0, 1)  # [g, b, q, p]
            g, b, q, p = some.shape
            turned = (some.reshape(g, b * q, p) @ columns).reshape(g, b, q, -1).transpose(1, 2)  # [g, q, b, p]
            turned = rows.transpose(1, 2) @ turned.reshape(g, q, -1)
            yield turned.reshape(g, rows.shape[2], b, -1).permute(2, 0, 1, 3)


@dataclass(eq=False)
class IndexFilter(LayerFilter):
    """The filter of an embedding, whose inputs are 1 at an index and 0 elsewhere: they are their own eigenbasis.

    `columns` are the indices that occur among the references. Other rows of the table are noise alone.
    """

    @classmethod
    def of(cls, layer: Layer, records: int, widest: int = WIDEST) -> IndexFilter:
        weight = layer_weight(layer)
        return cls(weight, Directions(0), Directions(weight.shape[1]), columns=torch.zeros(weight.shape[2]).bool())

    def emptied(self) -> IndexFilter:
        none = torch.zeros(self.weight.shape[2], dtype=torch.bool)
        return IndexFilter(self.weight, Directions(0), Directions(self.weight.shape[1]), columns=none)

    def add_covariances(self, one: LayerPass) -> None:
        _, indices, signals = one.rows()
        self.leaving.add(signals[None].double())
        self.columns[indices.cpu()] = True
        self.samples += one.records
        self.has_positions = True

    def state(self) -> dict[str, Tensor]:
        found = {f"leaving.{name}": value for name, value in self.leaving.state().items()}
        return found | {"samples": torch.tensor(self.samples), "columns": self.columns}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        self.leaving.merge({name.partition(".")[2]: value for name, value in state.items() if "." in name})
        self.samples += int(state["samples"])
        self.columns |= state["columns"]
        self.has_positions = True

    def find_bases(self) -> None:
        _, self.rows = self.leaving.basis()
        self.columns = self.columns.nonzero().flatten().to(self.weight.device)
        self.moments = self.rows.new_zeros(1, self.rows.shape[2], len(self.columns))
        self.leaving = Directions(0)

    def add_moments(self, one: LayerPass) -> None:
        _, places, turned = self._entries(one)
        self.moments[0].index_add_(1, places, turned.square().T / self.samples)

    def _turned(self) -> Tensor:
        return self.rows.transpose(1, 2) @ self.weight[:, :, self.columns]

    def scores(self, one: LayerPass) -> Tensor:
        owners, places, turned = self._entries(one)
        match, size = torch.zeros(2, one.records, dtype=turned.dtype, device=turned.device)
        match.index_add_(0, owners, (turned * self.template[0, :, places].T).sum(1))
        size.index_add_(0, owners, (turned.square() * self.gain[0, :, places].T).sum(1))
        scores: Tensor = match / size.clamp(min=1e-300).sqrt()
        return scores

    def _entries(self, one: LayerPass) -> tuple[Tensor, Tensor, Tensor]:
        """Record [m], place among the columns [m] and turned gradient [m, q] of the indices that are known."""
        owners, indices, signals = one.rows()
        places = torch.searchsorted(self.columns, indices).clamp(max=max(0, len(self.columns) - 1))
        known = self.columns[places] == indices
        return owners[known], places[known], signals[known].double() @ self.rows[0]


@dataclass(eq=False)
class IndexFit(PooledFit):
    """The fit of an embedding: records meet where they share an index."""

    owners: list[Tensor] = field(default_factory=list)
    indices: list[Tensor] = field(default_factory=list)
    records: int = 0

    def add(self, one: LayerPass) -> None:
        owners, indices, signals = one.rows()
        self.owners.append(owners + self.records)
        self.indices.append(indices)
        self.signals.append(signals.double())
        self.records += one.records

    def state(self) -> dict[str, Tensor]:
        parts = {"owners": self.owners, "indices": self.indices, "signals": self.signals}
        return {name: torch.cat(some) for name, some in parts.items()} | {"records": torch.tensor(self.records)}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        self.owners.append(state["owners"] + self.records)
        self.indices.append(state["indices"])
        self.signals.append(state["signals"])
        self.records += int(state["records"])

    def scores(self) -> Tensor:
        owners, indices, signals = (torch.cat(some) for some in (self.owners, self.indices, self.signals))
        gram = signals.new_zeros(self.records, self.records)
        order = torch.argsort(indices, stable=True)
        _, counts = torch.unique_consecutive(indices[order], return_counts=True)
        for some in torch.split(order, counts.tolist()):  # all that share an index; a record is there once
            gram[owners[some][:, None], owners[some]] += signals[some] @ signals[some].T
        products = signals.new_zeros(self.records)
        products.index_add_(0, owners, (signals * self.weight[0, :, indices].T).sum(1))
        return left_out_scores(gram, products, float(self.weight.square().sum()), self.weight.numel())


def _block_count(width: int, records: int, widest: int) -> int:
    spans_little = 2 * records <= width and records * width <= _KEPT
    return 1 if width <= widest or spans_little else math.ceil(width / widest)
