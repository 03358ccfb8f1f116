"""The KKT tests of membership: neuron boundaries, duals, and what both say about each record.

Close to a KKT point of the max-margin problem every layer is a sum over the training samples,

    theta_l = sum_i lambda_i y_i dPhi(x_i)/dtheta_l,   lambda_i >= 0,   dPhi/dtheta_l = delta_{l,i} [h_{l-1,i}; 1]ᵀ

so samples lie on the boundaries of neurons, and each has a dual. The Gram matrix of the gradients is the entrywise
product of two small ones, and the best duals solve a non-negative least-squares problem with n unknowns.

The first fully-connected layer of a network with convolutions is such a sum over its features h(x), so everything
here also holds for that part of the network (`DensePart`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from engram.attacks.engine.closed_form import Pass, parameters, run_pass
from engram.attacks.engine.convolutional import PROBES, smooth_noise
from engram.attacks.engine.self_tuning import PIXEL_STD
from engram.core.errors import ConfigError, require
from engram.core.loop import Progress, silent
from engram.members.scores import combine
from engram.models.networks import ConvNetwork, DenseNetwork, Network
from engram.models.tasks import Binary, Multiclass, Task
from engram.models.view import AttackerView
from engram.scoring.curves import CONFIDENCE, DELTA, RATES, Roc, clopper_pearson, epsilon_lower, roc

ON_BOUNDARY = 0.002
"""A sample this close to a neuron's boundary, in units of the input, is on it: training pushed it there."""


@torch.no_grad()
def boundaries(network: DenseNetwork, inputs: Tensor, *, width: float = ON_BOUNDARY) -> Tensor:
    """How many first-layer neurons have |w_k x + b_k| / ||(w_k, b_k)|| < width, [n], for inputs [n, ...].

    Neurons whose weights are all zero have no boundary and are not counted.

    >>> net = DenseNetwork((torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.ones(1, 2)), (None, None))
    >>> boundaries(net, torch.tensor([[0.001, 5.0], [1.0, 5.0]])).tolist()
    [1, 0]
    """
    network = network.to(dtype=torch.float64)
    sizes = parameters(network, 0).norm(dim=1)
    distances = torch.nn.functional.linear(inputs.flatten(1).double(), network.weights[0], network.biases[0])
    near: Tensor = (distances.abs() < width * sizes) & (sizes > 0)
    return near.sum(1)


AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class DensePart:
    """`view` sees only this part; its inputs are features if `whole` begins with convolutions.

    A point within `width` of a neuron's boundary is on it: `ON_BOUNDARY` for images, and for features
    `ON_BOUNDARY` scaled by how much larger they are than their images.
    """

    view: AttackerView
    whole: Network
    width: float = ON_BOUNDARY

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of the images, not of their features."""
        return self.whole.input_shape or self.view.input_shape

    @property
    def reads_features(self) -> bool:
        return isinstance(self.whole, ConvNetwork)

    def entering(self, images: Tensor) -> Tensor:
        """The part's inputs for centred images [n, *shape]: images [n, d] or features [n, f], in float64."""
        if not isinstance(self.whole, ConvNetwork):
            return self.whole.entering(images.double())
        network = self.whole.to(dtype=torch.float64)
        with torch.no_grad():
            chunks = [network.features(chunk.double()) for chunk in torch.split(images, AT_ONCE)]
        return torch.cat(chunks) if chunks else images.new_zeros(0, *self.view.input_shape).double()

    def boundaries(self, entering: Tensor) -> Tensor:
        """How many neurons' boundaries each row of `entering` [n, d] lies on, [n]; smooth ones have none."""
        if not self.whole.activation.has_kink:
            return torch.zeros(len(entering), dtype=torch.int64)
        return boundaries(self.view.network, entering, width=self.width)


def dense_part(view: AttackerView[Network]) -> DensePart:
    """The dense part of a view's network; an error if it has none that the engine can read."""
    if (dense := view.dense) is not None:
        bare, gain = replace(dense, network=dense.network.bare), dense.network.gain
        growth = 1.0 if gain is None else float(gain.double().square().mean().sqrt())
        return DensePart(bare, dense.network, ON_BOUNDARY * growth)
    head = view.narrowed(ConvNetwork).network.head
    part = DensePart(AttackerView(head, (head.sizes[0],), view.task), view.network)
    low, high = view.pixel_range
    probes = smooth_noise(PROBES, view.input_shape, PIXEL_STD * (high - low), seed=0)
    growth = part.entering(probes).norm(dim=1).mean() / probes.flatten(1).norm(dim=1).mean()
    return DensePart(part.view, view.network, ON_BOUNDARY * float(growth))


STEP = 1e30
"""A sigmoid this steep is ReLU's own derivative: 0 or 1, and 1/2 at exactly 0."""
SUPPORT = 1e-6
"""A support vector's dual is above this share of the largest dual."""


@dataclass(frozen=True)
class LayerGap:
    """||theta_l - sum_i lambda_i y_i dPhi(x_i)/dtheta_l|| / ||theta_l|| of one layer with its bias."""

    name: str
    gap: float
    """With the first layer's best duals."""
    own_gap: float
    """With the layer's own best duals: the smallest gap it can have."""


@dataclass(frozen=True, eq=False)
class KKT:
    """Duals [n] that explain the first layer best, and what they leave unexplained in every layer."""

    duals: Tensor
    layers: tuple[LayerGap, ...]
    margin: float | None
    """||[W_1 b_1]||² / sum_i lambda_i, which is the margin at a KKT point; None if no dual is positive."""

    @property
    def support(self) -> Tensor:
        """Which samples are support vectors, [n] bool."""
        return self.duals > SUPPORT * self.duals.max()


@torch.no_grad()
def kkt(network: DenseNetwork, task: Task, inputs: Tensor, labels: Tensor, *, progress: Progress = silent) -> KKT:
    """The gap of every layer at centred samples [n, ...] with labels [n], in float64 and with exact gates."""
    if not isinstance(task, Binary):
        raise ConfigError(
            f"the KKT gap is defined for binary tasks only, got a {task.name} task; leave the data out"
        )
    network = network.to(dtype=torch.float64)
    signs = task.signs(labels, torch.float64)
    done = run_pass(network, inputs.flatten(1).double(), lambda _: signs[:, None], STEP)
    names = [f"layers.{index}" for index in range(len(network.weights))]
    duals, gaps = torch.zeros(0), []
    for index, name in enumerate(names):
        progress(f"examining: KKT gap of {name}", index / len(names))
        own = best_duals(network, done, index)
        duals = own if index == 0 else duals
        gaps.append(LayerGap(name, *(gap(network, done, chosen, index) for chosen in (duals, own))))
    total, energy = float(duals.sum()), float(parameters(network, 0).square().sum())
    return KKT(duals, tuple(gaps), energy / total if total > 0 else None)


def best_duals(network: DenseNetwork, done: Pass, layer: int) -> Tensor:
    """argmin over lambda >= 0 of ||theta_l - sum_i lambda_i y_i delta_i [h_i; 1]ᵀ||, [n].

    Gram_ij = (delta_i . delta_j) ([h_i; 1] . [h_j; 1]) and product_i = delta_iᵀ theta_l [h_i; 1], y_i in delta_i.
    """
    signals, entering = done.signals[layer], done.entering[layer]
    gram = (signals @ signals.T) * (entering @ entering.T)
    products = ((signals @ parameters(network, layer)) * entering).sum(1)
    return nonnegative_minimum(gram, products)


def gap(network: DenseNetwork, done: Pass, duals: Tensor, layer: int) -> float:
    """||theta_l - sum_i lambda_i delta_i [h_i; 1]ᵀ|| / ||theta_l||; a layer of zeros has no gap."""
    weights = parameters(network, layer)
    explained = (done.signals[layer] * duals[:, None]).T @ done.entering[layer]
    residual, size = (weights - explained).norm(), weights.norm()
    return float(residual / size) if float(size) > 0 else 0.0


def nonnegative_minimum(gram: Tensor, products: Tensor) -> Tensor:
    """argmin over x >= 0 of xᵀ G x / 2 - pᵀ x, for G [n, n] positive semidefinite and p in its range, [n].

    With G = Rᵀ R this is ||R x - R⁻ᵀ p||² up to a constant, which scipy solves with an active-set method.

    >>> nonnegative_minimum(torch.eye(2).double(), torch.tensor([2.0, -1.0]).double()).tolist()
    [2.0, 0.0]
    """
    from scipy.optimize import nnls

    values, vectors = torch.linalg.eigh(gram)
    kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1]
    if not bool(kept.any()):
        return torch.zeros_like(products)
    roots = values[kept].sqrt()
    factor, aim = roots[:, None] * vectors[:, kept].T, (vectors[:, kept].T @ products) / roots
    # scipy's tolerance is absolute, so scale both sides to one
    size, length = float(roots[-1]), float(aim.norm().clamp(min=torch.finfo(aim.dtype).tiny))
    solved, _ = nnls((factor / size).numpy(), (aim / length).numpy(), maxiter=100 * len(products))
    return torch.from_numpy(solved) * (length / size)


MOST_RECORDS = 4000
"""Most records that the dual test accepts, held-out ones included; its matrix is their number squared."""


@dataclass(frozen=True, eq=False)
class MembershipTest:
    """One way of scoring records, [n] and [k]; a higher score means a likelier member."""

    name: str
    train: Tensor
    held_out: Tensor
    roc: Roc


@dataclass(frozen=True, eq=False)
class Membership:
    """All tests by name: boundaries (if there are any), dual (if the task has one), layers, combined, loss."""

    tests: tuple[MembershipTest, ...]
    note: str | None

    def __getitem__(self, name: str) -> MembershipTest:
        return next(test for test in self.tests if test.name == name)

    @cached_property
    def epsilon_lower(self) -> float:
        """By the combined test."""
        return epsilon_lower(self["combined"].train, self["combined"].held_out)

    def to_json(self) -> dict[str, Any]:
        combined, n = self["combined"], len(self["combined"].train)
        bounds = {f"{rate:g}": asdict(clopper_pearson(round(combined.roc.at(rate) * n), n)) for rate in RATES}
        return {
            "tests": {test.name: test.roc.to_json() for test in self.tests},
            "note": self.note,
            "tpr_bounds": bounds,
            "epsilon_lower": self.epsilon_lower,
            "delta": DELTA,
            "confidence": CONFIDENCE,
        }


@torch.no_grad()
def membership_tests(
    view: AttackerView,
    train: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    layers: Sequence[Tensor],
    *,
    right: Tensor | None = None,
    width: float = ON_BOUNDARY,
) -> Membership:
    """Score centred records ([n, *shape], labels [n]) and held-out ones ([k, *shape], [k]).

    `layers` are the scores [n + k] of matched filter and pooled fit at every layer of the whole network; `right`
    [n + k] says about which records it is right.

    boundaries  how many first-layer neurons have |w x + b| / ||(w, b)|| < width: training pushes samples there;
                not for smooth activations, which have no boundary
    dual        the record's lambda_i >= 0 in the best fit of the first layer by all records, held-out too
    layers      matched filter and pooled fit at every layer and whether the network is right, as a mixture
    span        if the start of training is known: how little of the record lies outside the span of its update
    combined    layers and boundaries, combined in the same way; the span alone, where there is one: it is exact
    loss        minus the record's loss: what an attacker without the weights would threshold
    """
    for name, one in (("train", train), ("held_out", held_out)):
        require(len(one[0]) > 0, name, "must contain records", 0, "give at least one, better a hundred")
    inputs = torch.cat([train[0], held_out[0]]).flatten(1).double()
    labels = torch.cat([train[1], held_out[1]])
    scores: dict[str, Tensor] = {}
    if view.network.activation.has_kink:
        scores["boundaries"] = boundaries(view.network, inputs, width=width).double()
    note = _why_no_dual(view, len(inputs))
    if note is None:
        scores["dual"] = _pooled_duals(view, inputs, labels)
    own = torch.stack([score.double() for score in layers], 1)
    scores["layers"] = scores["combined"] = combine(own, right=right).scores
    if "boundaries" in scores:
        # not the dual, which says what the pooled fit of the first layer says: two like scores blur the mixture
        scores["combined"] = with_boundaries(own, scores["boundaries"], right)
    if view.update is not None:
        scores["span"] = scores["combined"] = -view.update.outside(inputs).clamp(min=1e-12).log()
    scores["loss"] = -_losses(view, inputs, labels)
    n = len(train[0])
    tests = [MembershipTest(name, all_[:n], all_[n:], roc(all_[:n], all_[n:])) for name, all_ in scores.items()]
    return Membership(tuple(tests), note)


BY_CHANCE = 0.265
"""The variance of log(1 + count) where chance alone puts records on boundaries: a Poisson variable has at most so
much, at a rate of 1.6."""


def with_boundaries(layers: Tensor, counts: Tensor, right: Tensor | None = None) -> Tensor:
    """One score [n] from the layers' scores [n, k], the boundary counts [n] and what `combine` takes beside them.

    Counts that vary no more than chance lets them are left out: those who share one of few values would be a
    component of the mixture without any spread, and the mixture would follow it.

    >>> drawn = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> drawn[:100] += 2
    >>> by_chance = torch.arange(200) % 2
    >>> bool((with_boundaries(drawn, by_chance) == combine(drawn).scores).all())
    True
    """
    spoken = counts.double().log1p()[:, None]
    if spoken.var() <= BY_CHANCE:
        return combine(layers, right=right).scores
    centred = torch.arange(layers.shape[1] + 1) < layers.shape[1]
    return combine(torch.cat([layers, spoken], 1), centred, right).scores


def _why_no_dual(view: AttackerView, records: int) -> str | None:
    if not isinstance(view.task, Binary | Multiclass):
        return f"a {view.task.name} task has no dual of one sign per record: the dual test is left out"
    if len(view.network.weights) < 2:
        return "without a hidden layer all gradients are alike: the dual test is left out"
    if records > MOST_RECORDS:
        return f"the dual test takes at most {MOST_RECORDS:,} records in all, got {records:,}: it is left out"
    return None


def _pooled_duals(view: AttackerView, inputs: Tensor, labels: Tensor) -> Tensor:
    """Duals of training and held-out records in one fit, so that both have the same chance of a large one."""
    network = view.network.to(dtype=torch.float64)
    ones = torch.ones(len(inputs), dtype=torch.float64)
    done = run_pass(network, inputs, lambda logits: view.task.sides(labels, ones, logits), STEP)
    return best_duals(network, done, 0)


def _losses(view: AttackerView, inputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of every record, [n]."""
    logits = view.network.to(dtype=torch.float64)(inputs)
    each = [view.task.loss(logits[i : i + 1], labels[i : i + 1]) for i in range(len(inputs))]
    return torch.stack(each)
