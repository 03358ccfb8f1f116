"""LoRA adapters: how many of the records that one was trained on do its factors give away?

    python -m benchmarks.adapters

A base model is trained on 2,000 CIFAR-10 images, and an adapter of rank 8 for all its Linear layers on 200 others.
Members are identified without a false alarm among 200 held-out images: from the factors A and B, from the update
B A alone, from the merged weights, and from the margin, which needs queries only.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from engram.core import files
from engram.data.catalog import load
from engram.members.membership import margin_of
from engram.members.pool import Pool
from engram.members.scores import combine, score_layers
from engram.models.open.lora import Adapted, Adapter, LowRank, with_adapter
from engram.models.tasks import infer_task
from engram.scoring.curves import roc

RANK, ALPHA, BASE, N, CLASSES = 8, 16.0, 2000, 200, 10


class Block(nn.Module):
    """A transformer's block with its projections as layers of their own, as adapters take them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down, self.heads = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), heads

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.before(tokens)
        query, key, value = (
            one(normed).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        tokens = tokens + self.out(mixed)
        result: Tensor = tokens + self.down(functional.gelu(self.up(self.between(tokens))))
        return result


class ViT(nn.Module):
    def __init__(self, width: int = 96, depth: int = 3) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.zeros(64, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.blocks(self.patches(images).flatten(2).transpose(1, 2) + self.places)
        outputs: Tensor = self.head(self.norm(tokens).mean(1))
        return outputs


def mlp() -> nn.Module:
    sizes = (3072, 512, 256)
    hidden = [part for one, two in pairwise(sizes) for part in (nn.Linear(one, two), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {"MLP 3072-512-256-10": mlp, "ViT, 3 blocks of width 96": ViT}


def fit(model: nn.Module, images: Tensor, labels: Tensor, params: Iterable[nn.Parameter], epochs: int, batch: int,
        generator: torch.Generator) -> None:  # fmt: skip
    optimizer = torch.optim.AdamW(list(params), 1e-3, weight_decay=0.0)
    for _ in range(epochs):
        for some in torch.split(torch.randperm(len(images), generator=generator), batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[some]), labels[some]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def new_adapter(model: nn.Module) -> Adapter:
    """As PEFT begins: A random, B zero, for every Linear layer."""
    layers = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            first = nn.Linear(layer.in_features, RANK, bias=False).weight.detach()
            layers[name] = LowRank(first, torch.zeros(layer.out_features, RANK), ALPHA / RANK)
    return Adapter(layers)


class Updated(nn.Module):
    """An adapted layer whose update is one layer instead of two."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, adapted: Adapted) -> None:
        super().__init__()
        self.register_buffer("weight", adapted.weight)
        self.register_buffer("bias", adapted.bias)
        after, before = adapted.lora_B.weight, adapted.lora_A.weight
        assert isinstance(after, Tensor)
        assert isinstance(before, Tensor)
        self.update = nn.Linear(before.shape[1], len(after), bias=False)
        self.update.weight = nn.Parameter((adapted.scale * after @ before).detach())

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = functional.linear(inputs, self.weight, self.bias) + self.update(inputs)
        return found


def merged(adapted: Adapted) -> nn.Linear:
    whole = Updated(adapted)
    layer = nn.Linear(whole.weight.shape[1], len(whole.weight))
    layer.weight = nn.Parameter(whole.weight + whole.update.weight.detach())
    assert whole.bias is not None
    layer.bias = nn.Parameter(whole.bias)
    return layer


def exchanged(model: nn.Module, made: Callable[[Adapted], nn.Module]) -> nn.Module:
    model = copy.deepcopy(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Adapted):
            where, _, own = name.rpartition(".")
            setattr(model.get_submodule(where), own, made(layer))
    return model.eval()


def asked(model: nn.Module, pool: Pool, layers: Sequence[str]) -> tuple[float, float, float]:
    """Members identified without a false alarm, at 1 %, and the AUC."""
    found = score_layers(model, pool, margin_of(infer_task(CLASSES)), only=layers)
    scores = combine(torch.stack([one.double() for one in found.scores.values()], 1)).scores
    curve = roc(scores[: pool.records], scores[pool.records :])
    return curve.at(0), curve.at(0.01), curve.auc


def measured(kind: str, seed: int, root: Path | None) -> dict[str, object]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    data = load("cifar10", root=root)
    order = torch.randperm(len(data), generator=generator)
    images, labels = data.images[order[: BASE + 2 * N]], data.labels[order[: BASE + 2 * N]]
    images = images - images[:BASE].mean(0)
    base = MODELS[kind]()
    fit(base, images[:BASE], labels[:BASE], base.parameters(), 8 if kind.startswith("MLP") else 6, 64, generator)
    adapted, moved = with_adapter(base, new_adapter(base))
    train, held = slice(BASE, BASE + N), slice(BASE + N, BASE + 2 * N)
    params = [value for name, value in adapted.named_parameters() if "lora_" in name]
    fit(adapted, images[train], labels[train], params, 60, 32, generator)
    pool = Pool.of((images[train], labels[train]), (images[held], labels[held]))
    names = [name for name, layer in adapted.named_modules() if isinstance(layer, Adapted)]
    with torch.no_grad():
        right = [float((adapted(images[part]).argmax(1) == labels[part]).float().mean()) for part in (train, held)]
    whole = exchanged(adapted, merged)
    margins = score_layers(whole, pool, margin_of(infer_task(CLASSES)), only=names[:1]).margins
    return {
        "model": kind,
        "seed": seed,
        "accuracy": right,
        "factors": asked(adapted, pool, moved),
        "update": asked(exchanged(adapted, Updated), pool, [f"{name}.update" for name in names]),
        "merged": asked(whole, pool, names),
        "margin": roc(margins[:N], margins[N:]).at(0),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/adapters"))
    chosen = parser.parse_args(arguments)
    rows = []
    for kind in MODELS:
        for seed in range(chosen.seeds):
            row = measured(kind, seed, chosen.data_root)
            rows.append(row)
            shown = {
                name: "/".join(f"{part:.2f}" for part in value) if isinstance(value, tuple | list) else value
                for name, value in row.items()
            }
            print(*(f"{name} {value}" for name, value in shown.items()), sep=", ", flush=True)
    files.prepare_directory(chosen.out)
    files.write_json(chosen.out / "adapters.json", {"rows": rows})


if __name__ == "__main__":
    main()
