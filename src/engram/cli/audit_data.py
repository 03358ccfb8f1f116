"""From the options of `engram audit` to the records it compares with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engram.cli.asked_data import AskedData

if TYPE_CHECKING:
    from engram.attacker import AttackerView
    from engram.auditing.samples import AuditData
    from engram.data.choice import DataChoice
    from engram.data.image_set import ImageSet
    from engram.targets.checkpoint import Target
    from engram.targets.networks import Network

NO_CONTROL = "none"


def chosen_data(
    target: Target[Network],
    view: AttackerView[Network],
    *,
    data: str | None,
    n: int | None,
    labels: str | None,
    classes: int | None,
    data_seed: int | None,
    with_data: bool,
    held_out: str | None,
    held_out_n: int | None,
    mean: str,
    data_root: Path | None,
) -> AuditData | None:
    """Training records and their control, or None for the blind mode; options that do nothing are refused."""
    import torch

    from engram.auditing.samples import audit_data
    from engram.errors import ConfigError, require

    require(mean in ("train", "zero"), "--mean", "must be train or zero", mean)
    asked = AskedData(data=data, n=n, labels=labels, classes=classes, data_seed=data_seed, with_data=with_data)
    choice = asked.choice(target.card, view.task.name)
    if choice is None:
        control = {"--held-out": held_out, "--held-out-n": held_out_n, "--mean": None if mean == "train" else mean}
        if stray := [name for name, value in control.items() if value is not None]:
            raise ConfigError(f"{', '.join(stray)} goes with --data; give --data NAME -n NUMBER too")
        return None
    train, unseen = _loaded(choice, held_out, held_out_n, data_root)
    return audit_data(view, train, unseen, torch.zeros(view.input_shape) if mean == "zero" else None)


def _loaded(
    choice: DataChoice, held_out: str | None, held_out_n: int | None, root: Path | None
) -> tuple[ImageSet, ImageSet | None]:
    from dataclasses import replace

    from engram.data.sampling import largest
    from engram.errors import ConfigError

    if held_out is None:
        split = choice.load(root, held_out=held_out_n)
        if not len(split.held_out):
            raise ConfigError(
                f"no image of {choice.name} is left for the control after {choice.n} training images; give others "
                "with --held-out NAME, or go without a control with --held-out none"
            )
        return split.train, split.held_out
    train = choice.load(root, held_out=0).train
    if held_out == NO_CONTROL:
        return train, None
    others = replace(choice, name=held_out, n=len(train.classes))
    available = largest(others.everything(root))
    if not available:
        raise ConfigError(f"--held-out {held_out} has no image of every class; choose other data")
    wanted = min(choice.n, available) if held_out_n is None else held_out_n
    return train, replace(others, n=wanted).load(root, held_out=0).train
