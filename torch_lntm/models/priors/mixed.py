"""MixedPrior, a structural prior with random terms such as ``(1 | author)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.models.priors.covariates import LEVELS, Covariates
from torch_lntm.models.priors.logistic_normal import LogisticNormalPrior
from torch_lntm.models.priors.structural import (
    EVIDENCE_STEPS,
    MAX_PENALTY,
    MIN_PENALTY,
    StructuralPrior,
    drawn_penalty,
)
from torch_lntm.posteriors import Moments
from torch_lntm.solvers.arrow import Arrow, Levels

#: Maximum number of pairs of levels of different random terms.
MAX_PAIRS = 2**22


class LevelEffects(NamedTuple):
    """Effects of the levels of a random term on the prior mean of eta.

    Attributes:
        levels: Values of the column.
        mean: ``(num_levels, latent_dim)`` expected effects given the documents' eta, float64.
        variance: ``(num_levels,)`` variances relative to the prior's ``covariance``, float64.
    """

    levels: tuple[Any, ...]
    mean: Tensor
    variance: Tensor


class MixedPrior(StructuralPrior):
    """Structural prior whose mean also has an effect for each level of some columns.

    eta_d ~ Normal(Γᵀ(1, x_d) + Σ_j b_j[level of d], covariance), where the effects of the levels of
    random term j are Normal(0, covariance / ``level_penalties[j]``). M-steps learn the penalty of
    each term, and of the slopes, from the evidence, so that levels with few documents shrink to 0
    more than levels with many. Levels that no training document has get the effect 0.

    Documents carry only the positions of their levels, so that no array has the size documents ×
    levels. The term with the most levels takes memory and time in proportion to them, whereas the
    other terms may have at most 2²² pairs of levels with the terms beside them.

    Unlike :class:`StructuralPrior`, it integrates all coefficients out of the covariance. D
    documents with scatter S give (pseudo_documents × P + S) / (pseudo_documents + D). With the
    number of coefficients in the denominator too, the covariance would be 29 % too small for 2,000
    levels of 5,000 documents.

    Args:
        num_topics: Number of topics K.
        covariates: Covariates of a formula with at least 1 random term.
        **settings: Settings of :class:`StructuralPrior`. ``penalty`` fixes the penalty of the
            slopes only.

    Attributes:
        level_effects: ``(num_levels, latent_dim)`` effects of all levels, term by term.
        level_penalties: ``(num_random_terms,)`` precision of each term's effects, relative to
            ``covariance``.

    Raises:
        ConfigError: A shape or value is out of range, or terms have too many pairs of levels.

    Example:
        >>> prior = lntm.models.stm(3, posts, "~ party + (1 | year)").prior
        >>> prior.names, prior.effects_of("year").mean.shape
        (('Intercept', 'party[T.right]'), torch.Size([3, 3]))
    """

    fitted_buffers = frozenset({"penalty", "gram", "level_penalties", "level_gram", "level_counts"})
    posterior_statistics = frozenset({"latent_covariance"})
    level_penalties: Tensor
    level_gram: Tensor
    level_counts: Tensor

    def __init__(self, num_topics: int, covariates: Covariates, **settings: Any) -> None:
        super().__init__(num_topics, covariates, **settings)
        sizes = [len(levels) for levels in covariates.random.values()]
        if not sizes:
            raise ConfigError("MixedPrior needs a random term, such as '~ party + (1 | author)'")
        self._levels = Levels(sizes)
        if self._levels.num_pairs > MAX_PAIRS:
            raise ConfigError(
                f"the random terms {', '.join(covariates.random)} have {sizes} levels, and more "
                f"than {MAX_PAIRS:,} pairs of levels; leave out a term, or make its levels coarser"
            )
        effects = torch.zeros(sum(sizes), self.latent_dim, dtype=self.loc.dtype)
        self.level_effects = nn.Parameter(effects)
        self.register_buffer("level_penalties", torch.ones(len(sizes)).double())
        # The Gram matrix of the last M-step's documents, as an arrow. The dense block has the
        # intercept, the covariates, and the levels of all terms but the largest.
        num_dense = 1 + self.num_covariates + self._levels.num_other
        self.register_buffer("gram", torch.zeros(num_dense, num_dense).double())
        self.register_buffer("level_gram", torch.zeros(num_dense, self._levels.largest).double())
        self.register_buffer("level_counts", torch.zeros(self._levels.largest).double())

    # -- documents -------------------------------------------------------------------------------

    def encode(self, corpus: Corpus) -> Corpus:
        """See :meth:`StructuralPrior.encode`. Derives ``"prevalence_levels"`` too."""
        return self.covariates.encode_levels(super().encode(corpus))

    def positions(self, batch: DocumentBatch) -> Tensor:
        """Position of each document's level in every random term.

        Args:
            batch: The documents.

        Returns:
            ``(num_docs, num_random_terms)`` int64; -1 for new levels.

        Raises:
            ConfigError: The batch lacks the positions, or carries those of another formula.
        """
        shape = (batch.num_docs, len(self._levels.sizes))
        if LEVELS not in batch.covariates or tuple(batch.covariates[LEVELS].shape) != shape:
            raise ConfigError(
                "the batch lacks the levels of the prior's random terms "
                f"({', '.join(self.covariates.random)}); make it by model.encode(corpus).batch()"
            )
        return batch.covariates[LEVELS].to(self.loc.device)

    def location(self, batch: DocumentBatch) -> Tensor:
        """See :meth:`NormalPrior.location`. The mean is ``(num_docs, latent_dim)``."""
        return self._add_effects(super().location(batch), self.level_effects, batch)

    def _add_effects(self, values: Tensor, effects: Tensor, batch: DocumentBatch) -> Tensor:
        """Add the effects ``(num_levels, ...)`` of each document's levels to its values."""
        positions = self.positions(batch).mT
        for part, at in zip(effects.split(self._levels.sizes), positions, strict=True):
            # Position -1, of new levels, is the row of zeros at the end.
            values = values + torch.cat([part, part.new_zeros(1, *part.shape[1:])])[at]
        return values

    def regressors(
        self, batch: DocumentBatch, *, of_levels: bool = True
    ) -> tuple[Tensor, Tensor] | None:
        """See :meth:`DocumentPrior.regressors`."""
        return None if of_levels else super().regressors(batch)

    @property
    def num_changes(self) -> int:  # type: ignore[override]
        """Number of rows of :meth:`draw_changes`: dense block, then largest term. 0 if unfitted."""
        return sum(self.level_gram.shape) if float(self.gram[0, 0]) else 0

    def mean_shift(self, batch: DocumentBatch, changes: Tensor) -> Tensor:
        """See :meth:`DocumentPrior.mean_shift`."""
        u = self.standardised(batch)
        size, num_dense = 1 + self.num_covariates, len(self.gram)
        shift = changes[:, :1] + u @ changes[:, 1:size]
        by_row = changes.transpose(0, 1)
        levels = self._levels.join(by_row[size:num_dense], by_row[num_dense:])
        return self._add_effects(shift.transpose(0, 1), levels, batch).transpose(0, 1)

    def draw_changes(self, observed: Tensor, white: Tensor) -> Tensor:
        """See :meth:`DocumentPrior.draw_changes`.

        The information about the coefficients is XᵀX ⊗ O + R ⊗ Σ⁻¹, for the average O of the
        documents' information. It is an arrow in each eigenvector of LᵀOL, with Σ = LLᵀ.
        """
        tril = self.scale_tril.detach().double()
        values, vectors = torch.linalg.eigh(tril.mT @ observed @ tril)
        # Eigenvectors have no unique signs, but those of the numbers and of the result cancel.
        white = white @ vectors
        gram = Arrow(self.gram, self.level_gram, self.level_counts)
        draws = torch.zeros_like(white)
        for k, value in enumerate(values.tolist()):
            # The shift of all logits has no information, and leaves theta unchanged.
            # Share of the prior's information, up to which a direction of eta counts as unobserved.
            if value > 1e-6:
                scaled = Arrow(value * gram.dense, value * gram.crossed, value * gram.diagonal)
                rows = white[:, :, k].mT
                system = self._penalised(scaled)
                draws[:, :, k] = torch.cat(system.draw(*rows.split(list(gram.crossed.shape)))).mT
        return draws @ (tril @ vectors).mT

    # -- the M-step ------------------------------------------------------------------------------

    def statistics(self, moments: Moments, batch: DocumentBatch) -> dict[str, Tensor]:
        """See :meth:`NormalPrior.statistics`.

        Returns:
            The sums of :class:`StructuralPrior`, and ``latent_covariance`` Σ_d V_d. For the levels
            of all terms, one after the other: ``level_covariates`` Σ_d (1, u) and ``level_latent``
            Σ_d E eta over the documents of each level. ``level_pairs`` is the number of documents
            of each pair of levels of 2 terms, in one vector.
        """
        u, mean = self.standardised(batch), moments.mean.double()
        x = torch.cat([u.new_ones(batch.num_docs, 1), u], 1)
        rows = self.positions(batch)
        return super().statistics(moments, batch) | {
            "latent_covariance": moments.covariance_sum().double(),
            "level_covariates": self._levels.sums(x, rows),
            "level_latent": self._levels.sums(mean, rows),
            "level_pairs": self._levels.pairs(x[:, 0], rows),
        }

    def _gram_of(self, num_docs: float, sums: Mapping[str, Tensor]) -> Arrow:
        """Gram matrix of intercept, covariates and levels."""
        size = 1 + self.num_covariates
        columns = self.gram.new_zeros(size, size)
        columns[0, 0] = num_docs
        columns[0, 1:] = columns[1:, 0] = sums["covariate_sum"]
        columns[1:, 1:] = sums["covariate_outer"]
        crossed = sums["level_covariates"]
        return self._levels.gram(columns, crossed, crossed[:, 0], sums["level_pairs"])

    def _penalised(self, gram: Arrow) -> Arrow:
        """Precision of the coefficients given eta, relative to the covariance's inverse."""
        other, main = self._levels.divide(self._levels.repeat(self.level_penalties))
        return gram.plus(torch.cat([super()._penalties(), other]), main)

    @torch.no_grad()
    def _fit_mean(
        self, num_docs: float, sums: Mapping[str, Tensor], learn: bool = True
    ) -> tuple[Tensor, Tensor, float]:
        """See :meth:`LogisticNormalPrior._fit_mean`. Sets slopes and effects, learns penalties."""
        gram = self._gram_of(num_docs, sums)
        other, main = self._levels.divide(sums["level_latent"])
        dense = torch.cat([sums["latent_sum"][None], sums["covariate_latent"], other])
        if learn:
            self._learn_penalties(gram, dense, main, sums["latent_covariance"] / num_docs)
        first, levels = self._penalised(gram).solve(dense, main)
        size = 1 + self.num_covariates
        self.slopes.copy_(first[1:size])
        self.level_effects.copy_(self._levels.join(first[size:], levels))
        self.gram.copy_(gram.dense)
        self.level_gram.copy_(gram.crossed)
        self.level_counts.copy_(gram.diagonal)
        scatter = sums["latent_outer"] - first.mT @ dense - levels.mT @ main
        return first[0], scatter, num_docs

    def _learn_penalties(self, gram: Arrow, dense: Tensor, main: Tensor, spread: Tensor) -> None:
        """Update the penalties of the slopes and of each term by the evidence.

        The penalty of term j is

            r_j = dim γ_j / (tr(Σ⁻¹Γ_jᵀΓ_j) + Σ_d |a_dj|² tr(Σ⁻¹V_d)).

        γ_j = P_j − r_j tr[G⁻¹]_jj is the number of determined coefficients among the P_j rows Γ_j.
        G is XᵀX + R, and a_d is G⁻¹x_d. This is *MacKay 1992, eq. 27*, for outcomes known up to a
        covariance V_d. The average of the documents' covariances stands for each V_d.

        Args:
            gram: XᵀX.
            dense: ``(num_dense, latent_dim)`` first rows of XᵀM, for the posterior means M.
            main: ``(num_levels, latent_dim)`` rows of the largest term.
            spread: ``(latent_dim, latent_dim)`` average posterior covariance of a document.
        """
        dense, main = self._whitened(dense), self._whitened(main)
        trace = (torch.cholesky_inverse(self.scale_tril.double()) * spread).sum()
        size = 1 + self.num_covariates
        for _ in range(EVIDENCE_STEPS):
            system = self._penalised(gram)
            squares = [rows.square().sum(1) for rows in system.solve(dense, main)]
            spreads = system.sandwich_diagonal(gram)
            variances = system.inverse_diagonal()
            lengths = torch.cat(squares) + trace * torch.cat(spreads)
            by_row = torch.stack([torch.cat(variances), lengths], 1)
            if self.learn_penalty and self.num_covariates:
                self.penalty.copy_(self._updated(self.penalty, by_row[1:size]))
            levels = self._levels.join(by_row[size : len(dense)], by_row[len(dense) :])
            for j, part in enumerate(levels.split(self._levels.sizes)):
                self.level_penalties[j] = self._updated(self.level_penalties[j], part)

    def _updated(self, penalty: Tensor, rows: Tensor) -> Tensor:
        """A penalty after one update.

        Args:
            penalty: The penalty.
            rows: ``(num_rows, 2)`` variance and expected squared length of each coefficient.
        """
        variance, length = rows.sum(0)
        determined = (len(rows) - penalty * variance).clamp_min(0.0)
        new = self.latent_dim * determined / length.clamp_min(1e-300)
        return new.clamp(MIN_PENALTY, MAX_PENALTY)

    @torch.no_grad()
    def draw_(self, num_docs: float, rng: np.random.Generator, **sums: Tensor) -> None:
        """See :meth:`StructuralPrior.draw_`. Penalties of the random terms are drawn likewise."""
        super().draw_(num_docs, rng, **sums)
        tril = self.scale_tril.double()
        white = torch.linalg.solve_triangular(tril, self.level_effects.double().mT, upper=False)
        for j, part in enumerate(white.split(self._levels.sizes, 1)):
            self.level_penalties[j] = drawn_penalty(part, rng)

    def _draw_change(self, num_docs: float, rng: np.random.Generator) -> Tensor:
        """See :meth:`LogisticNormalPrior._draw_change`. Rows: dense block, then largest term."""
        noise = [
            torch.from_numpy(rng.standard_normal((size, self.latent_dim))).to(self.gram)
            for size in self.level_gram.shape
        ]
        return torch.cat(self._system().draw(*noise))

    def _move_mean(self, change: Tensor) -> None:
        size, num_dense = 1 + self.num_covariates, len(self.gram)
        super()._move_mean(change[:size])
        self.level_effects.add_(self._levels.join(change[size:num_dense], change[num_dense:]))

    # -- results ---------------------------------------------------------------------------------

    def _system(self) -> Arrow:
        """Precision of the coefficients given eta, of the last M-step's documents."""
        self._require_fit()
        return self._penalised(Arrow(self.gram, self.level_gram, self.level_counts))

    def _row_covariance(self) -> Tensor:
        """See :meth:`StructuralPrior._row_covariance`. The effects of levels are integrated out."""
        size = 1 + self.num_covariates
        return self._system().dense_inverse[:size, :size]

    def effects_of(self, column: str) -> LevelEffects:
        """Effects of the levels of a random term.

        Args:
            column: Column of the term.

        Raises:
            ConfigError: The column has no random term.

        Example:
            >>> by_year = lntm.models.stm(3, posts, "~ party + (1 | year)")
            >>> by_year.prior.effects_of("year").levels
            (2001, 2002, 2003)
        """
        random = self.covariates.random
        if column not in random:
            raise ConfigError(
                f"the prior has no random term of {column!r}; it has {', '.join(random)}"
            )
        at = list(random).index(column)
        if float(self.gram[0, 0]):
            dense, main = self._system().inverse_diagonal()
            variances = self._levels.join(dense[1 + self.num_covariates :], main)
        else:
            variances = self._levels.repeat(1 / self.level_penalties)
        effects = self.level_effects.detach().double().split(self._levels.sizes)[at]
        return LevelEffects(random[column], effects, variances.split(self._levels.sizes)[at])

    def log_prior(self) -> Tensor:
        """See :meth:`LogisticNormalPrior.log_prior`. Evidence of the coefficients is added.

        With the coefficients Γ integrated out, their prior and their posterior's entropy add
        ½ dim (log|R| − log|XᵀX + R|) − ½ tr(Σ⁻¹ΓᵀRΓ). The intercept's flat prior is left out of
        R. Before the first M-step the determinants are absent.
        """
        prior = LogisticNormalPrior.log_prior(self)
        sizes = torch.tensor([self.num_covariates, *self._levels.sizes], device=self.loc.device)
        penalties = torch.cat([self.penalty[None], self.level_penalties])
        lengths = self._whitened(torch.cat([self.slopes, self.level_effects])).square().sum(1)
        prior = prior - 0.5 * (penalties.repeat_interleave(sizes) * lengths).sum()
        if float(self.gram[0, 0]) == 0:
            return prior
        determinants = (sizes * penalties.log()).sum() - self._system().log_det
        return prior + 0.5 * self.latent_dim * determinants

    def averaged(self) -> LogisticNormalPrior:
        """See :meth:`StructuralPrior.averaged`. Levels are averaged over too."""
        self._require_fit()
        gram = Arrow(self.gram, self.level_gram, self.level_counts)
        other, main = self._levels.divide(self.level_effects.detach().double())
        dense = torch.cat([self.loc[None].detach(), self.slopes.detach(), other]).double()
        first, last = gram.times(dense, main)
        num_docs = self.gram[0, 0]
        mean = first[0] / num_docs
        spread = (dense.mT @ first + main.mT @ last) / num_docs - torch.outer(mean, mean)
        return self._plain(mean, spread)

    def at_new_levels(self) -> StructuralPrior:
        """Prior of documents whose levels are all new.

        Effects of new levels have mean 0 and the covariance of their prior, which multiplies the
        covariance of eta by 1 + Σ_j 1/r_j, where r_j are the penalties of the random terms.

        Returns:
            A structural prior of the fixed terms. ``model.with_parts(model.prior.at_new_levels())``
            is a model of new documents.
        """
        factor = 1 + float((1 / self.level_penalties).sum())
        prior = StructuralPrior(
            self.num_topics,
            self.covariates.without_random(),
            loc=self.loc.detach(),
            slopes=self.slopes.detach(),
            covariance=self.covariance.detach().double() * factor,
            penalty=float(self.penalty),
            **self._settings,
        ).to(self.loc.device)
        size = 1 + self.num_covariates
        prior.gram.copy_(self.gram[:size, :size])
        return prior

    def extra_repr(self) -> str:
        """Sizes and prior, for ``repr``."""
        terms = ", ".join(
            f"{size} levels of {name}"
            for size, name in zip(self._levels.sizes, self.covariates.random, strict=True)
        )
        return f"{super().extra_repr()}; random effects of {terms}"
