"""``effects.estimate``, which regresses topic proportions by the method of composition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.effects.design import Design
from torch_lntm.effects.linear import regress_linear
from torch_lntm.effects.logit import regress_logit
from torch_lntm.effects.outcome import Outcome, parse_outcome
from torch_lntm.effects.regression import StandardErrors
from torch_lntm.effects.result import Effects, Link
from torch_lntm.errors import ConfigError, CorpusWarning, knows_its_options, require_one, warn
from torch_lntm.formulas import Formula
from torch_lntm.formulas.columns import Survey, read_survey
from torch_lntm.inference import DrawSource, ThetaDraws, theta_draws
from torch_lntm.inference.fitted import Fitted
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.model import require_model
from torch_lntm.models.names import find_topics
from torch_lntm.models.topic_groups import as_groups
from torch_lntm.plotting.style import topic_labels
from torch_lntm.reports.prevalence import SHORT_DOCUMENT

NO_ROBUST_ERRORS = (
    "with random terms, standard errors are those of the model; leave out clusters=, strata= and "
    "standard_errors=, or the random terms"
)


@torch.no_grad()
@knows_its_options
def estimate(
    model: TopicModel | Fitted,
    source: DrawSource | Tensor | NDArray[Any] | None,
    corpus: Corpus | None,
    formula: str,
    *,
    link: Link = "logit",
    topics: Sequence[int | str] | None = None,
    groups: Mapping[str, Sequence[int | str]] | TopicGroups | None = None,
    outcome: str | None = None,
    standard_errors: StandardErrors | None = None,
    clusters: Any = None,
    strata: Any = None,
    weights: Any = None,
    num_draws: int | None = None,
    coefficients: bool = True,
    seed: int = 0,
    progress: bool = True,
) -> Effects:
    """Estimates how the topic proportions depend on the documents' metadata, by regression.

    Since the proportions are not observed, the method of composition draws them repeatedly from
    their posteriors (*Treier & Jackman 2008*). Each draw is regressed on the columns of the
    formula, and the coefficients and covariances are pooled over the draws (*Rubin 1987*). The
    result's table, predictions, differences and plots all come from this regression.

    The intervals therefore cover the uncertainty of the regression and of the documents'
    posteriors. With ``coefficients``, they also cover that of the prior mean's coefficients, which
    all documents share. The topics' words and the prior's covariance are taken as known, unless the
    draws come from ``inference.joint_draws``.

    Args:
        model: The fitted model. It may have covariates (``models.stm``), but needs none. A result
            of a fit, a run or a codebook gives its model, and by default its source, documents and
            groups.
        source: What draws the documents' proportions: a guide of the model; the chains that a fit
            keeps; new chains, ``DocumentHMC(model)``, which are exact and slower; draws from
            ``inference.theta_draws`` or ``inference.joint_draws``; or an array
            ``(num_draws, num_docs, num_topics)``.
        corpus: The documents, with the formula's columns among their metadata. Documents without
            words are left out.
        formula: The columns, such as ``"~ party * bs(date, df=6)"`` (``docs/structural.md``). The
            estimates for terms that are absent from the model's own formula are shrunk towards no
            effect. A random term such as ``(1 | author)`` gives each author an effect, whose
            variance over authors is estimated for each topic and draw.
        link: The regression. ``"logit"`` is a multinomial logit of all topics together, whose
            expected proportions lie between 0 and 1 and sum to 1; its intervals hold the truth more
            often, above all for strong effects of numbers. ``"identity"`` is a linear regression,
            as in R's stm.
        topics: Topics to regress, by number or name. Defaults to all topics, or to none if there
            are groups.
        groups: Groups of topics to regress, such as ``{"economy": [3, 7]}``; see
            :class:`TopicGroups`. A group's proportion is the sum over its topics, draw by draw.
        outcome: Expression of topics and groups to regress instead, computed draw by draw: a sum or
            difference, a ratio such as ``"economy / (economy + culture)"``, or its logarithm,
            ``"log(economy / culture)"``. Topics go by name or number, and ``groups`` adds names.
            The logit takes sums, differences and ratios between 0 and 1.
        standard_errors: ``"classical"``, or ``"HC1"`` or ``"HC3"``, which are robust to unequal
            variances. Defaults to ``"HC1"`` for the logit and to ``"HC3"`` for the linear
            regression, because proportions near 0 vary less. With random terms the covariance is
            that of the model, and only ``"classical"`` is accepted.
        clusters: Clusters of dependent documents: the name of a column, or ``(num_docs,)`` values,
            which go by the index if they are a series. Standard errors are then robust to any
            dependence within a cluster. Refused with random terms.
        strata: Strata from which the clusters, or else the documents, were sampled, given like
            ``clusters``. Standard errors are then those within strata (``docs/structural.md``).
            Each cluster lies in one stratum, and each stratum has at least 2. Refused with random
            terms.
        weights: Survey or frequency weights of the documents, given like ``clusters``: the name of
            a column of numbers, or ``(num_docs,)`` numbers. Only their ratios matter, documents of
            weight 0 are left out, and predictions average over the others by weight. Robust errors
            are then those of a survey, by design (``docs/structural.md``). Defaults to equal
            weights.
        num_draws: Draws of each document. Defaults to 50, or to fewer for large corpora, but at
            least 25. If ``source`` consists of draws, all of them are used.
        coefficients: Draw the prior mean's coefficients too, if the prior has any.
        seed: Seed of a guide's draws; chains have a seed of their own.
        progress: Show progress bars on standard error.

    Returns:
        The effects, with tables, predictions, differences and plots.

    Raises:
        ConfigError: The formula, the draws or a setting cannot be used, or the other terms
            determine a term.
        CorpusError: A column is missing, or has missing values.
        IncompatibleGuideError: The guide belongs to another model.
        NumericalError: The logit did not converge.

    Warns:
        UnreliableEstimateWarning: Ctrl-C ended the regressions of the logit early; the effects are
            those of the draws until then, if there are 2 or more.
        CorpusWarning: A document or a cluster alone determines an effect, so that its robust
            standard error does not exist: it is classical for a document, and infinite for a
            cluster. Or a topic is almost absent for some values of the columns.

    Example:
        >>> effects = lntm.effects.estimate(model, guide, posts, "~ party")
        >>> effects.table()["term"].tolist()[:2]
        ['Intercept', 'party[T.right]']
    """
    of, drawn, groups, corpus = _of_fit(model, source, topics, groups, corpus)
    require_one(get_args(Link), link=link)
    require_one((None, *get_args(StandardErrors)), standard_errors=standard_errors)
    regressed = _regressed(of, topics, groups, outcome, link)
    survey = read_survey(corpus, weights, clusters, strata)
    rows, sort = survey.rows, "documents" if weights is None else "documents, weighted,"
    fitted, design = make_design(corpus, formula, survey)
    kind: StandardErrors = standard_errors or ("HC1" if link == "logit" else "HC3")
    columns = corpus.metadata.iloc[rows][list(fitted.kinds)]
    if fitted.random:
        method = f"random effects of {' and '.join(fitted.random)}"
        if str(survey) or standard_errors not in (None, "classical"):
            raise ConfigError(f"formula {formula!r}: {NO_ROBUST_ERRORS}")
    else:
        kind, method = ("HC1", str(survey)) if str(survey) else (kind, kind)
        if method != "classical":
            _warn_of_lone_documents(design, columns, rows)
    options: dict[str, Any] = {"seed": seed, "coefficients": coefficients, "progress": progress}
    proportions = theta_draws(drawn, corpus, num_draws, model=of, rows=rows, **options).several()
    parts = partial(regressed.parts, proportions, rows, link)
    settings = (design, parts, regressed.responses, kind)
    by_logit = link == "logit"
    regression = regress_logit(*settings, progress) if by_logit else regress_linear(*settings)
    used = proportions.take(num_draws=len(regression.deviations))  # fewer after Ctrl-C
    _warn_of_separation(formula, regressed.labels(proportions.model), regression.separated)
    on = f"{sort} on {fitted.text}"
    return Effects(
        formula=fitted,
        topics=regressed.names,
        link=link,
        regression=regression,
        design=design,
        columns=columns,
        notes=_notes(outcome, on, link, method, used, corpus.lengths[rows]),
        model=proportions.model,
        num_draws=used.num_draws,
        interrupted=used.num_draws < proportions.num_draws,
        measure=regressed.measure,
        num_chains=proportions.num_chains,
        constant=regressed.constant,
    )


def _notes(
    outcome: str | None, on: str, link: Link, method: str, draws: ThetaDraws, lengths: Any
) -> tuple[str, ...]:
    """Describes the regression, and which uncertainty the intervals include or leave out."""
    what = outcome or "topic proportions"
    kind = "multinomial logit" if link == "logit" else "linear"
    sources = "; ".join(draws.sources_of_uncertainty)
    notes = [
        f"A {kind} regression of {what} in {len(draws.rows):,} {on}.",
        f"In the intervals: the regression ({method}); {sources} ({draws.num_draws} draws).",
    ]
    mean_length = float(lengths.mean())
    is_short = mean_length < SHORT_DOCUMENT
    if draws.fixed:
        large = f", which is large for documents of {mean_length:.0f} tokens" if is_short else ""
        fixed = " and of ".join(draws.fixed)
        notes.append(f"Not in the intervals: the uncertainty of {fixed}{large}.")
    if draws.fixed and is_short:
        notes.append(
            "The intervals are therefore too narrow, and effects are too small if the posteriors "
            "are approximate; lntm.inference.joint_draws, or torch-lntm effects --source joint, "
            "includes it."
        )
    if is_short:
        notes.append(
            "If the topics were found in these documents, effects may be too large, because topics "
            "learn the chance of few words too; estimate in others."
        )
    return tuple(notes)


def _warn_of_separation(text: str, labels: Sequence[str], topics: Sequence[int]) -> None:
    """Warn of topics that almost vanish at some values of the columns."""
    if topics:
        warn(
            f"formula {text!r} separates documents without the topics "
            f"{', '.join(labels[k] for k in topics[:5])}: their expected proportions are almost 0 "
            "for some values of the columns, and intervals of the logit are unreliable there; use "
            "link='identity' (--link identity), or a formula with fewer terms",
            CorpusWarning,
        )


def make_design(corpus: Corpus, text: str, survey: Survey) -> tuple[Formula, Design]:
    """The formula and the design of the documents that count.

    Others are ignored, with any level that only they have or value that they lack.
    """
    selected = corpus.metadata.iloc[survey.rows]
    fitted, matrix = Formula.fit(text, selected)
    positions = fitted.positions(selected) if fitted.random else None
    sizes = tuple(map(len, fitted.random.values()))
    try:
        design = Design(fitted.names, matrix, *survey[1:], positions, sizes)
    except ConfigError as error:
        raise ConfigError(f"formula {text!r}: {error}") from None
    return fitted, design


def _warn_of_lone_documents(design: Design, columns: pd.DataFrame, rows: NDArray[np.int64]) -> None:
    """Warn of documents or clusters that alone determine coefficients."""
    if design.clusters is None:
        outcome = "standard errors take the classical variance there"
        lone = [
            (f"document {rows[d]}, counted from 0,", [d], design.x[d, :, None])
            for d in design.alone.tolist()
        ]
    else:
        outcome = "standard errors of such effects are infinite"
        lone = [("a cluster of documents", *found) for found in design.unknown]
    texts = []
    for place, documents, directions in lone[:3]:
        values = {name: set(column) for name, column in columns.iloc[documents].items()}
        shared = [f"{name} {of.pop()!r:.40}" for name, of in values.items() if len(of) == 1]
        found = f" ({', '.join(shared)})" if shared else ""
        texts.append(f"{place}{found} alone determines {design.determined(directions)}")
    if lone:
        more = f", and {len(lone) - 3} more" if len(lone) > 3 else ""
        warn(f"{'; '.join(texts)}{more}: {outcome}", CorpusWarning)


class _Regressed(NamedTuple):
    """What is regressed.

    Attributes:
        names: Numbers of topics and names of groups, or the expression of an outcome.
        responses: ``(num_names, num_columns)`` matrix from the columns of :meth:`parts`.
        outcome: The outcome, if there is one.
    """

    names: tuple[int | str, ...]
    responses: Tensor
    outcome: Outcome | None = None

    @property
    def measure(self) -> Literal["proportion", "value"]:
        """Whether a proportion is regressed, or an outcome beyond 0 or 1."""
        return "proportion" if self.outcome is None else self.outcome.measure

    @property
    def constant(self) -> tuple[int, ...]:
        """Positions of sums over all topics, each as often as the others."""
        low, high = self.responses.aminmax(dim=1)
        return tuple(((low == high) & (self.responses.shape[1] > 1)).nonzero()[:, 0].tolist())

    def parts(
        self, draws: ThetaDraws, rows: NDArray[np.int64], link: Link
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Columns to regress, in parts of the documents: the topics' proportions, or a ratio."""
        for part in draws:
            theta = part.theta.double()
            if self.outcome is not None:
                theta = self.outcome.transform(theta, part.rows, link)
            yield torch.from_numpy(np.searchsorted(rows, part.rows)), theta

    def labels(self, model: TopicModel) -> list[str]:
        """Labels of the columns of a logit."""
        if self.outcome is None or self.outcome.below is None:
            return topic_labels(model)
        return [self.outcome.text, f"1 − {self.outcome.text}"]


def _regressed(
    model: TopicModel,
    topics: Sequence[int | str] | None,
    groups: Any,
    outcome: str | None,
    link: Link,
) -> _Regressed:
    """The topics and groups to regress, or an outcome of them."""
    found, names = as_groups(model, groups), model.topic_names
    every = torch.eye(model.num_topics).double()
    of_groups = () if found is None else found.names
    sums = every[:0] if found is None else found.sums(every).mT
    if outcome is not None:
        if topics is not None:
            raise ConfigError("topics and outcome are given; expected one of them")
        known = (*map(str, range(len(every))), *names, *of_groups)
        rows = dict(zip(known, torch.cat([every, every, sums]), strict=True))
        of = parse_outcome(outcome, rows, model.num_topics)
        return _Regressed((of.text,), of.responses(link), of)
    numbers = [] if found else list(range(model.num_topics))
    if topics is not None:
        numbers = find_topics(names, topics)
    return _Regressed((*numbers, *of_groups), torch.cat([every[numbers], sums]))


def _of_fit(model: Any, source: Any, topics: Any, groups: Any, corpus: Any) -> tuple[Any, ...]:
    """Model, source, groups and documents, of which a fit gives what is missing."""
    if isinstance(model, Fitted):
        groups = model.groups if groups is None and topics is None else groups
        source = model.source if source is None else source
        model, corpus = model.model, model.check_corpus(corpus)
    require_model(model)
    corpus = as_corpus(corpus)
    if isinstance(source, Tensor | np.ndarray):
        source = ThetaDraws.of(torch.as_tensor(source), model)
        if len(source.rows) != corpus.num_docs:
            raise ConfigError(f"draws of {len(source.rows)} documents; expected {corpus.num_docs}")
    return model, source, groups, corpus
