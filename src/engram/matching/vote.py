"""The vote: average the candidates that are nearly as near as the nearest one.

Both papers' rules are a floor under the NCC: a candidate votes if ncc >= floor(best ncc).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engram.errors import require
from engram.matching.search import Nearest, Scorer, chunk_size, chunks

PIXELS_AT_ONCE = 2**24
"""Numbers gathered at once while averaging, 64 MB in float32."""


def vote_2023(best: Tensor, B: float = 1.1) -> Tensor:
    """Floor of the 2023 vote: distance within B times the nearest distance, D = 2 d (1 - ncc).

    D <= B D_best  <=>  ncc >= 1 - B (1 - ncc_best); never above ncc_best, whatever the rounding. [n] -> [n].

    >>> vote_2023(torch.tensor([0.5, 1.0]), B=1.5)
    tensor([0.2500, 1.0000])
    """
    require(B >= 1, "B", "must be at least 1", B, "the papers use 1.1 (MLP) and 1.5 (convolutional)")
    return torch.minimum(1 - B * (1 - best), best)


def vote_2022(best: Tensor, fraction: float = 0.9) -> Tensor:
    """Floor of the 2022 vote: ncc >= fraction * ncc_best, [n] -> [n].

    Where even the best NCC is negative the fraction would shut out the best itself; then only it votes.

    >>> vote_2022(torch.tensor([0.5, -0.5]), fraction=0.5)
    tensor([ 0.2500, -0.5000])
    """
    require(0 < fraction <= 1, "fraction", "must be in (0, 1]", fraction, "the paper uses 0.9")
    return torch.minimum(fraction * best, best)


def vote_average(
    candidates: Tensor,
    nearest: Nearest,
    floor: Tensor,
    scorer: Scorer,
    *,
    prepare: Callable[[Tensor], Tensor] = lambda chosen: chosen,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean of the prepared candidates whose score reaches the floor, and how many there are.

    average_i = (1/C_i) sum over j with score_ij >= floor_i of prepare(y_j)

    The kept candidates of `nearest` decide it unless all of them vote; more may then lie beyond, and just
    those images get an exact second pass over all candidates. The best candidate always votes.

    candidates [m, *shape], floor [n] -> average [n, *shape], votes [n] int64.
    """
    voting = nearest.scores >= floor[:, None]
    voting[:, 0] = True
    overflowing = voting.all(1) if voting.shape[1] < len(candidates) else torch.zeros_like(voting[:, 0])
    totals = scorer.queries.new_zeros(len(scorer), candidates[0].numel())
    _add_kept(totals, candidates, nearest, voting & ~overflowing[:, None], prepare)
    votes = voting.sum(1)
    rows = overflowing.nonzero().squeeze(1)
    if len(rows):
        totals[rows], votes[rows] = _second_pass(
            candidates, scorer.only(rows), floor[rows], nearest.best[rows], prepare, chunk
        )
    return (totals / votes[:, None]).view(-1, *candidates.shape[1:]), votes


def _add_kept(
    totals: Tensor,
    candidates: Tensor,
    nearest: Nearest,
    voting: Tensor,
    prepare: Callable[[Tensor], Tensor],
) -> None:
    """Add to each row of totals [n, d] the kept candidates that vote for it."""
    rows, ranks = voting.nonzero(as_tuple=True)
    chosen = nearest.indices[rows, ranks].to(candidates.device)
    size = max(1, PIXELS_AT_ONCE // totals.shape[1])
    for start in range(0, len(rows), size):
        gathered = prepare(candidates[chosen[start : start + size]].to(totals)).flatten(1)
        totals.index_add_(0, rows[start : start + size], gathered)


def _second_pass(
    candidates: Tensor,
    scorer: Scorer,
    floor: Tensor,
    best: Tensor,
    prepare: Callable[[Tensor], Tensor],
    chunk: int | None,
) -> tuple[Tensor, Tensor]:
    """Totals [r, d] and votes [r] of the scorer's images over all candidates; totals = voting @ prepared."""
    totals = scorer.queries.new_zeros(len(scorer), candidates[0].numel())
    votes = torch.zeros_like(best)
    for start, block in chunks(candidates, chunk or chunk_size(scorer)):
        voting = scorer(block) >= floor[:, None]
        # A product of another shape may round otherwise; the best one votes all the same.
        here = ((best >= start) & (best < start + len(block))).nonzero().squeeze(1)
        voting[here, best[here] - start] = True
        totals.addmm_(voting.to(totals), prepare(block.to(totals)).flatten(1))
        votes += voting.sum(1)
    return totals, votes
