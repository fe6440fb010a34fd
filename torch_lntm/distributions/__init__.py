"""Pyro distributions over bags of words."""

from torch_lntm.distributions.bag_of_words import BagOfWords

__all__ = ["BagOfWords"]
