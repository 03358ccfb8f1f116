"""Membership of sentences: `engram.membership` on small text classifiers, with embeddings and attention.

    python -m benchmarks.membership_text [--seeds 0,1,2]

Sentences are 12 words drawn at random from 300. The label is whether words above 150 prevail, with some errors, so
a model has to learn its 80 training records by heart. Prints true-positive rate at a false-positive rate of 0 and
AUC, beside the margin's, and the AUC of every layer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

import engram

WORDS, WIDTH, LENGTH, RECORDS = 300, 16, 12, 80


class Sentences(nn.Module):
    """Tokens, embedded; the mean of them, as they are or after something that mixes them, is classified."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.mix = mix
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.mix(self.embed(tokens)).mean(1))
        return outputs


def encoder() -> nn.Module:
    """A transformer of torch's own."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


MIXES: dict[str, Callable[[], nn.Module]] = {"words": nn.Identity, "transformer": encoder}


def sentences(name: str, seed: int = 0) -> engram.MembershipRecord:
    """Train on the first half of the records and ask about both."""
    torch.manual_seed(seed)
    tokens = torch.randint(0, WORDS, (2 * RECORDS, LENGTH))
    labels = ((tokens > WORDS // 2).double().mean(1) + 0.1 * torch.randn(len(tokens)) > 0.5).long()
    model = Sentences(MIXES[name]()).train()
    adam = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(60):
        for some in torch.randperm(RECORDS).reshape(-1, 20):
            loss = nn.functional.cross_entropy(model(tokens[some]), labels[some])
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
    own, others = ((tokens[some], labels[some]) for some in (slice(RECORDS), slice(RECORDS, None)))
    return engram.membership(model, own, others)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    chosen = parser.parse_args(arguments)
    for name in MIXES:
        for seed in map(int, chosen.seeds.split(",")):
            found = sentences(name, seed)
            layers = "  ".join(f"{test.layer}/{test.test} {test.roc.auc:.2f}" for test in found.tests)
            print(
                f"{name} seed {seed}: TPR at 0 {found.roc.at(0):.2f}, AUC {found.roc.auc:.2f}, "
                f"margin {found.margin_roc.auc:.2f}; {layers}"
            )


if __name__ == "__main__":
    main()
