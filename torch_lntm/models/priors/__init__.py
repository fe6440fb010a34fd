"""Priors of documents' topic proportions."""
