"""Slow, obvious reference code in plain Python and numpy; it shares nothing with the code under test."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


def smoothed_gradients(
    weights: list[Array], biases: list[Array | None], x: Array, slope: float, row: list[float]
) -> tuple[list[Array], list[Array | None]]:
    """The gradient of sum_k row_k Phi_k(x) of a ReLU network with respect to weights and biases, by hand.

    Forward with exact ReLU; backward every ReLU passes sigmoid(slope z).
    """
    pre, post = [], [x]
    for weight, bias in zip(weights, biases, strict=True):
        z = np.array([sum(w * h for w, h in zip(row, post[-1], strict=True)) for row in weight])
        z = z if bias is None else z + bias
        pre.append(z)
        post.append(np.array([max(value, 0.0) for value in z]))
    signal = np.array(row)
    weight_gradients: list[Array] = []
    bias_gradients: list[Array | None] = []
    for layer in reversed(range(len(weights))):
        weight_gradients.insert(0, np.outer(signal, post[layer]))
        bias_gradients.insert(0, None if biases[layer] is None else signal.copy())
        if layer:
            gates = np.array([sigmoid(slope * z) for z in pre[layer - 1]])
            signal = (weights[layer].T @ signal) * gates
    return weight_gradients, bias_gradients


@dataclass(frozen=True)
class Jet:
    """A number with its derivative along one direction; ReLU's derivative is that of the papers."""

    value: float
    slope: float = 0.0

    def __add__(self, other: Jet) -> Jet:
        return Jet(self.value + other.value, self.slope + other.slope)

    def __mul__(self, other: Jet) -> Jet:
        return Jet(self.value * other.value, self.slope * other.value + self.value * other.slope)

    def relu(self, alpha: float) -> Jet:
        return Jet(max(self.value, 0.0), self.slope * sigmoid(alpha * self.value))

    def gate(self, alpha: float) -> Jet:
        gate = sigmoid(alpha * self.value)
        return Jet(gate, self.slope * alpha * gate * (1 - gate))


def _total(terms: Iterable[Jet]) -> Jet:
    result = Jet(0.0)
    for term in terms:
        result = result + term
    return result


def stationarity_derivative(
    weights: list[Array],
    biases: list[Array | None],
    points: Array,
    rows: list[list[float]],
    alpha: float,
    moved: tuple[int, int],
) -> Jet:
    """L_stationary and its derivative in coordinate `moved` = (sample, pixel); rows[i] weights i's outputs."""
    m = len(points)
    left_weights = [[[Jet(value) for value in row] for row in weight] for weight in weights]
    left_biases = [None if bias is None else [Jet(value) for value in bias] for bias in biases]
    for i in range(m):
        post = [[Jet(v, 1.0 if (i, j) == moved else 0.0) for j, v in enumerate(points[i])]]
        pre: list[list[Jet]] = []
        for weight, bias in zip(weights, biases, strict=True):
            z = [_total(Jet(w) * h for w, h in zip(row, post[-1], strict=True)) for row in weight]
            z = z if bias is None else [value + Jet(b) for value, b in zip(z, bias, strict=True)]
            pre.append(z)
            post.append([value.relu(alpha) for value in z])
        signal = [Jet(value / m) for value in rows[i]]
        for layer in reversed(range(len(weights))):
            for k, delta in enumerate(signal):
                for j, h in enumerate(post[layer]):
                    left_weights[layer][k][j] = left_weights[layer][k][j] + Jet(-1.0) * delta * h
                left_bias = left_biases[layer]
                if left_bias is not None:
                    left_bias[k] = left_bias[k] + Jet(-1.0) * delta
            if layer:
                signal = [
                    _total(Jet(weights[layer][k][j]) * delta for k, delta in enumerate(signal))
                    * pre[layer - 1][j].gate(alpha)
                    for j in range(weights[layer].shape[1])
                ]
    flat = [value for weight in left_weights for row in weight for value in row]
    flat += [value for bias in left_biases if bias is not None for value in bias]
    return _total(value * value for value in flat)
