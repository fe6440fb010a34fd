"""Pyro distributions over bags of words, and the counts that they are distributions of."""

from torch_lntm.distributions.bag_of_words import BagOfWords
from torch_lntm.distributions.word_counts import WordCounts

__all__ = ["BagOfWords", "WordCounts"]
