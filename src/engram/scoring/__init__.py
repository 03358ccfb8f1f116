"""Scoring: what was recovered, with its null counts. It reads the training images, so it is the auditor's side.

metrics      how similar two images are
voting       scores of all candidates, and the vote among the nearest
protocols    the papers' two ways of matching, and one for vectors
match        one row per training image: `MatchTable`
report       the same for held-out images and noise: `ScoreReport`
bounds       what finitely many records prove: intervals, p-values, a lower bound of epsilon
curves       ROC: how well a score separates members from others; how well the blind confidence predicted
             which candidates are real
"""
