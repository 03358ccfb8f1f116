"""ROC: against the definition, pair by pair."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import mannwhitneyu

from engram.core.errors import ConfigError
from engram.scoring.curves import line_up, roc


def test_auc_is_the_share_of_pairs_in_the_right_order(generator: torch.Generator) -> None:
    members = torch.randint(0, 9, (40,), generator=generator).double() + 1
    others = torch.randint(0, 9, (60,), generator=generator).double()
    pairs = members[:, None] - others[None]
    curve = roc(members, others)
    assert curve.auc == pytest.approx(float((pairs > 0).double().mean() + (pairs == 0).double().mean() / 2))
    expected = mannwhitneyu(members, others, alternative="greater", use_continuity=False, method="asymptotic")
    assert curve.p_value == pytest.approx(float(expected.pvalue), rel=1e-9)


def test_true_positives_at_a_rate_are_those_of_the_best_threshold(generator: torch.Generator) -> None:
    members, others = (torch.randn(200, generator=generator) + shift for shift in (1.0, 0.0))
    curve = roc(members, others)
    for rate in (0.0, 0.01, 0.1, 1.0):
        thresholds = [level for level in others.tolist() if float((others > level).double().mean()) <= rate]
        best = max((float((members > level).double().mean()) for level in thresholds), default=0.0)
        assert curve.at(rate) >= best
        assert curve.at(0.0) == pytest.approx(float((members > others.max()).double().mean()))


def test_a_rate_needs_enough_held_out_records() -> None:
    few, many = (roc(torch.ones(5), torch.zeros(count)) for count in (100, 1000))
    assert few.resolves(0.01)
    assert not few.resolves(0.001)
    assert few.note == "100 held-out records are too few to distinguish these rates from 0: 0.1% (needs 1,000)"
    assert many.note is None


def test_equal_scores_say_nothing_and_nan_is_lowest() -> None:
    assert roc(torch.ones(5), torch.ones(7)).p_value == 1.0
    assert roc(torch.tensor([torch.nan, 2.0]), torch.tensor([1.0])).auc == 0.5
    with pytest.raises(ConfigError, match="others must be scores"):
        roc(torch.ones(5), torch.ones(0))


def test_a_line_up_picks_out_who_was_reconstructed() -> None:
    """Blurred copies of half of the records pick them out; the others and the controls are left to chance."""
    generator = torch.Generator().manual_seed(0)
    train, held_out = torch.randn(20, 5, 5, generator=generator), torch.randn(40, 5, 5, generator=generator)
    candidates = torch.cat([train[:10] + 0.5 * torch.randn(10, 5, 5, generator=generator), held_out[:1]])
    found = line_up(candidates, train, held_out)
    assert found is not None
    assert found.decoys == 39
    assert found.train[:10].tolist() == [1] * 10
    assert found.train[10:].float().mean() > 3
    assert found.held_out[0] == 1
    assert (found.held_out[1:] == 1).float().mean() < 0.4
    assert line_up(candidates, train, held_out[:1]) is None


def test_a_record_is_no_decoy_of_its_own() -> None:
    images = torch.eye(4).reshape(4, 2, 2)
    found = line_up(images, images[:0], images)
    assert found is not None
    assert found.held_out.tolist() == [1, 1, 1, 1]
