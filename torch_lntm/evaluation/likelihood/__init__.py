"""Held-out log likelihood of documents, topic proportions integrated out."""
