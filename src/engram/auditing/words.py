"""Texts of the report that are the same for every audit, and the commands that repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engram.auditing.record import AuditRecord

READS_FEATURES = (
    "The network begins with convolutions. What is said of weights and records is said of its first "
    "fully-connected layer and of the features that enter it: directions, duals, neuron boundaries. How much of "
    "an image those could give back at best is not known, so there is no ceiling, and no count of equations."
)
LIMITS = (
    "No leak found is not a proof of safety: it says that this attack, with this budget, recovered nothing beyond "
    "the control. A better attack may recover more, and networks outside the supported family are refused, not "
    "declared safe.",
    "A leak found is what a stranger with the weights can do; what queries alone would tell is not measured.",
    "The control is only as good as the held-out records: they must be of the same kind as the training records, "
    "and never seen in training. Data of another kind make chance look like a leak, or hide one.",
    "Matching uses the training images and their mean, which a stranger does not have; the candidates, their "
    "confidence and their order do not.",
    "SSIM counts include what the mean image alone would match, see the column of noise; NCC is free of it and "
    "decides the verdict.",
    "The confidence was calibrated on other targets of this kind; how well it fits this one is shown above where "
    "data were given.",
)
FITTED_ELSEWHERE = (
    "The confidence was calibrated on fully-connected targets; with convolutions it was too modest where it was "
    "checked, so read it as an order. How well it fits here is shown above where data were given."
)


def read_layer(record: AuditRecord) -> str:
    """The layer that row space, duals and boundaries are those of, in words."""
    return "the first layer" if record.architecture is None else "the first fully-connected layer"


def limits(record: AuditRecord) -> tuple[str, ...]:
    """What the numbers do not say; the last is on the confidence."""
    return LIMITS if record.architecture is None else (*LIMITS[:-1], FITTED_ELSEWHERE)


def reproduce(record: AuditRecord) -> list[str]:
    """The command that made this report, or the call from Python that gives the same candidates."""
    if record.command is not None:
        return [record.command]
    shape = "x".join(map(str, record.view.input_shape))
    layers = "" if record.architecture is None else f" --arch '{record.architecture}'"
    return [f"engram audit MODEL --input-shape {shape}{layers} --task {record.view.task.name} -o runs/audit"]
