"""From curves to the ratio: every kind, and the sentence that reports it."""

from __future__ import annotations

import pytest
from benchmarks.race import Curve, Kind, time_ratio, time_to_count

NOTHING: Curve = [(1, 0.0), (60, 0.0)]
SLOW: Curve = [(1, 0.0), (20, 9.0), (40, 8.0), (60, 9.0)]
FAST: Curve = [(1, -2.0), (2, 3.0), (4, 9.0), (8, 40.0)]
WEAK: Curve = [(1, 0.0), (30, 5.0)]
LUCKY: Curve = [(1, 22.0), (30, 40.0)]


@pytest.mark.parametrize(
    ("published", "engine", "kind", "count", "value", "words"),
    [
        (SLOW, FAST, "measured", 9, 20 / 4, "ratio 5"),
        (NOTHING, FAST, "lower bound", 3, 60 / 2, "at least 30 (a lower bound)"),
        (SLOW, WEAK, "upper bound", 9, 20 / 30, "at most 0.667 (an upper bound)"),
        (SLOW, LUCKY, "chance", 9, None, "no ratio, a random start already has"),
        (NOTHING, LUCKY, "chance", 1, None, "no ratio, a random start already has"),
        (NOTHING, NOTHING, "unknown", None, None, "no ratio, neither"),
        ([], FAST, "unknown", None, None, "no ratio"),
        (SLOW, [], "unknown", None, None, "no ratio"),
        # less than one image, as held-out counts are scaled if there are fewer of them
        ([(1, 0.0), (60, 0.5)], FAST, "lower bound", 3, 60 / 2, "published has none"),
    ],
)
def test_every_kind_of_ratio(
    published: Curve, engine: Curve, kind: Kind, count: float | None, value: float | None, words: str
) -> None:
    ratio = time_ratio("ncc>0.8", published, engine)
    assert ratio.kind == kind
    assert ratio.count == count
    assert ratio.value == (None if value is None else pytest.approx(value))
    assert words in ratio.sentence
    assert ratio.sentence.startswith("ncc>0.8: ")


def test_the_published_time_is_when_it_first_reached_its_best() -> None:
    assert time_ratio("ncc>0.8", SLOW, FAST).published_seconds == 20


def test_time_to_count_lists_only_new_bests() -> None:
    assert time_to_count(FAST) == [(3.0, 2), (9.0, 4), (40.0, 8)]
    assert time_to_count(SLOW) == [(9.0, 20)]
    assert time_to_count(NOTHING) == []
