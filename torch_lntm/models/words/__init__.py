"""Likelihoods of a document's words given its mixture of topics, in one file each."""
