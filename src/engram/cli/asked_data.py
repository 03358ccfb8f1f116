"""The options that name training data, the same for every command that takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engram.errors import ConfigError

if TYPE_CHECKING:
    from engram.data.choice import DataChoice
    from engram.targets.checkpoint import Card


@dataclass(frozen=True, kw_only=True)
class AskedData:
    """--data with what describes it, or --with-data for the model's card; options that do nothing are refused."""

    data: str | None
    n: int | None
    labels: str | None = None
    classes: int | None = None
    data_seed: int | None = None
    with_data: bool = False

    def __post_init__(self) -> None:
        described = {
            "-n": self.n,
            "--labels": self.labels,
            "--classes": self.classes,
            "--data-seed": self.data_seed,
        }
        given = [name for name, value in described.items() if value is not None]
        if self.with_data and (self.data is not None or given):
            listed = ", ".join([*(["--data"] if self.data is not None else []), *given])
            raise ConfigError(f"--with-data takes the data from the model's card; leave {listed} out")
        if self.data is None and given:
            raise ConfigError(f"{', '.join(given)} goes with --data; give --data NAME -n NUMBER too")
        if self.data is not None and self.n is None:
            raise ConfigError("--data needs -n, the number of training images, e.g. -n 500")

    def choice(self, card: Card | None, task: str) -> DataChoice | None:
        """The data for a model with this card and task; None where no data were asked for."""
        from engram.data.catalog import default_labels
        from engram.data.choice import DataChoice
        from engram.task import own_classes

        if self.data is None or self.n is None:
            return card_data(card, "--with-data") if self.with_data else None
        labels = self.labels or default_labels(self.data, own_classes=own_classes(task))
        return DataChoice(name=self.data, labels=labels, n=self.n, seed=self.data_seed, classes=self.classes)


def card_data(card: Card | None, asked_by: str) -> DataChoice:
    """The data that a card names."""
    if card is None:
        raise ConfigError(
            f"{asked_by} needs a directory of `engram train`, whose card names the data; else say --data NAME "
            "-n NUMBER [--labels MAP]"
        )
    return card.data
