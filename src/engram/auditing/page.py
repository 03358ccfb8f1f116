"""The report's page: an audit's record as sections, in the order in which a person asks."""

from __future__ import annotations

from engram.auditing.page_blind import (
    baseline_sections,
    candidate_section,
    course_section,
    settings_section,
    weights_section,
)
from engram.auditing.page_data import control_section, membership_section, pairs_section, risk_section
from engram.auditing.record import AuditRecord
from engram.auditing.words import limits
from engram.report.html import Page, Section, Tile


def page_of(record: AuditRecord) -> Page:
    """Every section that this audit has something to say in."""
    sections = [
        pairs_section(record),
        control_section(record),
        risk_section(record),
        membership_section(record),
        candidate_section(record),
        weights_section(record),
        course_section(record),
        *baseline_sections(record),
        settings_section(record),
        Section("limits", "What the numbers do not say", limits(record)),
    ]
    return Page(
        title=f"{record.model}: what its weights give away",
        outcome=record.verdict.outcome,
        sentence=record.verdict.sentence,
        tiles=_tiles(record),
        sections=[section for section in sections if section is not None],
    )


def _tiles(record: AuditRecord) -> list[Tile]:
    blind, comparison = record.blind, record.comparison
    tiles = []
    if comparison is not None:
        row = next(row for row in comparison.score.counts if row.threshold == comparison.threshold)
        held = "unknown" if row.held_out is None else str(row.held_out)
        tiles += [
            Tile("records recovered", f"{row.train} of {len(comparison.score.train)}", row.threshold.text),
            Tile("control: held-out records", held, "the same count for records never trained on"),
        ]
        if comparison.membership is not None:
            curve = comparison.membership["combined"].roc
            tiles.append(Tile("membership told", f"{curve.at(0):.0%}", "of the records, without a false alarm"))
    if blind.found.has_confidence:
        tiles.append(Tile("confident candidates", f"{blind.sure} of {len(blind.found)}", "at 90 %, judged blind"))
    else:
        tiles.append(Tile("candidates", str(len(blind.found)), "this attack gives no confidence"))
    tiles.append(Tile("attack", f"{record.attack.seconds:.0f} s", f"{record.attack.steps:,} steps"))
    return tiles
