"""``outcomes.estimate``, which regresses an outcome on topic shares that are not observed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.effects.design import Design
from torch_lntm.errors import ConfigError, ConvergenceWarning, require_one, require_whole, warn
from torch_lntm.formulas import Formula
from torch_lntm.formulas.language import split_random, summands_of
from torch_lntm.inference.chains.joint import CHAIN_SEEDS
from torch_lntm.inference.fitted import Fitted
from torch_lntm.kernels import fused
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.model import require_model
from torch_lntm.models.topic_groups import as_groups
from torch_lntm.outcomes.chain import OutcomeChain
from torch_lntm.outcomes.families import Array, Binomial, Family, Normal, Poisson
from torch_lntm.outcomes.result import Outcomes
from torch_lntm.progress import tqdm

FamilyName = Literal["normal", "binomial", "poisson"]
Draws = Literal["joint", "cut"]
FAMILIES: dict[str, type[Family]] = {"normal": Normal, "binomial": Binomial, "poisson": Poisson}
#: The word for all topics' shares in a formula.
TOPICS = "topics"
#: R-hat above which, and mean acceptance by the outcome below which, a warning is given.
MAX_RHAT, MIN_ACCEPTANCE = 1.05, 0.1
#: What the draws assume, in words.
ASSUMED = {
    "joint": "Words and outcome inform the topics together, so a wrong regression moves them too.",
    "cut": "Topics and prior are drawn given the words alone, and only the documents' shares know "
    "the outcome.",
}


@torch.no_grad()
@fused.threaded
def estimate(
    model: TopicModel | Fitted,
    corpus: Corpus | None,
    formula: str,
    *,
    family: FamilyName = "normal",
    draws: Draws = "joint",
    groups: Mapping[str, Sequence[int | str]] | TopicGroups | None = None,
    num_chains: int = 2,
    num_draws: int = 500,
    warmup_steps: int = 200,
    topics: bool | None = None,
    prior: bool = True,
    seed: int = 0,
    progress: bool = True,
) -> Outcomes:
    """Estimates how an outcome of documents depends on their topics and on other columns.

    A regression on posterior means, modes or draws of the shares is biased towards 0, because
    shares are measured by few words (``docs/outcomes.md``). Here the outcome is part of the model,
    y_d = θ_dᵀβ + x_dᵀγ + ε_d, and a Markov chain draws shares, topics, prior and coefficients
    together (:class:`~torch_lntm.outcomes.chain.OutcomeChain`). If columns move both topics and
    outcome, as those of a treatment or of confounders do, fit a model with the same columns
    (``models.stm``) first.

    Args:
        model: The fitted model, which stays unchanged. A result of a fit, a run or a codebook gives
            its model, and by default its documents and groups.
        corpus: The documents, with the formula's columns among their metadata. Documents without
            words are left out.
        formula: Outcome and columns, such as ``"log(sales) ~ topics + employees + C(country)"``.
            ``topics`` stands for the shares of all topics.
        family: Distribution of the outcome: ``"normal"``; ``"binomial"``, for outcomes of 0 and 1,
            by a logit; or ``"poisson"``, for counts, by a logarithm.
        draws: ``"joint"`` lets outcome and words inform the topics together, which is the posterior
            of the whole model. ``"cut"`` draws topics and prior given the words alone, so that a
            wrong regression cannot move them.
        groups: Groups of topics whose effects are wanted too, such as ``{"economy": [3, 7]}``.
        num_chains: Number of chains, all of which start at the fitted model.
        num_draws: Draws of each chain.
        warmup_steps: Sweeps of each chain before its first draw.
        topics: Whether to draw the topics, rather than keep them fixed; see
            :func:`~torch_lntm.inference.joint_draws`. Defaults to fixed topics for a codebook, and
            to drawn topics otherwise.
        prior: Whether to draw the prior, rather than keep it fixed.
        seed: Seed of the chains.
        progress: Whether to show a progress bar on standard error.

    Returns:
        The effects of topics, groups and columns, with intervals.

    Raises:
        ConfigError: The formula or a setting cannot be used, the family does not suit the outcome,
            or the other columns determine a column.
        CorpusError: A column is missing, or has missing values.
        IncompatibleGuideError: The prior or the topics have no posterior to draw from.

    Warns:
        ConvergenceWarning: The chains disagree, or the outcome refuses most moves of the documents.

    Example:
        >>> sales = lntm.outcomes.estimate(
        ...     model, posts, "year ~ topics + party", num_draws=400, warmup_steps=100
        ... )
        >>> sales.frame()["term"].tolist()[-2:]
        ['topic 9', 'party[T.right]']
        >>> ax = sales.plot(per=0.1)
    """
    read: Any = as_corpus
    if isinstance(model, Fitted):
        read, groups = model.check_corpus, model.groups if groups is None else groups
        topics = not model.frozen if topics is None else topics
        model = model.model
    topics = True if topics is None else topics
    require_model(model)
    require_one(FAMILIES, family=family)
    require_one(get_args(Draws), draws=draws)
    require_whole(1, num_chains=num_chains, warmup_steps=warmup_steps)
    require_whole(4, num_draws=num_draws)
    corpus, found = model.encode(read(corpus)), as_groups(model, groups)
    data = _read(corpus, formula, family)
    options: dict[str, Any] = {"warmup_steps": warmup_steps, "topics": topics, "prior": prior}
    runs: list[tuple[Array, Array, float]] = []
    with tqdm(total=num_chains * (warmup_steps + num_draws), disable=not progress) as bar:
        for number in range(num_chains):
            regression = FAMILIES[family](data.y, data.x, model.num_topics)
            options["seed"] = seed + CHAIN_SEEDS * number
            chain = OutcomeChain(model, corpus, regression, cut=draws == "cut", **options)
            runs.append(_run(chain, warmup_steps, num_draws, bar))
    coefficients, shares, acceptance = map(np.array, zip(*runs, strict=True))
    result = Outcomes(
        formula=formula,
        family=family,
        draws=draws,
        names=data.names,
        coefficients=coefficients,
        shares=shares.mean(0),
        groups=found,
        model=model,
        notes=_notes(model, data, formula, draws, FAMILIES[family], topics, prior),
    )
    _warn(result, acceptance.mean())
    return result


def _run(
    chain: OutcomeChain, warmup_steps: int, num_draws: int, bar: Any
) -> tuple[Array, Array, float]:
    """Draws of a chain's coefficients, mean shares of the topics, and mean acceptance."""
    drawn, shares, acceptance = [], np.zeros(chain.theta.shape[1]), 0.0
    for sweep in range(warmup_steps + num_draws):
        chain.sweep()
        bar.update()
        if sweep >= warmup_steps:
            drawn.append(chain.family.in_units())
            shares += chain.theta.mean(0) / num_draws
            acceptance += chain.acceptance / num_draws
    return np.array(drawn), shares, acceptance


class _Data(NamedTuple):
    """What is regressed.

    Attributes:
        y: ``(num_docs,)`` outcomes.
        x: ``(num_docs, num_columns)`` columns besides the topics' shares.
        names: Names of these columns.
        columns: Columns of metadata in the formula's right-hand side.
    """

    y: Array
    x: Array
    names: tuple[str, ...]
    columns: tuple[str, ...]


def _read(corpus: Corpus, formula: str, family: str) -> _Data:
    """Outcome and columns of the documents with words."""
    left, sign, right = str(formula).partition("~")
    if not sign or not left.strip() or "~" in right:
        raise ConfigError(
            f"formula {formula!r}; expected an outcome and columns, such as "
            "'log(sales) ~ topics + employees'"
        )
    if TOPICS in corpus.metadata:
        raise ConfigError(
            f"the column {TOPICS!r} has the name of the topics' shares in a formula; rename it"
        )
    rest = [summand for summand in summands_of(right) if summand.strip() != TOPICS]
    text = "+".join(rest) if rest else "1"
    if len(rest) != len(summands_of(right)) - 1 or re.search(rf"\b{TOPICS}\b", text):
        raise ConfigError(
            f"formula {formula!r}; expected 'topics' once, as a summand of its own: the shares of "
            "all topics, without interactions"
        )
    if split_random(text)[1]:
        raise ConfigError(
            f"formula {formula!r} has a random term, which outcomes do not have; use C(column)"
        )
    metadata = corpus.metadata.iloc[corpus.nonempty]
    fitted, matrix = Formula.fit(f"~ {text}", metadata)
    if "Intercept" not in fitted.names:
        raise ConfigError(
            f"formula {formula!r} leaves out the intercept, which the topics' shares contain, as "
            "they sum to 1; leave out 0 or -1"
        )
    Design(fitted.names, matrix)  # refuses columns that others determine
    keep = [j for j, name in enumerate(fitted.names) if name != "Intercept"]
    outcomes, values = Formula.fit(f"~ 0 + {left}", metadata)
    y = values[:, 0]
    allowed, what = {
        "normal": (bool(y.std() > 0), "numbers that vary"),
        "binomial": (set(y) == {0.0, 1.0}, "both 0 and 1, and no other value"),
        "poisson": (bool((y >= 0).all() and (y == y.round()).all() and y.any()), "counts from 0"),
    }[family]
    if len(outcomes.names) != 1:
        raise ConfigError(
            f"the outcome {left.strip()!r} has the columns {', '.join(outcomes.names):.200}; "
            "expected one of numbers. Of two classes, make a column of 0 and 1, and take "
            "family='binomial'"
        )
    if not allowed:
        raise ConfigError(
            f"the outcome {left.strip()!r} has values such as {y[:3].tolist()}; the family "
            f"{family} expects {what}, in a column of numbers"
        )
    return _Data(y, matrix[:, keep], tuple(fitted.names[j] for j in keep), tuple(fitted.kinds))


def _notes(
    model: TopicModel,
    data: _Data,
    formula: str,
    draws: str,
    family: type[Family],
    topics: bool,
    prior: bool,
) -> tuple[str, ...]:
    """Describes the regression and its assumptions."""
    notes = [
        f"The regression {formula.strip()} in {len(data.y):,} documents, with {family.assumption}.",
        f"An effect of a topic is the change of {family.scale} as its share rises from 0 to 1, and "
        "those of all others, or of the reference, fall in proportion.",
        ASSUMED[draws],
    ]
    fixed = [name for name, drawn in (("topics", topics), ("prior", prior)) if not drawn]
    if fixed:
        notes.append(f"Not in the intervals: the uncertainty of {' and '.join(fixed)}.")
    covariates = getattr(model.prior, "covariates", None)
    known = set() if covariates is None or covariates.formula is None else covariates.formula.kinds
    unknown = [name for name in data.columns if name not in known]
    if unknown:
        names = " + ".join(unknown)
        notes.append(
            f"The prior of the topics does not know {', '.join(unknown)}; if topics depend on "
            f"{'them' if len(unknown) > 1 else 'it'}, fit models.stm with prevalence='~ {names}'."
        )
    return tuple(notes)


def _warn(result: Outcomes, acceptance: float) -> None:
    """Warn of chains that cannot be trusted."""
    rhat = result.frame()["rhat"].max()
    if rhat > MAX_RHAT:
        warn(
            f"the chains disagree about a coefficient (R-hat {rhat:.2f}, which should be below "
            f"{MAX_RHAT}); take more num_draws and warmup_steps, or fewer topics",
            ConvergenceWarning,
        )
    if acceptance < MIN_ACCEPTANCE:
        warn(
            f"the outcome refuses {1 - acceptance:.0%} of the documents' moves, because it is "
            "almost determined by the shares; take more num_draws",
            ConvergenceWarning,
        )
