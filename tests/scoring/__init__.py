"""Tests of engram.matching; `reference` holds the slow, obvious versions."""
