"""Every report says what can be done, from what was measured, with commands that exist."""

from __future__ import annotations

import pytest

from engram.auditing.verdict import MEASURED, TARGETS, Measured, kind_of_target
from engram.auditing.visuals import advice_section
from engram.render.html import shown
from tests.cases import view
from tests.test_documented_commands import require_options


@pytest.mark.parametrize("kind", TARGETS)
def test_each_kind_of_target_has_advice(kind: str) -> None:
    section = advice_section(kind, "model.pt")
    rows = section.tables[0].rows
    assert rows
    assert TARGETS[kind] in section.paragraphs[0]
    assert all("model.pt" in shown(row[-1]) or "engram defend" in shown(row[-1]) for row in rows)


@pytest.mark.parametrize("one", MEASURED, ids=lambda one: f"{one.kind}: {one.way}")
def test_the_commands_exist(one: Measured) -> None:
    command = one.command.format(model="model.pt")
    require_options(command)


def test_advice_comes_from_the_target_most_like_the_model() -> None:
    assert kind_of_target(view(75, 20, 1, shape=(3, 5, 5)), (3, 5, 5), 50) == "gate"
    assert kind_of_target(view(75, 20, 1, shape=(3, 5, 5)), (3, 5, 5), 5000) == "mlp"
    assert kind_of_target(view(75, 20, 10, shape=(3, 5, 5)), (3, 5, 5), 50) == "mlp"
    assert kind_of_target(view(12, 20, 10), (12,), 50) == "head"
    assert kind_of_target(None, (3, 32, 32), 50) == "cnn"
