"""Outcomes: effects of topics, groups and columns on an outcome, with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from pyro.ops.stats import split_gelman_rubin

from torch_lntm import frames
from torch_lntm.errors import require_level
from torch_lntm.inference.chains.samples import effective_sample_size, normal_scores
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.topic_groups import topics_of
from torch_lntm.outcomes.families import Array
from torch_lntm.plotting.lines import Series, plot_effects
from torch_lntm.plotting.style import NEUTRAL, topic_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class Outcomes:
    """How an outcome depends on topics and columns: the result of :func:`estimate`.

    Attributes:
        formula: Outcome and columns.
        family: Distribution of the outcome.
        draws: ``"joint"`` or ``"cut"``.
        names: Names of the columns besides the topics.
        coefficients: ``(num_chains, num_draws, num_topics + num_columns)`` draws of the expected
            outcome of a document of each topic alone, where all columns are 0, and of the columns'
            coefficients; in the units of outcome and columns, or in log odds or log rates.
        shares: ``(num_topics,)`` mean shares of the topics, by which contrasts weigh them.
        groups: Groups of topics, if any.
        model: The model.
        notes: Sentences that describe the regression and what it assumes.
    """

    formula: str
    family: str
    draws: str
    names: tuple[str, ...]
    coefficients: Array
    shares: Array
    groups: TopicGroups | None
    model: TopicModel
    notes: tuple[str, ...]

    def frame(
        self, level: float = 0.95, *, reference: int | str | None = None, per: float = 1.0
    ) -> pd.DataFrame:
        """Effects of topics, of groups of topics, and of the columns.

        The effect of a topic is a contrast, because a share can rise only as others fall: the
        outcome at this topic less the mean outcome at the topics of the reference, weighted by
        their mean shares.

        Args:
            level: Probability of the intervals.
            reference: Topic, by number or name, or group to compare with. By default, each topic is
                compared with all others together.
            per: Rise of a topic's share, such as 0.1 for ten percentage points.

        Returns:
            A row for each topic, group and column: ``term``, ``name`` (the topic's name or
            words that tell it, if there are any), ``estimate`` (the posterior mean), ``std_error``,
            ``lower`` and ``upper``, and the diagnostics of the chains: ``ess``, the effective
            number of draws, and ``rhat``, which is 1 where chains agree.

        Raises:
            ConfigError: The level is not between 0 and 1, or there is no such reference.
        """
        require_level(level)
        terms, labels, rows = self._contrasts(reference)
        at_topics, of_columns = np.split(self.coefficients, [len(self.shares)], -1)
        draws = np.concatenate([at_topics @ (per * rows.T), of_columns], -1)
        tails = [(1 - level) / 2, (1 + level) / 2]
        lower, upper = np.quantile(draws.reshape(-1, draws.shape[-1]), tails, axis=0)
        scores = normal_scores(torch.from_numpy(draws))
        frame = pd.DataFrame(
            {
                "term": [*terms, *self.names],
                "name": [*labels, *[""] * len(self.names)],
                "estimate": draws.mean((0, 1)),
                "std_error": draws.std((0, 1), ddof=1),
                "lower": lower,
                "upper": upper,
                "ess": effective_sample_size(scores).numpy(),
                "rhat": split_gelman_rubin(torch.from_numpy(draws)).numpy(),
            }
        )
        return frame if frame["name"].any() else frame.drop(columns="name")

    def _contrasts(self, reference: int | str | None) -> tuple[list[str], list[str], Array]:
        """Terms, labels, and rows ``(num_terms, num_topics)`` from outcomes at topics to effects.

        Topics or groups that equal the reference are left out.
        """
        size = len(self.shares)
        every = topic_labels(self.model, numbered=False)
        labels = ["" if label == str(k) else label for k, label in enumerate(every)]
        parts = [(f"topic {k}", labels[k], [k]) for k in range(size)]
        if self.groups is not None:
            members = zip(self.groups.names, self.groups.members, strict=True)
            parts += [(name, "", list(topics)) for name, topics in members]
        against = None
        if reference is not None:
            against = topics_of(self.model, self.groups, reference, "reference")
        terms, names, rows = [], [], []
        for term, label, topics in parts:
            others = [k for k in range(size) if k not in topics] if against is None else against
            if others and others != topics:
                terms.append(term)
                names.append(label)
                rows.append(self._mean_of(topics) - self._mean_of(others))
        return terms, names, np.array(rows)

    def _mean_of(self, topics: list[int]) -> Array:
        """Weights ``(num_topics,)`` of a mean over some topics by their shares."""
        weights = np.zeros(len(self.shares))
        weights[topics] = self.shares[topics]
        return weights / weights.sum()

    @property
    def measure(self) -> str:
        """What the effects change, in words, such as ``"the log odds of vote"``."""
        scale = {"binomial": "the log odds of ", "poisson": "the log rate of "}.get(self.family, "")
        return scale + self.formula.partition("~")[0].strip()

    def plot(
        self,
        level: float = 0.95,
        *,
        reference: int | str | None = None,
        per: float = 1.0,
        ax: Axes | None = None,
    ) -> Axes:
        """Plot the effects of topics and groups in :meth:`frame` with their intervals.

        Args:
            level: Probability of the intervals.
            reference: See :meth:`frame`.
            per: See :meth:`frame`.
            ax: Axes to draw into. Defaults to a new figure.
        """
        rows = self.frame(level, reference=reference, per=per).iloc[: -len(self.names) or None]
        names = rows["term"] + (" " + rows["name"]).str.rstrip() if "name" in rows else rows["term"]
        values = rows[["estimate", "lower", "upper"]].to_numpy()
        series = [Series("", names.tolist(), values)]
        along = f"Change of {self.measure} per {100 * per:g} percentage points"
        ax = plot_effects({"": series}, "text", "", along, ax=ax)
        ax.axvline(0, color=NEUTRAL, linewidth=0.8, zorder=0)
        return ax

    def format(
        self, level: float = 0.95, *, reference: int | str | None = None, per: float = 1.0
    ) -> str:
        """Notes and :meth:`frame` as text."""
        return f"{self!r}\n\n{frames.render(self.frame(level, reference=reference, per=per))}"

    def __repr__(self) -> str:
        frame, (chains, draws, _) = self.frame(), self.coefficients.shape
        checked = (
            f"{chains} chains of {draws} draws: worst R-hat {frame['rhat'].max():.3f}, fewest "
            f"effective draws {frame['ess'].min():.0f}."
        )
        head = f"Outcomes({self.formula!r}, family={self.family!r}, draws={self.draws!r})"
        return "\n  ".join([head, *self.notes, checked])
