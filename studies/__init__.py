"""Experiments of the papers and benchmarks: measured with the package, not part of it."""
