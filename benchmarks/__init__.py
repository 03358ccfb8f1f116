"""Measurements and comparisons; run one with `python -m benchmarks.<name>`."""
