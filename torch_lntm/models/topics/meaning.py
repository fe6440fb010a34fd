"""Meaning, by which given word vectors tell topics which words belong together."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from torch_lntm.corpus import Corpus, DocumentBatch, WordVectors
from torch_lntm.errors import ConfigError
from torch_lntm.kernels.contraction import sum_over_words
from torch_lntm.models.topics.topics import softmax_of_words

#: Bounds on the pseudo-tokens of a topic, and the number from which a fit learns them.
LOWEST, HIGHEST, FIRST_STRENGTH = 1.0, 1e5, 10.0
#: Rounds of learning from the first counts, and the most that a round multiplies the strength by.
FIRST_ROUNDS, MOST_CHANGE = 3, 4.0
#: Precision of a topic's vector. Between 0.1 and 100 it changes no result.
PRECISION = 1.0
#: Most dimensions of the vectors; those of more keep their principal components.
MOST_DIMENSIONS = 100
#: Most halvings of a step.
HALVINGS = 10
#: Steps of EM that complete a document's proportions from half of its tokens, and the tokens that
#: its prior is worth.
COMPLETION_STEPS, PRIOR_TOKENS = 6, 0.5


class Meaning(nn.Module):
    """Pseudo-tokens of topics that follow from word vectors.

    A topic k expects the words near its own vector α_k, and so shares its tokens with words that
    mean the same, however rare they are in the corpus:

        φ_k ~ Dirichlet(1 + s + c m_k),   m_kv ∝ exp(b_v + ρ_v'α_k),   α_k ~ Normal(0, 1),

    where ρ_v are the given vectors, b_v is a word's log frequency and s the smoothing. With c = 0
    it is a topic without vectors; for c → ∞ and s = 0 it is the embedded topic model (*Dieng, Ruiz
    & Blei 2020*) with a term for frequency. Words without a vector keep their frequency in m.

    A fit learns α by leave-one-out: how well the other tokens of a topic predict each token of it,
    (N_kv − 1 + s + c m_kv) / (N_k − 1 + V s + c). The fixed point is *Minka's* (2000, §3)
    leave-one-out estimate of a Dirichlet distribution. It learns c by documents of which half is
    predicted from the other half, with topics that never met the document. Neither the evidence nor
    leave-one-out would do for c: a document's proportions know all of its tokens, and the expected
    counts follow m themselves, so that c would come out up to 30 times as large as new documents
    want it.

    Args:
        word_vectors: The vectors.
        num_topics: Number of topics K.
        strength: Pseudo-tokens c of each topic. By default, fits learn them.
        dtype: Floating-point type.

    Attributes:
        vectors: ``(num_words, R)`` vectors ρ, centred and scaled, 0 for words without one.
        found: ``(num_words,)`` bool: the word has a vector.
        log_frequencies: ``(num_words,)`` b, up to a constant: log (tokens + ½).
        coefficients: ``(num_topics, R)`` α.
        strength: c, a scalar.
        tokens: ``(num_topics,)`` expected tokens of the topics at the last M-step.
        is_learned: Whether fits learn the strength.

    Raises:
        ConfigError: The strength is not positive and finite, or no word has a vector.
    """

    vectors: Tensor
    found: Tensor
    mean: Tensor
    axes: Tensor
    log_frequencies: Tensor
    coefficients: Tensor
    strength: Tensor
    tokens: Tensor
    rounds: Tensor

    def __init__(
        self,
        word_vectors: WordVectors,
        num_topics: int,
        strength: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if strength is not None and not LOWEST <= strength <= HIGHEST:
            raise ConfigError(
                f"vector strength is {strength}; expected a number from {LOWEST:g} to "
                f"{HIGHEST:g}, or None to learn it"
            )
        self.is_learned = strength is None
        given = torch.as_tensor(word_vectors.vectors, dtype=torch.float64)
        found = ~given.isnan().any(1)
        mean, axes = _principal(given[found])
        vectors = torch.where(found[:, None], (given - mean) @ axes, 0.0)
        self.register_buffer("vectors", vectors.to(dtype))
        self.register_buffer("found", found)
        self.register_buffer("mean", mean.to(dtype))
        self.register_buffer("axes", axes.to(dtype))
        self.register_buffer("log_frequencies", torch.zeros(len(given), dtype=dtype))
        self.register_buffer("coefficients", torch.zeros(num_topics, axes.shape[1], dtype=dtype))
        self.register_buffer("strength", torch.tensor(strength or 0.0, dtype=dtype))
        self.register_buffer("tokens", torch.zeros(num_topics, dtype=dtype))
        self.register_buffer("rounds", torch.zeros((), dtype=torch.int64))

    #: Names of the buffers that fits change.
    fitted = ("log_frequencies", "coefficients", "strength", "tokens", "rounds")

    @property
    def topic_vectors(self) -> Tensor:
        """``(num_topics, dimension)`` the topics' vectors α in the space of the given vectors."""
        return self.coefficients @ self.axes.mT

    @property
    def belief(self) -> Tensor:
        """``(num_topics,)`` share c / (c + N_k) of a topic that comes from the vectors."""
        tiny = torch.finfo(self.strength.dtype).tiny
        return self.strength / (self.strength + self.tokens).clamp_min(tiny)

    def forget_(self) -> None:
        """Begin anew, with topics that expect equal words."""
        self.coefficients.zero_()
        self.rounds.zero_()
        if self.is_learned:
            self.strength.zero_()

    def prepare_(self, corpus: Corpus) -> None:
        """Note the frequencies of the words in the training documents."""
        self.log_frequencies.copy_(torch.from_numpy(corpus.whole.word_totals + 0.5).log())

    def with_words(self, word_vectors: WordVectors) -> Meaning:
        """A copy with further words, which have not occurred yet.

        Args:
            word_vectors: Vectors of the further words.

        Raises:
            ConfigError: The vectors have another dimension.
        """
        given = torch.as_tensor(word_vectors.vectors).to(self.vectors)
        if given.shape[1] != len(self.mean):
            raise ConfigError(
                f"vectors of dimension {given.shape[1]}; expected {len(self.mean)}, as of the "
                "vectors of the model"
            )
        found = ~given.isnan().any(1)
        longer = copy.deepcopy(self)
        new = {
            "vectors": torch.where(found[:, None], (given - self.mean) @ self.axes, 0.0),
            "found": found,
            "log_frequencies": given.new_full((len(given),), 0.5).log(),
        }
        for name, rows in new.items():
            longer.register_buffer(name, torch.cat([getattr(self, name), rows]))
        return longer

    def expected(self) -> Tensor:
        """``(num_words, num_topics)`` m, the words that each topic expects.

        Words without a vector keep their frequency in all topics.
        """
        return self._with_others(self._softmax()[0])

    def pseudo_tokens(self) -> Tensor:
        """``(num_words, num_topics)`` c m."""
        return self.expected().mul_(self.strength)

    def _softmax(self) -> tuple[Tensor, Tensor]:
        """Probabilities of the words with vectors, and float64 log normalisers of the topics.

        It masks words rather than select them, because a GPU's host would wait for a selection.
        """
        known = self.log_frequencies.masked_fill(~self.found, -torch.inf)[:, None]
        return softmax_of_words(torch.addmm(known, self.vectors, self.coefficients.mT))

    def _with_others(self, probs: Tensor) -> Tensor:
        """m, from the probabilities of the words with vectors."""
        frequencies = self.log_frequencies.softmax(0)[:, None]
        known = frequencies * self.found[:, None]
        return (probs * known.sum()).add_(frequencies - known)

    @property
    def learning_rounds(self) -> int:
        """Number of rounds of :meth:`learn_` after the present epoch."""
        return max(1, FIRST_ROUNDS - int(self.rounds))

    @torch.no_grad()
    def sums(
        self,
        counts: Tensor,
        others: Tensor,
        probs: Tensor,
        documents: Iterable[tuple[DocumentBatch, Tensor]],
    ) -> dict[str, Tensor]:
        """Sums over some documents, by which the strength is learned.

        Half of a document's tokens predict the other half by counts N − r, which leave out the
        document's own part r, at proportions z that know the first half only:

            Σ_k z_k (N_kv − r_kv + others_kv + c m_kv) / (N_k − r_k + Σ_v others_kv + c)

        Args:
            counts: ``(num_words, num_topics)`` expected tokens N.
            others: ``(num_words, num_topics)`` pseudo-tokens beside those of the vectors.
            probs: ``(num_words, num_topics)`` word probabilities.
            documents: Batches of documents and their proportions ``(num_docs, num_topics)``.

        Returns:
            The tokens ``due`` to the vectors, and how many are ``usual``, c / (N_k + c), where the
            vectors predict a topic as well as its other tokens do.
        """
        total = torch.zeros(2, dtype=torch.float64, device=counts.device)
        pseudo, rest, sizes = self.pseudo_tokens(), others.sum(0) + self.strength, counts.sum(0)
        shares = sizes / sizes.sum()
        # Without smoothing, a word may be all but impossible without its own document.
        tiny = torch.finfo(counts.dtype).tiny ** 0.5
        for batch, theta in documents:
            words, rows = batch.word_index % len(self.found), batch.row_index
            # Topics without a document differ by document, so that each entry is a word of its own.
            places = torch.arange(batch.nnz, device=rows.device)
            entries = replace(batch, word_index=places, num_words=batch.nnz)
            own = theta[rows] * probs[batch.word_index]
            own *= (batch.counts / own.sum(1))[:, None]
            # A document's draw may have more of a topic than the counts, which are means.
            own_sizes = sum_over_words(torch.ones_like(batch.counts), own, entries)
            size = (sizes - own_sizes).clamp_min_(0).add_(rest)[rows]
            prior = pseudo[words]
            tokens = (counts[words] - own).clamp_min_(0).add_(others[words]).add_(prior)
            tokens.clamp_min_(tiny)
            likelihood = tokens / size
            # The first word of a document belongs to the half that is predicted.
            odd = (places - batch.row_offsets[rows]) % 2
            given = ((batch.counts + odd) / 2).floor()
            guess = start = PRIOR_TOKENS * shares.expand_as(theta)
            for _ in range(COMPLETION_STEPS):
                ratio = given / (guess[rows] * likelihood).sum(1)
                guess = start + guess * sum_over_words(ratio, likelihood, entries)
            topics = guess[rows] * likelihood
            topics *= ((batch.counts - given) / topics.sum(1))[:, None]
            due, usual = topics * prior / tokens, topics * self.strength / size
            total += torch.stack([x.sum(dtype=torch.float64) for x in (due, usual)])
        return {"due": total[0], "usual": total[1]}

    @torch.no_grad()
    def learn_(self, counts: Tensor, others: Tensor, due: Tensor, usual: Tensor) -> None:
        """Improve the topics' vectors, and their strength unless it was given.

        A token of a topic is due to the vectors with probability c m_kv / (N_kv − 1 + others_kv +
        c m_kv). A topic's vector follows these tokens by a step of multinomial regression, whose
        Hessian is approximated by the covariance of the vectors of the corpus's tokens, so that
        all topics share its factors. Steps that do not raise the likelihood are halved.

        Args:
            counts: As for :meth:`sums`.
            others: As for :meth:`sums`.
            due: Of :meth:`sums`.
            usual: Of :meth:`sums`.
        """
        if self.is_learned:
            if float(self.strength) == 0:  # NaN stays
                self.strength.fill_(FIRST_STRENGTH)
            else:
                # The square makes this fixed point nearly as fast as Newton's method. Few documents
                # may seem to need a far larger or smaller strength.
                factor = (due / usual).square().clamp_(1 / MOST_CHANGE, MOST_CHANGE)
                self.strength.mul_(factor).clamp_(LOWEST, HIGHEST)
        self.rounds += 1
        axes, tiny = torch.linalg.eigh(self._covariance()), torch.finfo(counts.dtype).tiny
        probs, normalisers = self._softmax()
        prior, rest = self._with_others(probs).mul_(self.strength), (counts - 1).clamp_min_(0)
        rest.add_(others)
        tokens = prior.mul(counts).div_(prior.add_(rest).clamp_min_(tiny)).mul_(self.found[:, None])
        self._step_(tokens, probs, normalisers, *axes)

    def _step_(
        self, due: Tensor, probs: Tensor, normalisers: Tensor, values: Tensor, rotation: Tensor
    ) -> None:
        """Move the topics' vectors towards the tokens due to them.

        Args:
            due: ``(num_words, num_topics)`` the tokens, 0 for words without a vector.
            probs: Of :meth:`_softmax`.
            normalisers: Of :meth:`_softmax`.
            values: ``(R,)`` eigenvalues of the covariance of the vectors.
            rotation: ``(R, R)`` its eigenvectors.
        """
        old, sizes, target = self.coefficients.clone(), due.sum(0), due.mT @ self.vectors
        gradient = target - sizes[:, None] * (probs.mT @ self.vectors) - PRECISION * old

        def log_density(normalisers: Tensor) -> Tensor:
            at = self.coefficients.double()
            return ((target - PRECISION / 2 * at) * at).sum(1) - sizes * normalisers

        # Rounding makes some eigenvalues negative where vectors span fewer dimensions.
        curvature = sizes[:, None] * values.clamp_min(0) + PRECISION
        step = (gradient @ rotation) / curvature @ rotation.mT
        before, weights = log_density(normalisers), torch.ones_like(sizes)
        for _ in range(HALVINGS):
            self.coefficients.copy_(old + weights[:, None] * step)
            is_worse = log_density(self._softmax()[1]) < before
            if not bool(is_worse.any()):
                return
            weights = torch.where(is_worse, weights / 2, weights)
        self.coefficients.copy_(torch.where(is_worse[:, None], old, self.coefficients))

    def _covariance(self) -> Tensor:
        """``(R, R)`` covariance of the vectors of the corpus's tokens."""
        weights = torch.where(self.found, self.log_frequencies, -torch.inf).softmax(0)[:, None]
        centred = self.vectors - (weights * self.vectors).sum(0)
        return centred.mT @ (weights * centred)

    def extra_repr(self) -> str:
        """Number of words with vectors, dimension and strength, for ``repr``."""
        return (
            f"vectors of {int(self.found.sum())} of {len(self.found)} words, dimension "
            f"{len(self.mean)}, strength {'learned' if self.is_learned else float(self.strength)}"
        )


def _principal(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``(dimension,)`` of vectors ``(n, dimension)``, and scaled axes ``(dimension, R)``.

    (vectors − mean) @ axes has a mean variance of 1. Vectors of few dimensions keep their axes.
    """
    if not len(vectors):
        raise ConfigError("no word has a vector; expected vectors of the vocabulary's words")
    mean, dimension = vectors.mean(0), vectors.shape[1]
    centred = vectors - mean
    axes = torch.eye(dimension, dtype=vectors.dtype)
    if dimension > MOST_DIMENSIONS:
        axes = torch.linalg.eigh(centred.mT @ centred).eigenvectors[:, -MOST_DIMENSIONS:]
    scale = (centred @ axes).square().mean().sqrt()
    # Differences within the rounding of single precision are none.
    least = max(1e-37, 1e-7 * float(vectors.abs().max()))
    return mean, axes / torch.where(scale > least, scale, 1.0)
