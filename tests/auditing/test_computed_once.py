"""What is expensive and depends on the weights alone is computed once in an audit; so is the final score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engram.auditing.run import TIMELINE_FILE, audit
from engram.models.networks import Network
from engram.models.row_space import first_layer_space
from engram.pipeline import compare
from tests.auditing.cases import QUICK, SHAPE, faces, memorising


def counted(calls: Counter[str], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        calls[name] += 1
        return real(*arguments, **options)

    return call


def test_digest_row_space_and_final_score_are_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, calls = memorising(), Counter[str]()
    fresh = network.with_params(dict(network.params))  # without what other tests have computed for it
    monkeypatch.setattr("engram.models.networks.first_layer_space", counted(calls, "row space", first_layer_space))
    digest = Network.__dict__["_digest"]
    monkeypatch.setattr(digest, "func", counted(calls, "digest", digest.func))
    monkeypatch.setattr("engram.auditing.comparison.compare", counted(calls, "final score", compare))
    monkeypatch.setattr("engram.auditing.record.compare", counted(calls, "moments", compare))
    record = audit(
        fresh,
        input_shape=SHAPE,
        train=faces(0),
        held_out=faces(20),
        settings=QUICK,
        baselines="none",
        directory=tmp_path,
    )
    assert (calls["row space"], calls["digest"], calls["final score"]) == (1, 1, 1)
    assert calls["moments"] == len(record.timeline) - 1
    assert TIMELINE_FILE in {path.name for path in tmp_path.iterdir()}
