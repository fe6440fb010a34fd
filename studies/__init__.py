"""Experiments of the papers, and benchmarks of the package. The package does not import them."""
