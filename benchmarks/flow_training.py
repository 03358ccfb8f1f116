"""Train along the flow to the loss of the paper's 10^6 epochs (4e-6 on CIFAR-10, n=500): epochs and seconds.

Also prints what plain descent would need. Its seconds per epoch are measured in the same run, before the flow; its
epochs are the time that the flow has covered, the sum over steps of (time on the clock of log L) / (lr L).

Run: python -m benchmarks.flow_training [--data-root DIR] [-n 500] [--loss 4e-6] [--tolerance 0.01] [--out DIR]
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass

from benchmarks.cifar_target import options, trained
from engram.core.loop import State, Values
from engram.training.recipe import Flow, Recipe


@dataclass
class Ledger:
    """What the run has cost, and what plain descent would have cost."""

    lr: float
    started: float
    plain_epochs: float = 0.0
    plain_rate: float = 0.0
    loss: float = math.inf
    steps: int = 0

    def __call__(self, epoch: int, metrics: Values, state: State) -> None:
        loss, seconds = metrics["loss"], time.monotonic() - self.started
        if "rate" not in metrics:
            self.plain_epochs, self.plain_rate = epoch, seconds / epoch
        elif loss < self.loss:  # otherwise the step was rejected
            mean = (1 / loss - 1 / self.loss) / math.log(self.loss / loss)  # of 1/L, with log L falling linearly
            self.plain_epochs += metrics["rate"] / self.lr * mean
            self.steps += 1
        shown = epoch % 200 == 0 if "rate" not in metrics else self.steps % 10 == 0
        if shown:
            print(
                f"epoch {epoch:6d}  loss {loss:.3g}  as {self.plain_epochs:.3g} plain  {seconds:.0f} s", flush=True
            )
        self.loss = loss


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--loss", type=float, default=4e-6)
    parser.add_argument("--tolerance", type=float, default=0.01)
    arguments = parser.parse_args()
    recipe = Recipe(loss_threshold=arguments.loss, flow=Flow(tolerance=arguments.tolerance))
    ledger = Ledger(recipe.lr, time.monotonic())
    card, test = trained(arguments, recipe, [ledger])
    result = {
        "train_loss": card.train.loss,
        "test_accuracy": test.accuracy,
        "test_loss": test.loss,
        "epochs": card.epochs,
        "seconds": card.seconds,
        "plain_epochs_for_the_same_flow": ledger.plain_epochs,
        "plain_seconds_an_epoch": ledger.plain_rate,
        "ratio_of_epochs": ledger.plain_epochs / card.epochs,
        "ratio_of_seconds": ledger.plain_epochs * ledger.plain_rate / card.seconds,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
