"""Tests of engram.scoring; `reference` has the slow, obvious versions."""
