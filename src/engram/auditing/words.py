"""Texts of the report that are the same for every audit, and the commands that repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engram.auditing.record import AuditRecord

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


def reproduce(record: AuditRecord) -> list[str]:
    """The command that made this report, or the call from Python that gives the same candidates."""
    if record.command is not None:
        return [record.command]
    shape = "x".join(map(str, record.view.input_shape))
    return [f"engram audit MODEL --input-shape {shape} --task {record.view.task.name} -o runs/audit"]
