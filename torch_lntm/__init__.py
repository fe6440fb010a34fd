"""Topic models with correlated, factor and Dirichlet priors, as Pyro programs.

    import torch_lntm as lntm

    corpus = lntm.read_corpus("ap.npz")
    model = lntm.models.ctm(num_topics=50, num_words=corpus.num_words)
    guide = lntm.guides.TaylorGuide(model)
    result = lntm.inference.VariationalEM(model, guide).fit(corpus)

Public names load at their first use, so ``import torch_lntm`` is fast.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_lntm import corpus as corpus
    from torch_lntm import distributions as distributions
    from torch_lntm import effects as effects
    from torch_lntm import errors as errors
    from torch_lntm import estimators as estimators
    from torch_lntm import evaluation as evaluation
    from torch_lntm import formulas as formulas
    from torch_lntm import frames as frames
    from torch_lntm import guides as guides
    from torch_lntm import inference as inference
    from torch_lntm import interop as interop
    from torch_lntm import io as io
    from torch_lntm import kernels as kernels
    from torch_lntm import latents as latents
    from torch_lntm import models as models
    from torch_lntm import plotting as plotting
    from torch_lntm import posteriors as posteriors
    from torch_lntm import recipes as recipes
    from torch_lntm import reports as reports
    from torch_lntm import selection as selection
    from torch_lntm import testing as testing
    from torch_lntm.corpus import Corpus as Corpus
    from torch_lntm.corpus import convert_corpus as convert_corpus
    from torch_lntm.corpus import example_corpus as example_corpus
    from torch_lntm.corpus import lee_corpus as lee_corpus
    from torch_lntm.corpus import read_corpus as read_corpus
    from torch_lntm.errors import ConfigError as ConfigError
    from torch_lntm.errors import CorpusError as CorpusError
    from torch_lntm.errors import IncompatibleGuideError as IncompatibleGuideError
    from torch_lntm.errors import LNTMError as LNTMError
    from torch_lntm.errors import LNTMWarning as LNTMWarning
    from torch_lntm.errors import NotFittedError as NotFittedError
    from torch_lntm.errors import NumericalError as NumericalError
    from torch_lntm.estimators import AspectModel as AspectModel
    from torch_lntm.estimators import CorrelatedTopicModel as CorrelatedTopicModel
    from torch_lntm.estimators import IndependentFactorTopicModel as IndependentFactorTopicModel
    from torch_lntm.estimators import LogisticNormalTopicModel as LogisticNormalTopicModel
    from torch_lntm.estimators import StructuralTopicModel as StructuralTopicModel
    from torch_lntm.io import load_model as load_model
    from torch_lntm.io import load_run as load_run
    from torch_lntm.io import save_model as save_model
    from torch_lntm.reports import name_topics as name_topics
    from torch_lntm.reports import report as report
    from torch_lntm.reports import topic_stability as topic_stability
    from torch_lntm.reports import topic_tree as topic_tree
    from torch_lntm.selection import select as select

    __version__: str

_ROOMS = (
    *("corpus", "distributions", "effects", "errors", "estimators", "evaluation", "formulas"),
    *("frames", "guides", "inference", "interop", "io", "kernels", "latents", "models"),
    *("plotting", "posteriors", "recipes", "reports", "selection", "testing"),
)
#: Public names of rooms that are names of the package too.
_NAMES_OF_ROOMS = {
    "corpus": ["Corpus", "convert_corpus", "example_corpus", "lee_corpus", "read_corpus"],
    "errors": [
        *("ConfigError", "CorpusError", "IncompatibleGuideError", "LNTMError", "LNTMWarning"),
        *("NotFittedError", "NumericalError"),
    ],
    "estimators": [
        *("AspectModel", "CorrelatedTopicModel", "IndependentFactorTopicModel"),
        *("LogisticNormalTopicModel", "StructuralTopicModel"),
    ],
    "io": ["load_model", "load_run", "save_model"],
    "reports": ["name_topics", "report", "topic_stability", "topic_tree"],
    "selection": ["select"],
}
_NAMES = {name: room for room, names in _NAMES_OF_ROOMS.items() for name in names}
__all__ = [*_NAMES, *_ROOMS, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version(__name__)
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    from torch_lntm.errors import no_attribute

    constructors = [f"models.{model}" for model in ("ctm", "iftm", "lda", "lntm", "stm")]
    raise no_attribute(__name__, name, [*__all__, *constructors])


def __dir__() -> list[str]:
    return sorted(__all__)
