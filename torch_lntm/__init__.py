"""Topic models with correlated, factor and Dirichlet priors, as Pyro programs.

    import torch_lntm as lntm

    corpus = lntm.read_corpus("ap.npz")
    model = lntm.models.ctm(50, corpus)
    guide = lntm.guides.TaylorGuide(model)
    result = lntm.inference.VariationalEM(model, guide).fit(corpus)

Public names, which ``__init__.pyi`` lists, load when they are first used, so that ``import
torch_lntm`` stays fast.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version(__name__)
    if name in __all__:
        return _load(name)
    from torch_lntm.errors import no_attribute

    constructors = [f"models.{model}" for model in ("ctm", "iftm", "lda", "lntm", "stm")]
    raise no_attribute(__name__, name, [*__all__, *constructors])
