"""Scores that only studies use: classification, retrieval, and distances from long chains."""
