"""The paper's recipe for 10^4 epochs on CIFAR-10, 500 images: does it reach the paper's numbers (77 %, 1.22)?

Run: python -m benchmarks.paper_recipe [--data-root DIR] [--epochs 10000] [--out DIR]
"""

from __future__ import annotations

import time

from benchmarks.cifar_target import options, trained
from engram.core.loop import State, Values
from engram.training.recipe import Recipe


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--epochs", type=int, default=10_000)
    arguments = parser.parse_args()
    started = time.monotonic()

    def progress(epoch: int, metrics: Values, state: State) -> None:
        if epoch % 500 == 0:
            print(
                f"epoch {epoch:6d}  loss {metrics['loss']:.5f}  {time.monotonic() - started:.0f} s",
                flush=True,
            )

    card, test = trained(arguments, Recipe(epochs=arguments.epochs), [progress])
    print(f"train loss {card.train.loss:.4g} (paper 0.0039)")
    print(f"test accuracy {test.accuracy:.1%} (paper 77 %), test loss {test.loss:.3f} (paper 1.22)")


if __name__ == "__main__":
    main()
