"""Sparse kernels: mixtures of topics at the words of a batch, likelihoods and expected counts."""
