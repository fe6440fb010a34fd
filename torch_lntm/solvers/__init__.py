"""Posterior solvers: pure tensor functions over a leading document axis, free of Pyro."""
