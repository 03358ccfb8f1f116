"""Galleries of the report: pairs, candidates and baselines as pictures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engram.auditing.compared import Baseline
from engram.data.image_set import ImageSet
from engram.matching import ScoreReport, stretched
from engram.reconstruct.candidates import Reconstruction
from engram.report.html import Gallery, Picture
from engram.report.html.pictures import data_uri
from engram.report.kernels import kernel_pictures

MOST_PAIRS = 500
MOST_CANDIDATES = 200
MOST_BASELINE = 60


def pair_gallery(score: ScoreReport, train: ImageSet) -> Gallery:
    """Reconstructions above originals, best SSIM first."""
    table = score.train.top(MOST_PAIRS)
    assert table.ssim is not None
    pictures = []
    for row, (sample, ssim) in enumerate(zip(table.sample.tolist(), table.ssim.tolist(), strict=True)):
        label = train.classes[int(train.labels[sample])]
        pictures.append(
            Picture(
                image=data_uri(table.reconstruction[row]),
                alt=f"Reconstruction of record {sample}",
                caption=f"{ssim:.2f}",
                original=data_uri(train.images[sample]),
                original_alt=f"Training record {sample}, {label}",
                anchor=f"pair-{sample}",
            )
        )
    return Gallery(pictures, len(score.train), has_originals=True)


def pair_anchor(score: ScoreReport, index: int) -> str | None:
    """Where a record's pair is shown, if it is."""
    if score.train.ssim is None:
        return None
    shown = len(score.train) <= MOST_PAIRS or index in set(score.train.top(MOST_PAIRS).sample.tolist())
    return f"pair-{index}" if shown else None


def candidate_gallery(found: Reconstruction, input_shape: Sequence[int]) -> Gallery | None:
    """The most confident candidates, or those of the largest duals where there is no confidence."""
    if len(input_shape) != 3:
        return None
    order = torch.arange(len(found)) if found.has_confidence else found.duals.abs().argsort(descending=True)
    chosen = order[:MOST_CANDIDATES]
    images = stretched(found.images[chosen])
    pictures = []
    for image, index in zip(images, chosen.tolist(), strict=True):
        said = "" if found.scores is None else f"{float(found.scores[index]):.2f}"
        caption = said if found.has_confidence else f"dual {float(found.duals[index]):.2g}"
        pictures.append(Picture(data_uri(image), f"Candidate {index}", caption))
    return Gallery(pictures, len(found), has_originals=False)


def baseline_gallery(baseline: Baseline, input_shape: Sequence[int]) -> Gallery | None:
    """Evenly spaced, so that both ends of the order are seen, as the paper shows every 80th."""
    if len(input_shape) != 3:
        return None
    chosen = torch.linspace(0, len(baseline.images) - 1, min(MOST_BASELINE, len(baseline.images))).round().long()
    if baseline.name == "first-layer kernels":  # on one scale for all, as the paper draws them
        images = kernel_pictures(baseline.images)[chosen]
    else:
        images = stretched(baseline.images[chosen].float())
    captions = _captions(baseline.outputs, chosen)
    pictures = [
        Picture(data_uri(image), f"{baseline.name} {index}", caption)
        for image, index, caption in zip(images, chosen.tolist(), captions, strict=True)
    ]
    return Gallery(pictures, len(baseline.images), has_originals=False)


def _captions(outputs: Tensor | None, chosen: Tensor) -> list[str]:
    if outputs is None:
        return [str(index) for index in chosen.tolist()]
    return [f"{value:.3g}" for value in outputs[chosen].tolist()]
