"""Monte-Carlo EM: the documents' posteriors as chains that persist from epoch to epoch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

import torch

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require, require_whole
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.settings import space_type_of
from torch_lntm.inference.em.monte_carlo_run import (
    MonteCarloRun,
    MonteCarloSettings,
    TopicUpdate,
)
from torch_lntm.inference.em.phases import Start
from torch_lntm.inference.em.processes import Processes
from torch_lntm.inference.em.result import MonteCarloResult
from torch_lntm.inference.em.variational_em import check_corpus
from torch_lntm.models import TopicModel

#: Epochs of a fit at most, unless asked otherwise, and of its warm-up.
MAX_EPOCHS, WARMUP_EPOCHS = 60, 10


class MonteCarloEM:
    """Fit a topic model by Monte-Carlo EM, the algorithm of the *ZhuSuan LNTM tutorial*.

    Every document has chains of its own that go on from epoch to epoch. A mini-batch is visited by
    some Hamiltonian transitions of its chains (the E-step; see
    :class:`~torch_lntm.inference.DocumentHMC`) and an M-step follows from where they end. The first
    epoch moves chains only, with one M-step at its end. After it, statistics are a running average
    over mini-batches (*Cappé & Moulines 2009*), each standing for the corpus times
    num_docs/batch. It forgets fast at first, by documents, so that it hardly matters how many a
    mini-batch has. Once five epochs have gained little, or three quarters of ``max_epochs`` have
    gone by, its memory grows with every visit, for a third as many epochs as there were. The
    prior's parameters are at their closed-form maximisers. So are the topics, whose word counts
    have the topic of each word summed out. Normal topics take the tutorial's step instead: one of
    Adam a mini-batch, along the gradient of its word counts times num_docs/batch less the prior's
    (or, ``topic_update="exact"``, they too are at their maximiser).
    Where the model was given no ``pseudo_variance``, it has 10 from now on: draws vary more than
    modes, and M-steps are not to shrink them.

    Acceptance and step size belong to each chain of each document. They do not depend on how
    many documents share a mini-batch, and the chains depend on it through the M-steps alone.
    Step sizes adapt in the first epochs and are frozen after them. A chain that has not moved
    since then, in 10 transitions or more, takes no part in the statistics; one that has not at
    the end is reported.

    Args:
        model: The model to fit, in place.
        num_chains: Chains of each document.
        num_transitions: Transitions of each chain at a visit.
        num_steps: Leapfrog steps of a transition; by default the latent space's ``leapfrogs``, 8,
            or 16 under Dirichlet priors, whose chains mix more slowly.
        mass_matrix: As for :class:`~torch_lntm.inference.DocumentHMC`. Posterior ones are solved at
            every visit, from their last means, which costs several times as much as it gains.
        target_accept: Mean acceptance probability that adaptation aims at.
        max_epochs: Visits of every document at most. Four take about as long as variational EM,
            and predict about as well or, where documents are short, far better.
        min_gain: Nats a token by which the log likelihood at the draws must have risen in each of
            the last five epochs, on average, for the search to go on. Where it has not in five
            after the warm-up, what is left is averaging, and the result is ``"converged"``. Of a
            corpus with fewer than 20 tokens a word the search ends then in any case, since it
            would go on to fit these documents at the cost of others; the result is then
            ``"stopped_early"``. With 0 there are ``max_epochs`` epochs.
        warmup_epochs: Epochs in which step sizes adapt; by default 10, or half of ``max_epochs`` if
            that is less.
        batch_size: Documents of a mini-batch: small ones give more M-steps, large ones take less
            time a document. By default 320, or a quarter of the corpus if that is less; from 4,000
            documents on 8 % of it, up to 3,200; and more where documents are so short that these
            have fewer than 9,600 tokens.
        topic_update: ``"exact"``, or ``"gradient"`` for normal topics, whose default it is: exact
            M-steps take twice the time of an epoch and predict about as well.
        learning_rate: Adam's learning rate with ``"gradient"``. In epoch e, counted from 0, it is
            learning_rate / (1 + e/10).
        start: ``"lda"``, topics, prior and chains from the start of
            :class:`~torch_lntm.inference.VariationalEM`, but the prior as wide as its ``widen``
            makes it; ``"documents"``, the same from less; ``"model"``, the model as it is and
            chains from prior draws.
        seed: Seed of the start, of the order of documents and of the chains.
        progress: Show a progress bar on standard error.

    Raises:
        IncompatibleGuideError: The model's prior has no latent space to sample in.
        ConfigError: A setting that cannot be used.
    """

    def __init__(
        self,
        model: TopicModel,
        *,
        num_chains: int = 1,
        num_transitions: int = 3,
        num_steps: int | None = None,
        mass_matrix: str = "prior",
        target_accept: float = 0.8,
        max_epochs: int = MAX_EPOCHS,
        min_gain: float = 0.003,
        warmup_epochs: int | None = None,
        batch_size: int | None = None,
        topic_update: TopicUpdate | None = None,
        learning_rate: float = 0.1,
        start: Start = "lda",
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        kernel = DocumentHMC(
            model,
            num_chains=num_chains,
            mass_matrix=mass_matrix,
            num_steps=space_type_of(model).leapfrogs if num_steps is None else num_steps,
            target_accept=target_accept,
            seed=seed,
        )
        require_whole(
            1,
            num_transitions=num_transitions,
            max_epochs=max_epochs,
            warmup_epochs=warmup_epochs,
            batch_size=batch_size,
        )
        require(0, min_gain=min_gain)
        if start not in get_args(Start):
            raise ConfigError(f"start {start!r}; expected one of {', '.join(get_args(Start))}")
        normal = hasattr(model.topics, "gradient")
        if topic_update is None:
            topic_update = "gradient" if normal else "exact"
        if topic_update not in get_args(TopicUpdate):
            raise ConfigError(
                f"topic_update {topic_update!r}; expected one of {', '.join(get_args(TopicUpdate))}"
            )
        if topic_update == "gradient" and not normal:
            raise ConfigError(
                "topic_update 'gradient' is for normal topics, those of lntm; the others have "
                "closed-form updates"
            )
        if not 0 < learning_rate < math.inf:
            raise ConfigError(f"learning_rate is {learning_rate}; expected a positive number")
        self.model = model
        self.settings = MonteCarloSettings(
            chains=kernel.settings,
            num_transitions=num_transitions,
            max_epochs=max_epochs,
            min_gain=min_gain,
            warmup_epochs=warmup_epochs or min((max_epochs + 1) // 2, WARMUP_EPOCHS),
            batch_size=batch_size,
            topic_update=topic_update,
            learning_rate=learning_rate,
            start=start,
            progress=progress,
        )

    @torch.no_grad()
    def fit(
        self,
        corpus: Corpus,
        *,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 60.0,
        processes: Processes | None = None,
    ) -> MonteCarloResult:
        """Fit the model to a corpus, in several processes as :meth:`VariationalEM.fit` does.

        Ctrl-C ends the fit at the parameters and draws of the last finished epoch, with
        ``stop_reason`` ``"interrupted"``.

        Args:
            corpus: The documents, or a matrix of counts; empty ones take no part.
            checkpoint: A file to save the state of the fit in. If it exists the fit continues from
                there, to the same result as without the interruption, in any number of processes,
                also with more epochs unless it averages already or their warm-up, which is half of
                up to 20 epochs, would be longer. It is left in place.
            checkpoint_seconds: Least time between two saves.
            processes: The processes that share the fit; by default those of the default group of
                ``torch.distributed``, or this one alone.

        Returns:
            The result; the fitted parameters are in the model.

        Raises:
            CorpusError: The corpus has no tokens.
            ConfigError: The corpus has another vocabulary than the model, the checkpoint belongs to
                another fit, or there are more processes than documents.
            NumericalError: A parameter, or a density where chains start, left the real numbers;
                names the parameter or the documents.
            ProcessError: A process of the fit is gone, or did not answer in its group's time.
        """
        processes = processes or Processes()
        corpus = processes.together(lambda: check_corpus(self.model, corpus))
        run = MonteCarloRun(self.model, self.settings, corpus, processes)
        path = None if checkpoint is None else Path(checkpoint)
        with processes.working(self.model.device):
            return run.result(run.run(path, checkpoint_seconds))
