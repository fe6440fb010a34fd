"""Regressions of an outcome on topic shares and columns, as steps of a Markov chain."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: Standard deviation of the coefficients' normal prior: in standard deviations of a normal outcome,
#: and in log odds or log rates otherwise, per standard deviation of a column.
PRIOR_SCALE = 25.0
#: Newton steps to the mode of the coefficients, and the relative decrement at which they end.
NEWTON_STEPS, TOLERANCE = 50, 1e-10
#: Degrees of freedom of proposals, whose heavy tails let a chain return from anywhere.
FREEDOM = 5.0


class Family(ABC):
    """The distribution of an outcome given topic shares theta and columns x.

    Its linear predictor is m_d = θ_dᵀβ + x_dᵀγ. Because shares sum to 1, it needs no intercept.
    The coefficients (β, γ) have independent priors Normal(0, ``PRIOR_SCALE``²), in which columns
    have mean 0 and standard deviation 1.

    Args:
        y: ``(num_docs,)`` outcomes.
        x: ``(num_docs, num_columns)`` columns besides the shares.
        num_topics: Number of topics K.

    Attributes:
        coefficients: ``(num_topics + num_columns,)`` current β and γ, in standard units.
    """

    #: What a coefficient changes, in words.
    scale: str
    #: Assumption about the outcome, in words.
    assumption: str

    def __init__(self, y: Array, x: Array, num_topics: int) -> None:
        self.y, self.num_topics = y, num_topics
        self.means, self.scales = x.mean(0), x.std(0)
        self.x = (x - self.means) / self.scales
        self.coefficients = np.zeros(num_topics + x.shape[1])

    def predictor(self, theta: Array) -> Array:
        """The linear predictor ``(num_docs,)`` at shares ``(num_docs, num_topics)``."""
        k = self.num_topics
        return theta @ self.coefficients[:k] + self.x @ self.coefficients[k:]

    @abstractmethod
    def log_density(self, predictor: Array) -> Array:
        """Log density of each outcome, up to a constant of the document, ``(num_docs,)`` nats."""

    @abstractmethod
    def draw_(self, theta: Array, rng: np.random.Generator) -> None:
        """Draw the coefficients, and other parameters, given the shares."""

    def in_units(self) -> Array:
        """The coefficients in the units of outcome and columns."""
        k = self.num_topics
        slopes = self.coefficients[k:] / self.scales
        return np.concatenate([self.coefficients[:k] - self.means @ slopes, slopes])


class Normal(Family):
    """y ~ Normal(m, σ²), with σ² ~ inverse-Gamma(½, ½) in units of the outcome's variance."""

    scale = "the outcome"
    assumption = "normal errors of equal variance"

    def __init__(self, y: Array, x: Array, num_topics: int) -> None:
        super().__init__(y, x, num_topics)
        self.centre, self.unit = y.mean(), y.std()
        self.y, self.variance = (y - self.centre) / self.unit, 1.0

    def log_density(self, predictor: Array) -> Array:
        """See :meth:`Family.log_density`."""
        return -0.5 * (self.y - predictor) ** 2 / self.variance

    def draw_(self, theta: Array, rng: np.random.Generator) -> None:
        """See :meth:`Family.draw_`; each given the other."""
        z = np.concatenate([theta, self.x], 1)
        precision = z.T @ z / self.variance
        precision[np.diag_indices_from(precision)] += PRIOR_SCALE**-2
        upper = np.linalg.cholesky(precision).T
        mean = np.linalg.solve(precision, z.T @ self.y / self.variance)
        self.coefficients = mean + np.linalg.solve(upper, rng.standard_normal(len(mean)))
        squares = ((self.y - self.predictor(theta)) ** 2).sum()
        self.variance = (0.5 + 0.5 * squares) / rng.gamma(0.5 + 0.5 * len(self.y))

    def in_units(self) -> Array:
        """See :meth:`Family.in_units`."""
        units = super().in_units() * self.unit
        units[: self.num_topics] += self.centre
        return units


class Generalised(Family):
    """Families whose coefficients are proposed near their mode given the shares, by Newton steps.

    The proposal does not depend on the present coefficients: it is a t distribution around the
    mode, as wide as the curvature there says (*Gamerman 1997*).
    """

    @abstractmethod
    def slopes(self, predictor: Array) -> tuple[Array, Array]:
        """First derivative of :meth:`log_density` in m, and the second one's negative."""

    def draw_(self, theta: Array, rng: np.random.Generator) -> None:
        """See :meth:`Family.draw_`; by a proposal that is accepted or not."""
        z = np.concatenate([theta, self.x], 1)
        mode, root = self._mode(z)
        drawn = rng.standard_normal(len(mode)) / np.sqrt(rng.chisquare(FREEDOM) / FREEDOM)
        proposal = mode + np.linalg.solve(root.T, drawn)

        def weight(coefficients: Array) -> float:
            """Log posterior less log density of the proposal."""
            moved = root.T @ (coefficients - mode)
            tails = 0.5 * (FREEDOM + len(mode)) * np.log1p(moved @ moved / FREEDOM)
            return float(self._log_posterior(z, coefficients) + tails)

        if np.log(rng.random()) < weight(proposal) - weight(self.coefficients):
            self.coefficients = proposal

    def _log_posterior(self, z: Array, coefficients: Array) -> float:
        prior = -0.5 * (coefficients @ coefficients) / PRIOR_SCALE**2
        return float(self.log_density(z @ coefficients).sum() + prior)

    def _mode(self, z: Array) -> tuple[Array, Array]:
        """Mode of the coefficients, and the Cholesky factor of the negative Hessian there."""
        at = np.zeros_like(self.coefficients)
        value = self._log_posterior(z, at)
        for _ in range(NEWTON_STEPS):
            slope, curvature = self.slopes(z @ at)
            gradient = z.T @ slope - at / PRIOR_SCALE**2
            hessian = (z.T * curvature) @ z
            hessian[np.diag_indices_from(hessian)] += PRIOR_SCALE**-2
            step = np.linalg.solve(hessian, gradient)
            decrement, length = gradient @ step, 1.0
            if decrement < TOLERANCE * max(1.0, abs(value)):
                break
            # The posterior is concave, so a short enough step ascends.
            while (found := self._log_posterior(z, at + length * step)) < value:
                length /= 2
                if length < TOLERANCE:
                    break
            at, value = at + length * step, max(value, found)
        root = np.asarray(np.linalg.cholesky(hessian), np.float64)
        return at, root


class Binomial(Generalised):
    """y is 1 with probability 1 / (1 + exp(−m)), and 0 otherwise."""

    scale = "the log odds of the outcome"
    assumption = "independent outcomes of 0 and 1"

    def log_density(self, predictor: Array) -> Array:
        """See :meth:`Family.log_density`."""
        return self.y * predictor - np.logaddexp(0.0, predictor)

    def slopes(self, predictor: Array) -> tuple[Array, Array]:
        """See :meth:`Generalised.slopes`."""
        p = np.exp(-np.logaddexp(0.0, -predictor))
        return self.y - p, p * (1 - p)


class Poisson(Generalised):
    """y ~ Poisson(exp(m))."""

    scale = "the log rate of the outcome"
    assumption = "counts whose variance equals their mean"

    def log_density(self, predictor: Array) -> Array:
        """See :meth:`Family.log_density`."""
        return self.y * predictor - np.exp(np.minimum(predictor, 700.0))

    def slopes(self, predictor: Array) -> tuple[Array, Array]:
        """See :meth:`Generalised.slopes`."""
        rate = np.exp(np.minimum(predictor, 700.0))
        return self.y - rate, rate
