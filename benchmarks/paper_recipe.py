"""The paper's recipe for 10^4 epochs on CIFAR-10, 500 images: does it land where the paper says (77 %, 1.22)?

Run: python -m benchmarks.paper_recipe [--data-root DIR]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from engram import Binary, DataChoice, MLPSpec, Recipe, build_target
from engram.loop import Values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="Keep the trained target here.")
    arguments = parser.parse_args()
    started = time.monotonic()

    def progress(epoch: int, metrics: Values) -> None:
        if epoch % 500 == 0:
            print(
                f"epoch {epoch:6d}  loss {metrics['loss']:.5f}  {time.monotonic() - started:.0f} s",
                flush=True,
            )

    target = build_target(
        DataChoice(name="cifar10", labels="vehicles-animals", n=500),
        MLPSpec(inputs=3072),
        Recipe(epochs=arguments.epochs),
        Binary(),
        root=arguments.data_root,
        directory=arguments.out,
        observers=[progress],
    )
    card = target.card
    assert card is not None
    assert card.test is not None
    print(f"train loss {card.train.loss:.4g} (paper 0.0039)")
    print(f"test accuracy {card.test.accuracy:.1%} (paper 77 %), test loss {card.test.loss:.3f} (paper 1.22)")


if __name__ == "__main__":
    main()
