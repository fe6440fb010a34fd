"""Held-out log likelihood of documents, with their topic proportions integrated out."""
