"""What happens to pixels before a network sees them, and whether it was guessed right.

A normalisation that is given is used. Otherwise the mean is chosen by how well the model does on all records, and
the usual normalisations are tried to see whether one fits better. Accuracy says little: a network that has learnt
its records by heart gets them right at almost any scale. Two things say more:

- The weights of fully-connected layers are a sum over the records' gradients. The evidence for that, beside noise,
is largest with the right inputs (`weight_evidence`).
- Training pushes all records to about the same margin, so the spread of the training margins, relative to their
  mean, is smallest. This decides where the network has convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from engram.attacks.engine.closed_form import parameters, run_pass
from engram.auditing.comparison import LEARNT
from engram.core.errors import ConfigError, require
from engram.data.sets import ImageSet
from engram.members.kkt import STEP
from engram.members.layers import as_fed
from engram.members.matched_filter import RIDGES
from engram.members.membership import margin_of
from engram.models.activations import activation_named
from engram.models.networks import DenseNetwork, Network
from engram.models.open.modules import as_module
from engram.models.tasks import Task
from engram.models.view import NORMALIZATIONS, AttackerView, Normalization

AT_ONCE = 500
WAYS = ("auto", "train", "zero")
BETTER_INPUTS = 1.1
"""Another preprocessing is likelier if the weights have this many times the evidence with it ..."""
LEAST_EVIDENCE = 1000.0
"""Evidence below this, in nats, says nothing: training has hardly moved the weights."""
BETTER_SPREAD = 0.87
"""... or, with convolutions, if the training margins spread less than this share of what they do now."""
BETTER_ACCURACY = 0.02
"""Or if it gets this share more of the training records right."""
BETTER_EVIDENCE = 1.6
"""The weights do not fit ReLU if another activation has this many times its evidence (`weight_evidence`). Smooth
gates explain the weights of ReLU networks up to 1.5 times as well; those of GELU networks 1.7 times and more."""
OTHERS = ("gelu", "silu", "elu", "tanh", "sigmoid", "leaky:0.2")
FEWEST, MOST_RECORDS = 20, 500
ALIKE = 0.05
"""Means with which the model gets this share more of all records right need no further evidence."""


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """Inputs are (images - mean) * gain: the mean [*shape] that was chosen, by name, and the gain [*shape] or
    None.

    The gain is None where the model itself applies it.
    """

    mean: Tensor
    name: str
    accuracy: float
    """The share of training records that the model then classifies as labelled."""
    gain: Tensor | None = None
    likelier: str | None = None
    """A normalisation, as --normalize takes it, that fits the training records better."""

    def __call__(self, images: Tensor) -> Tensor:
        centred = images - self.mean
        return centred if self.gain is None else centred * self.gain

    @property
    def described(self) -> str:
        """What was done, in words."""
        words = {"train": "the training mean is subtracted", "zero": "nothing is subtracted"}
        return words.get(self.name, f"normalised: {self.name}")

    @property
    def doubt(self) -> str | None:
        """What is wrong with it and what to do, if something is."""
        if self.likelier is None:
            return None
        return (
            f"the training records fit the model better if their pixels are normalised ({self.likelier}) than now "
            f"({self.described}), and with the wrong preprocessing an audit finds too little. Give the "
            f"normalisation of your training script with --normalize, for example --normalize {self.likelier}"
        )


@torch.no_grad()
def chosen_preprocessing(
    model: nn.Module,
    task: Task,
    train: ImageSet,
    held_out: ImageSet | None,
    way: str = "auto",
    normalization: Normalization | None = None,
    *,
    view: AttackerView[Network] | None = None,
) -> Preprocessing:
    """The normalisation that is given; else the mean asked for, or the one with which the model does better.

    Held-out records count as much as training records, so that the choice can't favour either. `view` is what a
    file said about the model, if the model was made from it: then it applies the scale of the normalisation
    itself.
    """
    require(way in WAYS, "--mean", f"must be one of {', '.join(WAYS)}", way)
    if normalization is not None:
        if way != "auto":
            raise ConfigError("--mean does nothing with --normalize, which includes a mean; leave it out")
        bare = None if view is None else replace(view, network=replace(view.network, gain=None))
        plain = model if bare is None else as_module(bare.network)
        given = _with_accuracy(_normalized(normalization, train.shape, normalization.text), plain, task, train)
        found = _judged(given, plain, task, train, bare)
        return found if view is None else replace(found, gain=None)
    means = {"train": train.images.mean(0), "zero": torch.zeros(train.shape)}
    names = [way] if way in means else list(means)
    tried = {name: Preprocessing(means[name], name, 0.0) for name in names}
    if len(tried) > 1:
        sets = [one for one in (train, held_out) if one is not None and len(one)]
        dense = _sums(view)
        rank = {name: _rank(one, model, task, sets, dense) for name, one in tried.items()}
        right = max(accuracy for _, accuracy, _ in rank.values())
        rank = {name: one for name, one in rank.items() if one[1] > right - ALIKE}
        best = max(rank, key=lambda name: rank[name])
        tried = {best: tried[best]}
    chosen = next(iter(tried.values()))
    return judged_mean(model, task, train, chosen.mean, chosen.name, view=view)


@torch.no_grad()
def judged_mean(
    model: nn.Module,
    task: Task,
    train: ImageSet,
    mean: Tensor,
    name: str = "a mean of your own",
    *,
    view: AttackerView[Network] | None = None,
) -> Preprocessing:
    """A mean [*shape] as it was chosen, with what the training records say about it."""
    return _judged(_with_accuracy(Preprocessing(mean, name, 0.0), model, task, train), model, task, train, view)


def _judged(
    chosen: Preprocessing, model: nn.Module, task: Task, train: ImageSet, view: AttackerView[Network] | None
) -> Preprocessing:
    """With what fits the training records better, if something does; model and view take what `chosen` gives."""
    if len(train.shape) != 3 or len(train) < FEWEST:
        return chosen
    usual = {text: _with_accuracy(how, model, task, train) for text, how in _usual(train)}
    usual = {text: how for text, how in usual.items() if how.accuracy >= max(LEARNT, chosen.accuracy)}
    if not usual:  # the model was not trained on these records: nothing fits them
        return chosen
    dense = _sums(view)
    if dense is None:
        return replace(chosen, likelier=_by_spread(chosen, usual, model, task, train))
    some = train.first(min(len(train), MOST_RECORDS))
    found = {text: _evidence(dense.network, task, how, some) for text, how in usual.items()}
    best = max(found, key=lambda text: found[text])
    now = max(_evidence(dense.network, task, chosen, some), LEAST_EVIDENCE)
    is_better = found[best] > BETTER_INPUTS * now
    return replace(chosen, likelier=best if is_better else None)


def _sums(view: AttackerView[Network] | None) -> AttackerView | None:
    """The view as fully-connected layers that are sums over the samples; None if they are not."""
    return None if view is None or view.is_folded else view.dense


def _evidence(network: DenseNetwork, task: Task, how: Preprocessing, records: ImageSet) -> float:
    entering = network.entering(how(records.images).double())
    return weight_evidence(network.bare, task, entering, records.labels)


def _rank(
    how: Preprocessing, model: nn.Module, task: Task, sets: list[ImageSet], dense: AttackerView | None
) -> tuple[float, float, float]:
    """The evidence, where there is enough to say anything; the mean accuracy of the sets; minus the loss."""
    outputs = [_outputs(model, one.images, how) for one in sets]
    right = [task.correct(some, one.labels).double().mean() for some, one in zip(outputs, sets, strict=True)]
    loss = [task.loss(some, one.labels) for some, one in zip(outputs, sets, strict=True)]
    says = 0.0
    if dense is not None:
        says = sum(_evidence(dense.network, task, how, one.first(min(len(one), MOST_RECORDS))) for one in sets)
    enough = says if says > LEAST_EVIDENCE else 0.0
    return enough, float(torch.stack(right).mean()), -float(torch.stack(loss).mean())


def _with_accuracy(how: Preprocessing, model: nn.Module, task: Task, train: ImageSet) -> Preprocessing:
    right = task.correct(_outputs(model, train.images, how), train.labels).double().mean()
    return Preprocessing(how.mean, how.name, float(right), how.gain)


def _normalized(known: Normalization, shape: tuple[int, ...], name: str) -> Preprocessing:
    return Preprocessing(known.mean_of(shape), name, 0.0, known.gain_of(shape).view(shape))


def _usual(train: ImageSet) -> Iterator[tuple[str, Preprocessing]]:
    """The normalisations of other people's scripts that fit the channels, and the one of these very images."""
    for name, one in NORMALIZATIONS.items():  # those of digits are for one channel
        if name in ("none", "half", "bytes") or len(one.mean) == train.shape[0]:
            yield name, _normalized(one, train.shape, name)
    axes = (0, 2, 3)
    own = Normalization.of((train.images.mean(axes), train.images.std(axes).clamp(min=1e-3)))
    text = "/".join(",".join(f"{value:.4g}" for value in values) for values in (own.mean, own.std))
    yield text, _normalized(own, train.shape, text)


def _by_spread(
    chosen: Preprocessing, usual: Mapping[str, Preprocessing], model: nn.Module, task: Task, train: ImageSet
) -> str | None:
    """The usual normalisation with which the training margins spread clearly less, if there is one."""
    right, spread = _fit(chosen, model, task, train)
    fits = {text: _fit(how, model, task, train) for text, how in usual.items()}
    best = min(fits, key=lambda text: fits[text][1])
    more_right = fits[best][0] > right + BETTER_ACCURACY
    return best if more_right or fits[best][1] < BETTER_SPREAD * spread else None


def unlike_relu(view: AttackerView[Network], how: Preprocessing, train: ImageSet) -> bool:
    """Whether the weights of a network that was assumed to have ReLU fit another activation much better."""
    dense = _sums(view)
    if not view.is_assumed or dense is None or how.accuracy < LEARNT or len(train) < FEWEST:
        return False
    some = train.first(min(len(train), MOST_RECORDS))
    found = {
        name: _evidence(replace(dense.network, activation=activation_named(name)), view.task, how, some)
        for name in ("relu", *OTHERS)
    }
    return max(found.values()) > BETTER_EVIDENCE * max(found["relu"], LEAST_EVIDENCE)


def weight_evidence(network: DenseNetwork, task: Task, entering: Tensor, labels: Tensor) -> float:
    """How much likelier the hidden layers are as sums over these records' gradients than as noise, in nats.

    W = sum_i lambda_i g_i + noise, lambda ~ N(0, tau²), noise ~ N(0, sigma²), with both at their likeliest values.
    In the eigenbasis of K_ij = <g_i, g_j>, with c_j the weights' coordinates and rho = sigma² / tau²,

        sigma² = (sum_j c_j² rho / (kappa_j + rho) + |rest|²) / D
        log L  = -(D log sigma² + sum_j log(1 + kappa_j / rho)) / 2
    """
    network = network.to(dtype=torch.float64)
    ones = torch.ones(len(labels), dtype=torch.float64)
    done = run_pass(network, entering, lambda logits: task.sides(labels, ones, logits), STEP)
    total = 0.0
    for layer in range(len(network.weights) - 1):
        weights, vectors, signals = parameters(network, layer), done.entering[layer], done.signals[layer]
        gram = (signals @ signals.T) * (vectors @ vectors.T)
        values, basis = torch.linalg.eigh(gram)
        kept = values > 1e-9 * values[-1].clamp(min=torch.finfo(values.dtype).tiny)
        values, energy, size = values[kept], float(weights.square().sum()), weights.numel()
        if not len(values) or energy == 0:
            continue
        along = (basis[:, kept].T @ ((signals @ weights) * vectors).sum(1)) / values.sqrt()
        rest = max(energy - float(along.square().sum()), 1e-12 * energy)
        likeliest = -math.inf
        for ridge in RIDGES:
            rho = ridge * float(values[-1])
            variance = (float((along.square() * rho / (values + rho)).sum()) + rest) / size
            likeliest = max(likeliest, -(size * math.log(variance) + float((values / rho).log1p().sum())) / 2)
        total += likeliest + size * math.log(energy / size) / 2
    return total


def doubts(view: AttackerView[Network] | None, how: Preprocessing, train: ImageSet) -> tuple[str, ...]:
    """What is probably wrong about how the model was read, each with what to do."""
    found = [] if how.doubt is None else [how.doubt]
    if view is not None and how.likelier is None and unlike_relu(view, how, train):
        found.append(
            "the weights do not fit ReLU between the layers, which was assumed: another activation explains them "
            f"much better. Name the one of your training script with --activation: {', '.join(OTHERS)}"
        )
    return tuple(found)


def _fit(how: Preprocessing, model: nn.Module, task: Task, train: ImageSet) -> tuple[float, float]:
    """Accuracy on the training records, and the spread of their margins relative to its mean."""
    margins = margin_of(task)(_outputs(model, train.images, how), train.labels)
    mean = float(margins.mean())
    spread = float(margins.std()) / mean if mean > 0 else float("inf")
    return float((margins > 0).double().mean()), spread


def _outputs(model: nn.Module, images: Tensor, how: Preprocessing) -> Tensor:
    parts = [model(as_fed(model, how(some))) for some in torch.split(images, AT_ONCE)]
    return torch.cat([part.detach().cpu().double().reshape(len(part), -1) for part in parts])
