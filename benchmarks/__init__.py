"""Side-by-side runs, each printing ratios; run one as `python -m benchmarks.<name>`."""
