"""Checks for your tests: whether a part of a model, or a guide, keeps its contract.

A part is defined by its Pyro program, with which :func:`check_prior`, :func:`check_topics` and
:func:`check_words` compare its methods. :func:`check_guide` checks that a guide's posteriors suit
engines, evaluators and ``SVI``. A failed check raises ``AssertionError`` and names the method. Use
small batches in float64, for instance five documents over ten words and three topics.
"""

from torch_lntm.testing.guides import check_guide
from torch_lntm.testing.priors import check_prior
from torch_lntm.testing.topics import check_topics
from torch_lntm.testing.words import check_words

__all__ = ["check_guide", "check_prior", "check_topics", "check_words"]
