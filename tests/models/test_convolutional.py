"""Networks with convolutions: text format, forward pass, gradients, training and the published scheme."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from engram.attacks.published import PublishedScheme, residuals, smoothed
from engram.attacks.settings import Buzaglo2023
from engram.core.errors import ConfigError, UnsupportedModelError
from engram.core.loop import Budget, Snapshots, run
from engram.models.activations import RELU
from engram.models.architecture import Architecture, Conv, parse_layers
from engram.models.networks import ConvNetwork, DenseNetwork
from engram.models.tasks import Binary, Multiclass, MulticlassPairs, Regression, Task
from engram.models.view import AttackerView
from engram.training.descent import ConvDescent, GradientDescent
from engram.training.recipe import BiasPolicy, ConvSpec, Recipe
from engram.training.target import make_descent, train
from tests import cases

SHAPE = (2, 7, 6)
DEEP = "conv3x4s2p1 relu conv2x3 relu avgpool2 flatten 5 relu {}"


def conv_network(layers: str, *, bias: BiasPolicy = "first", shape: tuple[int, ...] = SHAPE) -> ConvNetwork:
    spec = ConvSpec(input_shape=shape, layers=layers, bias=bias, first_layer_std=None)
    return spec.initialise(torch.Generator().manual_seed(0), torch.float64)


def as_modules(network: ConvNetwork) -> nn.Sequential:
    """The deep network in torch's own modules."""
    modules = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(3, 5),
        nn.ReLU(),
        nn.Linear(5, 1, bias=False),
    ).double()
    owners = [module for module in modules if isinstance(module, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for module, weight, bias in zip(owners, network.weights, network.biases, strict=True):
            module.weight.copy_(weight)
            if module.bias is not None and bias is not None:
                module.bias.copy_(bias)
    return modules


def test_forward_pass_equals_torch_modules() -> None:
    network = conv_network(DEEP.format(1), bias="all")
    inputs = torch.randn(5, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(network(inputs), as_modules(network)(inputs))
        torch.testing.assert_close(network(inputs.flatten(1)), network(inputs))


def test_digest_depends_on_layer_settings() -> None:
    plain = conv_network("conv3x4 relu flatten 1", shape=(1, 3, 3))
    other = ConvNetwork(plain.weights, plain.biases, Architecture.parse("conv3x4s2 relu flatten 1", (1, 3, 3)))
    assert plain.digest() != other.digest()
    assert plain.digest() == plain.to(dtype=torch.float64).digest()


def patchwise_gradients(network: ConvNetwork, x: Tensor, coefficients: Tensor, slope: float) -> list[np.ndarray]:
    """sum_k c_k dPhi_k(x)/dtheta of conv-dense-dense, by loops; the convolution's is a sum over patches.

    ReLU's derivative is sigmoid(slope z), as in the papers. Weight and bias of the convolution, then the weights.
    """
    kernels, dense, last = (weight.numpy() for weight in network.weights)
    bias = network.biases[0]
    assert bias is not None
    image, k = x.numpy(), kernels.shape[2]
    places = [(i, j) for i in range(image.shape[1] - k + 1) for j in range(image.shape[2] - k + 1)]
    patches = np.stack([image[:, i : i + k, j : j + k] for i, j in places])
    pre = np.array([[(kernel * patch).sum() for patch in patches] for kernel in kernels]) + bias.numpy()[:, None]
    hidden = np.maximum(pre, 0).reshape(-1)
    upper = dense @ hidden
    by_upper = (last.T @ coefficients.numpy()) / (1 + np.exp(-slope * upper))
    by_pre = (dense.T @ by_upper).reshape(pre.shape) / (1 + np.exp(-slope * pre))
    return [
        np.stack([sum(by_pre[c, p] * patches[p] for p in range(len(places))) for c in range(len(kernels))]),
        by_pre.sum(1),
        np.outer(by_upper, hidden),
        np.outer(coefficients.numpy(), np.maximum(upper, 0)),
    ]


TASKS = (Binary(), Multiclass(3), MulticlassPairs(3), Regression("l2"))
EVERY_TASK = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


@EVERY_TASK
def test_stationarity_equals_loops_over_patches(task: Task) -> None:
    network = conv_network(f"conv3x4 relu flatten 6 relu {task.outputs}")
    inputs, labels = cases.points(6, 84, labels=task.label_count)
    inputs = inputs.view(6, *SHAPE)
    duals = task.draw_duals(labels, torch.Generator().manual_seed(1))
    found = residuals(network, task, smoothed(RELU, 5.0), inputs, labels, duals)
    rows = task.output_weights(labels, duals, network(inputs))
    expected = [value.numpy().copy() for value in network.params.values()]
    for x, row in zip(inputs, rows, strict=True):
        for total, part in zip(expected, patchwise_gradients(network, x, row, 5.0), strict=True):
            total -= part / 6
    for value, by_hand in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(value.detach().numpy(), by_hand, rtol=0, atol=1e-10)


@EVERY_TASK
def test_published_scheme_descends_and_resumes_bit_identical(task: Task, tmp_path: Path) -> None:
    view = AttackerView(conv_network(DEEP.format(task.outputs)), SHAPE, task)
    floor = {"dual_floor": 0.0, "dual_weight": 0.0} if task.has_signed_duals else {}
    rates = {"lr_images": 1e-2, "lr_duals": 1e-2}
    scheme = PublishedScheme(view, Buzaglo2023(candidates=6, steps=30, image_std=0.1, **floor, **rates))  # type: ignore[arg-type]
    snapshots = Snapshots(path=tmp_path / "snapshot")
    run(scheme, Budget(steps=11), snapshots=snapshots)
    resumed = run(scheme, Budget(steps=30), snapshots=snapshots, resume=True)
    whole = run(scheme, Budget(steps=30))
    assert all(torch.equal(resumed.state[name], value) for name, value in whole.state.items())
    assert whole.loss < run(scheme, Budget(steps=1)).loss
    assert scheme.reconstruction(whole.state).images.shape == (6, *SHAPE)


def test_training_separates_and_resumes_bit_identical(tmp_path: Path) -> None:
    inputs, labels = cases.points(12, 84)
    spec = ConvSpec(input_shape=SHAPE, layers="conv3x4 relu flatten 20 relu 1", first_layer_std=0.1)
    recipe = Recipe(lr=0.1, epochs=200, weight_decay=1e-3, batch=4)
    network, solution = train(spec, recipe, Binary(), inputs, labels)
    assert Binary().correct(network(inputs.float()), labels).all()
    snapshots = Snapshots(path=tmp_path / "snapshot")
    start = spec.initialise(torch.Generator().manual_seed(0), torch.float32)
    descent = make_descent(start, Binary(), recipe, inputs.float(), labels)
    run(descent, Budget(steps=90), snapshots=snapshots)
    again = run(descent, Budget(steps=200), snapshots=snapshots, resume=True)
    assert all(torch.equal(again.state[name], value) for name, value in solution.state.items())
    assert network.name == "2x7x6-conv3x4-20-1"


@pytest.mark.parametrize("task", cases.TASKS, ids=lambda task: f"{task.name}-{task.outputs}")
@pytest.mark.parametrize("bias", ["first", "all", "none"])
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(lr=0.05, weight_decay=0.05, forget=7, dtype="float64"),
        Recipe(lr=0.05, weight_decay=0.05, batch=4, normalise_below=0.5, dtype="float64"),
    ],
    ids=["forget", "batches"],
)
def test_descent_without_gradient_arrays_equals_plain_descent(
    recipe: Recipe, bias: BiasPolicy, task: Task
) -> None:
    inputs, labels = cases.points(10, 84)
    start = conv_network(DEEP.format(task.outputs), bias=bias)
    quick, plain = (
        run(kind(start, task, recipe, inputs, labels % task.label_count), Budget(steps=20))
        for kind in (ConvDescent, GradientDescent[ConvNetwork])
    )
    assert isinstance(make_descent(start, task, recipe, inputs, labels), ConvDescent)
    assert quick.loss == pytest.approx(plain.loss, rel=1e-10)
    for name, value in start.params.items():
        torch.testing.assert_close(quick.state[name], plain.state[name], rtol=0, atol=1e-10)
        assert (quick.state[name] - value).abs().max() > 1e-6


def test_networks_without_a_head_use_plain_descent() -> None:
    inputs, labels = cases.points(10, 84)
    network = conv_network("conv3x4 relu flatten 5 1")
    descent = make_descent(network, Binary(), Recipe(dtype="float64"), inputs, labels)
    assert type(descent) is GradientDescent
    before, after = (run(descent, Budget(steps=steps)).loss for steps in (1, 30))
    assert after < before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv3 relu flatten 1", "--arch has no layer 'conv3'"),
        ("conv3x4 minpool2 flatten softmax", "'minpool2', 'softmax'"),
        ("conv3x4 relu conv3x4 gelu flatten 1", "its activations differ: gelu, relu"),
        ("conv3x4g3 relu flatten 1", "3 groups don't divide its 2 or 4 channels"),
        ("conv3x4 maxpool2p2 flatten 1", "its padding is more than half of its squares"),
        ("conv3x4 maxpool9 flatten 1", "its squares are larger"),
        ("conv3x4 relu 1", "1 (layer 3) can't take 4x5x4: a fully-connected layer needs flatten"),
        ("conv9x4 flatten 1", "conv9x4 (layer 1) can't take 2x7x6: its kernel is larger than the image"),
        ("conv3x4 avgpool5 flatten 1", "its squares are larger"),
        ("flatten conv3x4 1", "it needs an image"),
        ("conv3x4 relu flatten", "must end in a fully-connected layer, not in flatten"),
        ("flatten 10 relu 1", "it has no convolution"),
        ("conv1x999999999 flatten 999999999", "more than 2,147,483,648 values"),
        ("", "must have 1 to 256 layers, got 0"),
    ],
)
def test_wrong_descriptions_are_refused_with_the_layer(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Architecture.parse(text, SHAPE)
    assert message in str(caught.value)


def test_text_round_trip() -> None:
    text = "conv3x8s2p1 relu avgpool2 conv1x4 relu flatten 10 relu 1"
    assert " ".join(map(str, parse_layers(text.upper()))) == text


def test_a_view_of_another_kind_or_shape_is_refused() -> None:
    network = conv_network("conv3x4 relu flatten 1")
    with pytest.raises(UnsupportedModelError, match="input shape 2x7x7 has 98 values"):
        AttackerView(network, (2, 7, 7), Binary())
    with pytest.raises(UnsupportedModelError, match="input shape 7x6x2 differs from the 2x7x6 of the network"):
        AttackerView(network, (7, 6, 2), Binary())
    with pytest.raises(ConfigError, match="can't be read here"):
        AttackerView(network, SHAPE, Binary()).narrowed(DenseNetwork)
    with pytest.raises(UnsupportedModelError, match="1 outputs, but a multiclass task has 3"):
        AttackerView(network, SHAPE, Multiclass(3))


def test_kernels_of_the_whole_image_are_a_fully_connected_layer() -> None:
    network = conv_network("conv6x5 relu flatten 4 relu 1", bias="all", shape=(2, 6, 6))
    dense = network.dense_equivalent
    assert dense is not None
    assert dense.sizes == (72, 5, 4, 1)
    inputs = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(dense(inputs.flatten(1)), network(inputs))


@pytest.mark.parametrize(
    "layers", ["conv5x5 relu flatten 4 relu 1", "conv6x5p1 relu flatten 4 relu 1", "conv6x5 flatten 4 relu 1"]
)
def test_other_convolutions_have_no_dense_equivalent(layers: str) -> None:
    """A smaller kernel, a kernel with padding, and a missing ReLU."""
    assert conv_network(layers, shape=(2, 6, 6)).dense_equivalent is None


@pytest.mark.parametrize("setting", ["stride", "dilation", "groups"])
def test_a_file_may_say_zero_where_text_can_not(setting: str) -> None:
    """As a changed ONNX file did."""
    with pytest.raises(ValueError, match="stride, dilation or groups are not positive"):
        replace(Conv(3, 4), **{setting: 0}).shape_after((2, 8, 8))
