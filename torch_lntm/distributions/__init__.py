"""Pyro distributions of bags of words, and their values."""

from torch_lntm.distributions.bag_of_words import BagOfWords
from torch_lntm.distributions.word_counts import WordCounts

__all__ = ["BagOfWords", "WordCounts"]
