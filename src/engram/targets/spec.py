"""What network: the fully-connected ReLU networks of the papers, described by their widths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engram.errors import require

BiasPolicy = Literal["first", "all", "none"]
"""Which hidden layers have biases. `first` keeps the network homogeneous; the output layer never has one."""


@dataclass(frozen=True, kw_only=True)
class MLPSpec:
    """A ReLU network inputs-widths-outputs.

    `first_layer_std` draws the first layer, weight and bias, from N(0, std²), which the first paper found to
    help the attack (1e-4); None is the standard initialisation U(-1/sqrt(fan_in), 1/sqrt(fan_in)) everywhere.

    >>> MLPSpec(inputs=3072, widths=(1000, 1000)).name
    '3072-1000-1000-1'
    """

    inputs: int
    widths: tuple[int, ...] = (1000, 1000)
    outputs: int = 1
    bias: BiasPolicy = "first"
    first_layer_std: float | None = 1e-4

    def __post_init__(self) -> None:
        require(self.inputs > 0, "inputs", "must be positive", self.inputs)
        require(self.outputs > 0, "outputs", "must be positive", self.outputs)
        require(
            len(self.widths) > 0 and min(self.widths, default=0) > 0,
            "widths",
            "must name at least one hidden layer of positive width",
            self.widths,
            "for example 1000,1000",
        )
        require(self.bias in ("first", "all", "none"), "bias", "must be first, all or none", self.bias)
        require(
            self.first_layer_std is None or self.first_layer_std > 0,
            "first_layer_std",
            "must be positive",
            self.first_layer_std,
            "leave it out for the standard initialisation",
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Width of every layer from the inputs to the outputs."""
        return (self.inputs, *self.widths, self.outputs)

    @property
    def name(self) -> str:
        return "-".join(map(str, self.sizes))

    def has_bias(self, layer: int) -> bool:
        """Whether layer 0, 1, ... has a bias."""
        is_hidden = layer < len(self.widths)
        return is_hidden and (self.bias == "all" or (self.bias == "first" and layer == 0))
