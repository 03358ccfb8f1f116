"""Stationarity of a network and its gradients by matrix products alone; no autograd graph.

For candidates z_i whose stationarity sums c_ij grad Phi_j(z_i) over the outputs j (binary: c_i = lambda_i y_i),
layer l's residual is

    R_l = [W_l b_l] - sum_i delta_{l,i} [h_{l-1,i}; 1]ᵀ

with h_0 = z, h_l = phi(a_l), a_l = W_l h_{l-1} + b_l, delta_L = c_i and delta_l = g_l * (W_{l+1}ᵀ delta_{l+1}),
g_l = phi'(a_l). A bias is the coordinate of a constant 1; without a bias that column is omitted. As in the papers,
ReLU's derivative is sigmoid(slope a_l) wherever it appears.

The metric says how far each neuron's equation can be trusted in each direction. A training sample leaves
lambda_i delta_{k,i} x_i in neuron k only to within about 30 % (gates and signals changed while it was learnt), so
neuron k's residual has covariance proportional to

    C_k = sum_{i active on k} lambda_i² [x_i; 1][x_i; 1]ᵀ

and its squared residual is weighted by (C_k / largest eigenvalue + ridge)⁻¹ / ||row_k||². One matrix per neuron is
[h, k, k]; if that is too much, neurons that are active on the same candidates share theirs (`Groups`). Two neurons
have the same covariance if they weight the candidates alike, so the neurons are split in two along the principal
axis of their weights on the candidates, then each half again, until there are enough groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from engram.models.activations import RELU
from engram.models.networks import DenseNetwork


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward and backward pass for candidates [m, r]; lists run over the layers 1..L."""

    entering: list[Tensor]
    """The input of layer l: h_{l-1}, with a column of ones if the layer has a bias."""
    gates: list[Tensor]
    """g_l of the hidden layers."""
    arriving: list[Tensor]
    """W_{l+1}ᵀ delta_{l+1}: the signal that arrives above the hidden layer l."""
    signals: list[Tensor]
    """delta_l, including the coefficients."""
    outputs: Tensor
    """Phi(x_i), [m, C]."""
    before: list[Tensor] = field(default_factory=list)
    """a_l of the hidden layers, where phi'' needs it: nowhere if phi has a kink."""


def run_pass(
    network: DenseNetwork, inputs: Tensor, coefficients: Callable[[Tensor], Tensor], slope: float
) -> Pass:
    """All activations, gates and backpropagated signals for inputs [m, r].

    `coefficients` maps the outputs Phi to c, both [m, C]: the choice of outputs may depend on them.
    """
    entering, gates, before = [], [], []
    hidden, phi = inputs, network.activation
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        entering.append(with_constant(hidden, bias))
        pre = torch.nn.functional.linear(hidden, weight, bias)
        if layer < len(network.weights) - 1:
            gates.append(phi.gate(pre, slope))
            before += [] if phi.has_kink else [pre]
            hidden = phi(pre)
    return Pass(entering, gates, *send_down(network, gates, coefficients(pre)), pre, before)


def send_down(
    network: DenseNetwork, gates: list[Tensor], coefficients: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """`Pass.arriving` and `Pass.signals` for coefficients [m, C] at the outputs."""
    signals = [coefficients]
    arriving: list[Tensor] = []
    for gate, weight in zip(reversed(gates), reversed(network.weights[1:]), strict=True):
        arriving.insert(0, signals[0] @ weight)
        signals.insert(0, gate * arriving[0])
    return arriving, signals


def with_constant(hidden: Tensor, bias: Tensor | None) -> Tensor:
    """[h; 1] if the layer has a bias, else h."""
    return hidden if bias is None else torch.cat([hidden, hidden.new_ones(len(hidden), 1)], 1)


def first_gates(network: DenseNetwork, inputs: Tensor, slope: float) -> Tensor:
    """Only g_1, [m, h], which needs none of the layers above."""
    pre = torch.nn.functional.linear(inputs, network.weights[0], network.biases[0])
    return pre.mul_(slope).sigmoid_() if network.activation == RELU else network.activation.gate(pre, slope)


def explained(done: Pass, layer: int) -> Tensor:
    """sum_i delta_{l,i} [h_{l-1,i}; 1]ᵀ for layer 0, 1, ..., [out, in (+1)]."""
    return done.signals[layer].T @ done.entering[layer]


def parameters(network: DenseNetwork, layer: int) -> Tensor:
    """[W_l b_l], or W_l if there is no bias."""
    weight, bias = network.weights[layer], network.biases[layer]
    return weight if bias is None else torch.cat([weight, bias[:, None]], 1)


def pull_back(
    network: DenseNetwork,
    done: Pass,
    slope: float,
    by_residual: Mapping[int, Tensor],
    by_output: Tensor | None = None,
    deviations: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of a loss F(R_0, R_1, ...; Phi) with respect to inputs [m, r] and coefficients [m, C].

    `by_residual` is dF/dR_l for the layers that F depends on, `by_output` is dF/dPhi [m, C]. `deviations` maps
    dF/d delta_1 to the share by which delta_1 differs from the model's (`Metric.deviations`); inputs see the
    signals with it, the layers above and the coefficients without.
    """
    layers = range(len(network.weights))
    # Up: how F depends on the signals delta_1, delta_2, ..., c, and through them on the gates.
    by_gate: list[Tensor] = []
    rising: Tensor | None = None
    sent = done.signals[0]
    for layer in layers:
        direct = -(done.entering[layer] @ by_residual[layer].T) if layer in by_residual else None
        by_signal = _added(rising, direct)
        if layer == layers[-1]:
            break
        if by_signal is None:
            by_gate.append(torch.zeros_like(done.gates[layer]))
            continue
        by_gate.append(by_signal * done.arriving[layer])
        if layer == 0 and deviations is not None:
            actual = 1 + deviations(by_signal)
            sent, by_gate[0] = actual * sent, actual * by_gate[0]
        rising = (by_signal * done.gates[layer]) @ network.weights[layer + 1].T
    by_coefficients = torch.zeros_like(done.signals[-1]) if by_signal is None else by_signal
    # Down: how F depends on the pre-activations, and through them on the inputs.
    falling = by_output
    for layer in reversed(layers):
        by_entering = None if falling is None else falling @ network.weights[layer]
        if layer in by_residual:
            direct = -((done.signals[layer] if layer else sent) @ by_residual[layer])
            by_entering = _added(by_entering, direct[:, : network.weights[layer].shape[1]])
        if layer > 0:
            gate = done.gates[layer - 1]
            before = done.before[layer - 1] if done.before else gate
            bend = by_gate[layer - 1] * network.activation.bend(before, gate, slope)
            falling = _added(bend, None if by_entering is None else by_entering * gate)
    assert by_entering is not None, "the loss depends on no layer and no output"
    return by_entering, by_coefficients


def _added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


ARRAYS = 12
"""Values per neuron and candidate that a pass and its `pull_back` need at the same time."""


def chunks(count: int, each: int, room: int) -> list[slice]:
    """0, ..., count - 1 in as few equal chunks as fit into `room` bytes at `each` bytes per item.

    >>> chunks(10, 8, 40), chunks(3, 8, 1)
    ([slice(0, 5, None), slice(5, 10, None)], [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None)])
    """
    size = max(1, room // each)
    parts = -(-count // size)
    return [slice(part * count // parts, (part + 1) * count // parts) for part in range(parts)]


@dataclass(frozen=True, eq=False)
class Passes:
    """The first layer predicted by all candidates [h, k], their outputs [m, C], and how to get gradients."""

    run: Callable[[slice], Pass]
    parts: Sequence[slice]
    explained: Tensor
    outputs: Tensor
    kept: Pass | None
    """The pass itself, if there is only one chunk."""

    @classmethod
    def over(cls, run: Callable[[slice], Pass], parts: Sequence[slice]) -> Passes:
        done = run(parts[0])
        total, outputs = explained(done, 0), [done.outputs]
        kept = done if len(parts) == 1 else None
        for part in parts[1:]:
            del done  # free its memory before the next pass
            done = run(part)
            total += explained(done, 0)
            outputs.append(done.outputs)
        return cls(run, parts, total, torch.cat(outputs), kept)

    def pull_back(
        self,
        network: DenseNetwork,
        slope: float,
        by_residual: Mapping[int, Tensor],
        by_output: Tensor,
        deviations: Callable[[Pass, slice, Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Gradients with respect to inputs [m, r] and coefficients [m, C], as in the function `pull_back`."""

        def pulled(part: slice) -> tuple[Tensor, Tensor]:  # frees its pass before the next one
            done = self.run(part) if self.kept is None else self.kept
            deviate = None if deviations is None else partial(deviations, done, part)
            return pull_back(network, done, slope, by_residual, by_output[part], deviate)

        by_inputs, by_coefficients = zip(*map(pulled, self.parts), strict=True)
        return torch.cat(by_inputs), torch.cat(by_coefficients)


SKETCH = 64
"""Directions onto which the weights on the candidates are projected before neurons are compared."""
AXIS_STEPS = 10


@dataclass(frozen=True, eq=False)
class Groups:
    """G groups of h neurons: `members` [G, s], shorter groups padded with their last neuron, and `places` [h], the
    index of each neuron in members.flatten()."""

    members: Tensor
    places: Tensor

    @classmethod
    def along(cls, order: Tensor, count: int) -> Groups:
        """`order` [h] split into `count` runs whose lengths differ by at most one.

        >>> Groups.along(torch.tensor([4, 0, 3, 1, 2]), 2).members
        tensor([[4, 0, 0],
                [3, 1, 2]])
        """
        bounds = _bounds(len(order), count).to(order.device)
        size = -(-len(order) // count)
        slots = torch.arange(size, device=order.device)
        members = order[torch.minimum(bounds[:-1, None] + slots, bounds[1:, None] - 1)]
        position = torch.arange(len(order), device=order.device)
        group = torch.searchsorted(bounds, position, right=True) - 1
        places = torch.empty_like(order)
        places[order] = group * size + position - bounds[group]
        return cls(members, places)

    @classmethod
    def alike(cls, weights: Tensor, count: int) -> Groups:
        """Neurons with similar weights on the candidates, columns of [m, h]; one per group if count is h."""
        if count >= weights.shape[1]:
            return cls.along(torch.arange(weights.shape[1], device=weights.device), weights.shape[1])
        return cls.along(bisected(_sketch(weights), count), count)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def of_neurons(self) -> Tensor:
        """The group of each neuron, [h]."""
        return self.places // self.members.shape[1]

    @property
    def sizes(self) -> Tensor:
        """Neurons of each group, [G]."""
        return torch.bincount(self.of_neurons, minlength=len(self))

    def summed(self, weights: Tensor) -> Tensor:
        """Sums over the neurons of each group, [m, h] -> [m, G]."""
        return weights.new_zeros(len(weights), len(self)).index_add_(1, self.of_neurons, weights)

    def apply(self, matrices: Tensor, rows: Tensor) -> Tensor:
        """Each neuron's row times the symmetric matrix of its group: [G, k, k], [h, k] -> [h, k]."""
        return torch.bmm(rows[self.members], matrices).flatten(0, 1)[self.places]


def bisected(points: Tensor, count: int) -> Tensor:
    """An order of points [h, f] in which each of `count` equal runs contains points close to each other.

    >>> bisected(torch.tensor([[5.0], [-1.0], [6.0], [0.0]]), 2).tolist() in ([1, 3, 0, 2], [0, 2, 1, 3])
    True
    """
    bounds = _bounds(len(points), count).tolist()
    order = torch.arange(len(points), device=points.device)
    open_parts = [(0, count)]
    while open_parts:
        first, last = open_parts.pop()
        if last - first == 1:
            continue
        middle = (first + last) // 2
        part = order[bounds[first] : bounds[last]]
        order[bounds[first] : bounds[last]] = part[_along_principal_axis(points[part]).argsort(stable=True)]
        open_parts += [(first, middle), (middle, last)]
    return order


def _along_principal_axis(points: Tensor) -> Tensor:
    """Coordinates along the direction of largest spread, by power iteration; [h, f] -> [h]."""
    centred = points - points.mean(0)
    coordinates = centred[:, centred.square().sum(0).argmax()]
    for _ in range(AXIS_STEPS):
        axis = centred.T @ coordinates
        coordinates = centred @ (axis / axis.norm().clamp(min=torch.finfo(points.dtype).tiny))
    return coordinates


def _sketch(weights: Tensor) -> Tensor:
    """Random projections of the columns of [m, h], which preserve distances well enough, [h, SKETCH]."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(len(weights), SKETCH, generator=generator, dtype=torch.float64)
    return weights.T @ directions.to(weights)


def _bounds(length: int, count: int) -> Tensor:
    """Where equal runs begin and end, [count + 1]."""
    return torch.arange(count + 1) * length // count


POWER_STEPS = 15
MOST_AT_ONCE = 250


class Inverses(NamedTuple):
    """Inverse covariances [G, k, k] in units of their largest eigenvalues [G]."""

    matrices: Tensor
    largest: Tensor


@dataclass(frozen=True, eq=False)
class Metric:
    """M_k = scale_k A_g for the neurons k of group g: A [G, k, k], scale [h]; its products with the weights, M w
    [h, k] and wᵀ M w [h]; and the largest eigenvalue of C_k [h], as a mean over the group."""

    matrices: Tensor
    groups: Groups
    scale: Tensor
    pulled: Tensor
    energies: Tensor
    largest: Tensor

    @classmethod
    def of(cls, inverses: Inverses, groups: Groups, scale: Tensor, weights: Tensor) -> Metric:
        """Scaled so that the weights [h, k] have a total energy of 1; the inverses are of the groups' sums."""
        pulled = scale[:, None] * groups.apply(inverses.matrices, weights)
        energies = (pulled * weights).sum(1)
        total = energies.sum()
        largest = (inverses.largest / groups.sizes)[groups.of_neurons]
        return cls(inverses.matrices, groups, scale / total, pulled / total, energies / total, largest)

    def __call__(self, rows: Tensor) -> Tensor:
        """M_k r_k for rows [h, k]."""
        return self.scale[:, None] * self.groups.apply(self.matrices, rows)

    def deviations(self, by_signal: Tensor, arriving: Tensor, variances: Tensor) -> Tensor:
        """By what share each signal delta_ik seems to differ from the model's, [m, h], at most all of it.

        The metric is that of signals that differ at random, and given the residual r_k of a neuron the most
        probable difference is

            v_ik x_iᵀ C_k⁻¹ r_k,    v_ik the share of sample i in C_k = sum_i v_ik x_i x_iᵀ

        With it, the gradient in x_i is that of r_kᵀ C_k⁻¹ r_k with C_k moving as x_i does. `by_signal` is
        dF/d delta = -2 x_iᵀ M_k r_k, `arriving` and `variances` [m, h] are delta and v without the gate.
        """
        shares = (by_signal / arriving).mul_(variances).div_(-2 * self.scale * self.largest)
        return shares.nan_to_num_(nan=0.0).clamp_(-1, 1)  # no signal, no difference


def inverse_covariances(entering: Tensor, weights: Tensor, ridge: float, *, room: int) -> Inverses:
    """(C_g / largest eigenvalue + ridge)⁻¹, C_g = sum_i weights_ig x_i x_iᵀ, for entering [m, k].

    Besides the result, about `room` bytes are used. Positive definite, hence Cholesky: batched LU fails in some
    BLAS libraries at this size.
    """
    count, k = weights.shape[1], entering.shape[1]
    matrix = k * k * entering.element_size()
    chunk = max(1, min(MOST_AT_ONCE, room // (6 * matrix)))
    result, largest = entering.new_empty(count, k, k), entering.new_empty(count)
    for start in range(0, count, chunk):
        part = result[start : start + chunk]
        _covariances(entering, weights[:, start : start + chunk], part, room // 2)
        top = largest[start : start + chunk].copy_(_largest_eigenvalue(part))
        part /= top[:, None, None]
        part.diagonal(dim1=1, dim2=2).add_(ridge)
        part.copy_(torch.cholesky_inverse(torch.linalg.cholesky(part)))
    return Inverses(result, largest)


def _covariances(entering: Tensor, weights: Tensor, result: Tensor, room: int) -> None:
    """sum_i weights_ig x_i x_iᵀ into result [G, k, k], a few rows of all matrices at a time.

    Outer products of the rows [m, rows k] make it one product of large matrices.
    """
    m, k = entering.shape
    rows = max(1, min(k, room // (m * k * entering.element_size())))
    for start in range(0, k, rows):
        outer = entering[:, start : start + rows, None] * entering[:, None, :]
        result[:, start : start + rows] = (weights.T @ outer.flatten(1)).view(len(result), -1, k)


def _largest_eigenvalue(matrices: Tensor) -> Tensor:
    """By power iteration, [b, k, k] -> [b]; a rough value is enough for a scale. Zero matrices give 1."""
    vector = matrices.new_ones(matrices.shape[0], 1, matrices.shape[1])  # as a row: twice as fast in batches
    for _ in range(POWER_STEPS):
        vector = vector @ matrices
        vector = vector / vector.norm(dim=2, keepdim=True).clamp(min=torch.finfo(matrices.dtype).tiny)
    value = (vector @ matrices @ vector.transpose(1, 2)).flatten()
    return torch.where(value > 0, value, torch.ones_like(value))
