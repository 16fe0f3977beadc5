"""Benchmarks: each measures both sides in one run, in alternation, and prints a ratio. ``python -m benchmarks``."""
