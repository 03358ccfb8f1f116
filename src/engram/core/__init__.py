"""Foundations: errors, atomic files, the optimisation loop, run directories, progress."""
