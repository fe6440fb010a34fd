"""Experiments of the papers and benchmarks of the package; the package itself is elsewhere."""
