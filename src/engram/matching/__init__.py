"""6  Matching: distances, scores, vote, SSIM, assignment, and the MatchTable with its null counts.

    candidates, images, mean -> score -> MatchTable        one row for each training image
                             -> evaluate -> ScoreReport    beside held-out images and noise candidates

Everything here reads the training images, so it is the auditor's side (`oracle`), never the attacker's.
"""

from engram.matching.assign import nearest, one_to_one
from engram.matching.distances import half_resolution, ncc, stretched, zscored, zscored_distance
from engram.matching.protocols import Buzaglo2023, Haim2022, ScoringProtocol, VectorProtocol
from engram.matching.report import ScoreReport, ThresholdCount, evaluate, noise_candidates
from engram.matching.score import score
from engram.matching.scorer import Scorer
from engram.matching.ssim import ssim, ssim_map
from engram.matching.table import MatchTable, Threshold
from engram.matching.vote import vote_2022, vote_2023, vote_average

__all__ = [
    "Buzaglo2023",
    "Haim2022",
    "MatchTable",
    "ScoreReport",
    "Scorer",
    "ScoringProtocol",
    "Threshold",
    "ThresholdCount",
    "VectorProtocol",
    "evaluate",
    "half_resolution",
    "ncc",
    "nearest",
    "noise_candidates",
    "one_to_one",
    "score",
    "ssim",
    "ssim_map",
    "stretched",
    "vote_2022",
    "vote_2023",
    "vote_average",
    "zscored",
    "zscored_distance",
]
