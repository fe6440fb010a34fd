"""Measured comparisons, one command each: ``python -m benchmarks.NAME``."""
