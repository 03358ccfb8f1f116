"""Sweeps: many attacks on one model or on many, from a laptop to a cluster."""
