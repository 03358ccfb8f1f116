"""One trial as a worker runs it: weights and settings in, files and numbers out. No data, no study, no clock.

Trials are compared by how well their candidates explain the weights. Nothing else is needed, and a trial's own
settings do not matter: gates are hard, whatever slope the trial used, and the scale of the duals, which differs
between recipes, cancels."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor

from engram.attacks.reconstruction import Attack, Reconstruction
from engram.attacks.registry import make_attack
from engram.core import files
from engram.core.errors import DivergedError
from engram.core.loop import STOP, State, Values
from engram.core.runs import RunDirectory, read_record
from engram.models.activations import activation_named
from engram.models.architecture import Architecture
from engram.models.networks import ConvNetwork, DenseNetwork, Network
from engram.models.tasks import task_named
from engram.models.view import AttackerView, Normalization
from engram.pipeline import attack
from engram.sweep.space import CHECKPOINTS, checkpoint_steps, is_hopeless

NOTHING_EXPLAINED = 1.0


def unexplained_share(view: AttackerView[Network], found: Reconstruction) -> float:
    """The share of the first layer that no multiple of the candidates' contribution explains, in [0, 1].

    With convolutions this is the first fully-connected layer, which carries the images. With P = [W_1 b_1] and
    E = sum_i lambda_i d margin_i / d P at exact gates,

        min over s >= 0 of ||P - s E||² / ||P||²  =  1 - max(0, <P, E>)² / (||P||² ||E||²)
    """
    network = view.network.to(dtype=torch.float32, device="cpu")
    params = {name: value.detach() for name, value in network.params.items()}
    prefix = next(name for name, value in params.items() if value.ndim == 2).rpartition(".")[0]
    first = [value.requires_grad_() for name, value in params.items() if name.rpartition(".")[0] == prefix]
    logits = network.with_params(params)(found.images.float())
    gains = found.duals.float() * view.task.margins(logits, found.labels)
    explained = torch.autograd.grad(gains.sum(), first)
    return share_outside(_joined(first), _joined(explained))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """All values in one vector; in float64, since sums over them have millions of terms."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).double()


def share_outside(whole: Tensor, part: Tensor) -> float:
    """1 - cos² of the angle between two vectors [p]; 1 if it is obtuse, or if `part` is zero or not finite.

    >>> round(share_outside(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0])), 6)
    0.64
    >>> share_outside(torch.tensor([3.0, 4.0]), torch.tensor([-6.0, -8.0]))
    1.0
    """
    cosine = float(whole @ part) / max(float(whole.norm()) * float(part.norm()), torch.finfo(torch.float64).tiny)
    if not 0 < cosine <= 1 + 1e-6:  # also false for NaN
        return NOTHING_EXPLAINED
    return max(0.0, 1 - cosine**2)


NOT_REACHED = -1.0


@dataclass(frozen=True, eq=False)
class Checkpoints:
    """An observer that records an attack's unexplained share at every checkpoint, and ends a hopeless run.

    The shares are part of the state, so snapshots contain them. `limits` are the largest allowed shares, one per
    checkpoint; empty if nothing is pruned.
    """

    attack: Attack
    limits: tuple[float, ...] = ()

    def __call__(self, step: int, metrics: Values, state: State) -> object:
        points = checkpoint_steps(self.attack.total_steps)
        if "unexplained_at" not in state:
            state["unexplained_at"] = torch.full((len(points),), NOT_REACHED, dtype=torch.float64)
        if step not in points:
            return None
        share = unexplained_share(self.attack.view, self.attack.reconstruction(state))
        state["unexplained_at"][[index for index, point in enumerate(points) if point == step]] = share
        return STOP if is_hopeless(state["unexplained_at"].tolist(), self.limits) else None


TrialState = Literal["complete", "pruned", "diverged", "failed", "killed"]
SNAPSHOT_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class TrialOrder:
    """Everything a worker needs besides the weights.

    `scratch` is a directory in which an interrupted trial is resumed; without it the trial starts from scratch.
    """

    number: int
    recipe: str
    settings: Mapping[str, Any]
    limits: tuple[float, ...] = ()
    device: str = "cpu"
    model: str = ""
    scratch: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a trial ended; `files` has the contents of its directory by file name."""

    state: TrialState
    reason: str
    unexplained: float | None = None
    checkpoints: tuple[float, ...] = (NOTHING_EXPLAINED,) * len(CHECKPOINTS)
    steps: int = 0
    seconds: float = 0.0
    host: str = ""
    threads: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PackedView:
    """A view as plain values, its weights as safetensors: nothing to execute, no tensors in shared memory."""

    weights: bytes
    layers: str | None
    """Layers of a network with convolutions, in the syntax of --arch; None for a dense network."""
    task: str
    input_shape: tuple[int, ...]
    pixel_range: tuple[float, float]
    activation: str = "relu"
    normalization: Normalization | None = None

    def unpacked(self) -> AttackerView[Network]:
        params = files.tensors_from_bytes(self.weights)
        places = range(sum(name.endswith(".weight") for name in params))
        weights = tuple(params[f"layers.{place}.weight"] for place in places)
        biases = tuple(params.get(f"layers.{place}.bias") for place in places)
        known = self.normalization
        gain = None if known is None else known.gain_of(self.input_shape).to(weights[0])
        network: Network = DenseNetwork(weights, biases, activation=activation_named(self.activation), gain=gain)
        if self.layers is not None:
            layers = Architecture.parse(self.layers, self.input_shape)
            network = ConvNetwork(weights, biases, layers, gain=gain)
        task = task_named(self.task, network.sizes[-1])
        return AttackerView(network, self.input_shape, task, self.pixel_range, known)


def packed(view: AttackerView[Network]) -> PackedView:
    params = {name: value.detach().cpu().contiguous() for name, value in view.network.params.items()}
    return PackedView(
        weights=save(params),
        layers=view.network.architecture.text if isinstance(view.network, ConvNetwork) else None,
        task=view.task.name,
        input_shape=view.input_shape,
        pixel_range=view.pixel_range,
        activation=str(view.network.activation),
        normalization=view.normalization,
    )


def run_trial(view: PackedView, order: TrialOrder) -> Ended:
    """Run a trial to its end. An error inside becomes its result, so that the sweep continues."""
    if order.scratch is not None:
        return _run_in(order.scratch, view, order)
    with tempfile.TemporaryDirectory(prefix="engram-trial-") as directory:
        return _run_in(Path(directory), view, order)


def _run_in(directory: Path, view: PackedView, order: TrialOrder) -> Ended:
    try:
        ended = _attacked(directory, view.unpacked(), order)
    except DivergedError as error:
        ended = Ended(state="diverged", reason=str(error))
    except Exception as error:
        ended = Ended(state="failed", reason=f"{type(error).__name__}: {error}")
    return replace(ended, files=_files(directory, ended), **_spent(directory), **_where())


def _attacked(directory: Path, view: AttackerView[Network], order: TrialOrder) -> Ended:
    chosen = make_attack(view.to(order.device), order.recipe, order.settings)
    found, solution = attack(
        chosen,
        directory=directory,
        model=order.model,
        resume=True,
        snapshot_every=SNAPSHOT_SECONDS,
        observers=[Checkpoints(chosen, order.limits)],
    )
    checkpoints = tuple(solution.state["unexplained_at"].tolist())
    pruned = is_hopeless(checkpoints, order.limits)
    return Ended(
        state="pruned" if pruned else "complete",
        reason=f"after {solution.steps:,} steps it explained less than the trials it was compared with"
        if pruned
        else solution.message,
        unexplained=unexplained_share(view, found),
        checkpoints=checkpoints,
    )


def _files(directory: Path, ended: Ended) -> dict[str, bytes]:
    """The files to keep; candidates only of complete trials."""
    run = RunDirectory(directory)
    kept = [run.record, run.metrics] + [run.reconstruction] * (ended.state == "complete")
    return {path.name: path.read_bytes() for path in kept if path.exists()}


def _where() -> dict[str, Any]:
    """What the last bits of a result may depend on."""
    return {"host": platform.node(), "threads": torch.get_num_threads()}


def _spent(directory: Path) -> dict[str, Any]:
    """Steps and seconds as the run recorded them, even if it diverged."""
    record = RunDirectory(directory).record
    told = read_record(directory).get("outcome") if record.exists() else None
    outcome = told if isinstance(told, dict) else {}
    return {"steps": int(outcome.get("steps", 0)), "seconds": float(outcome.get("seconds", 0.0))}
