"""Contracts of a model's parts and of guides, as checks to call in tests.

``check_prior``, ``check_topics`` and ``check_words`` compare the methods of a part with its Pyro
program, which defines the part. ``check_guide`` checks what engines, evaluators and ``SVI`` rely
on. Each raises an ``AssertionError`` with the method that disagrees. They are for small batches,
such as five documents over ten words and three topics, in float64.
"""

from torch_lntm.testing.guides import check_guide
from torch_lntm.testing.priors import check_prior
from torch_lntm.testing.topics import check_topics
from torch_lntm.testing.words import check_words

__all__ = ["check_guide", "check_prior", "check_topics", "check_words"]
