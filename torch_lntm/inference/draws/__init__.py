"""Draws of documents' topic proportions by guides, chains or joint chains, or from an array."""
