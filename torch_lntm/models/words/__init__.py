"""Likelihoods of a document's words given the mixture of its topics, one file a kind."""
