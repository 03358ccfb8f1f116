"""Scoring: what was recovered, beside its null counts. Reads the training images, so it is the auditor's side.

metrics      how alike two images are
voting       scores of all candidates, and the vote among the nearest
protocols    the papers' two ways of matching, and one for vectors
match        one row for each training image: `MatchTable`
report       the same for held-out images and noise: `ScoreReport`
roc          how well a score tells members from others
confidence   how well the blind confidence predicted what is real
"""
