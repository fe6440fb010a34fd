"""Chains of every document of a batch: Hamiltonian Monte Carlo, its draws and their diagnostics."""
