"""Citations of the software, and of the papers of a model and its posterior."""

from __future__ import annotations

from torch_lntm import __version__

_CTM = (
    "D. Blei and J. Lafferty (2006). Correlated topic models. "
    "Advances in Neural Information Processing Systems 18."
)
_PAPERS = {
    "ctm": _CTM,
    "blei-lafferty": _CTM,
    "taylor": "A. Ahmed and E. Xing (2007). On tight approximate inference of the logistic-normal "
    "topic admixture model. Proceedings of AISTATS.",
    "khan-bouchard": "M. E. Khan and G. Bouchard (2009). Variational EM algorithms for correlated "
    "topic models. Technical report, University of British Columbia.",
    "iftm": "D. Putthividhya, H. Attias and S. Nagarajan (2009). Independent factor topic models. "
    "Proceedings of ICML.",
    "lda": "D. Blei, A. Ng and M. Jordan (2003). Latent Dirichlet allocation. "
    "Journal of Machine Learning Research 3.",
    "ep": "T. Minka and J. Lafferty (2002). Expectation-propagation for the generative aspect "
    "model. Proceedings of UAI.",
    "bursty": "G. Doyle and C. Elkan (2009). Accounting for burstiness in topic models. "
    "Proceedings of ICML.",
    "hmc": "R. Neal (2011). MCMC using Hamiltonian dynamics. Handbook of Markov Chain Monte Carlo, "
    "chapter 5.",
    "laplace": "M. Roberts, B. Stewart and E. Airoldi (2016). A model of text for experimentation "
    "in the social sciences. Journal of the American Statistical Association 111.",
    "stm": "M. Roberts, B. Stewart and E. Airoldi (2016). A model of text for experimentation in "
    "the social sciences. Journal of the American Statistical Association 111.",
}


def citations(model: str, posterior: str, bursty: bool = False) -> list[str]:
    """Citations of the software, and of the papers of a model and its posterior.

    Args:
        model: The model's name, such as ``"ctm"``.
        posterior: The posterior's name in a recipe, such as ``"taylor"`` or ``"hmc"``.
        bursty: Whether the model is bursty.
    """
    software = f"The torch_lntm authors. torch_lntm, version {__version__} [computer software]."
    names = (model, posterior, *(["bursty"] if bursty else []))
    papers = [_PAPERS[name] for name in names if name in _PAPERS]
    return [software, *dict.fromkeys(papers)]
