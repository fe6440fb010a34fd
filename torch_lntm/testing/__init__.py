"""Checks for tests: whether a part of a model, or a guide, keeps its contract.

:func:`check_prior`, :func:`check_topics` and :func:`check_words` compare the methods of a part with
its Pyro program, the definition of the part. :func:`check_guide` checks a guide's posteriors for
engines, evaluators and ``SVI``. A failed check raises ``AssertionError`` with the name of the
method. Use small batches in float64, for instance five documents over ten words and three topics.
"""

from torch_lntm.testing.guides import check_guide
from torch_lntm.testing.priors import check_prior
from torch_lntm.testing.topics import check_topics
from torch_lntm.testing.words import check_words

__all__ = ["check_guide", "check_prior", "check_topics", "check_words"]
