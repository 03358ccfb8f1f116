"""7  Report: numbers as records, then figures."""
