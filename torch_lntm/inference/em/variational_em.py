"""Variational EM for topic models, over any guide."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from torch_lntm.corpus import Corpus, as_corpus
from torch_lntm.errors import ConfigError, CorpusError, require, require_whole
from torch_lntm.guides import GUIDES, Guide, require_guide
from torch_lntm.inference.em.phases import (
    Start,
    VariationalRun,
    VariationalSettings,
)
from torch_lntm.inference.em.processes import Processes
from torch_lntm.inference.em.result import FitResult
from torch_lntm.inference.em.start import fill_prior_means
from torch_lntm.inference.em.tempering import ANNEALING, Annealing
from torch_lntm.models import TopicModel


class VariationalEM:
    """Fit a topic model by variational EM.

    Three phases. The *start* finds topics with a stepwise EM for a stand-in with a
    Dirichlet prior (LDA), which costs a few sparse passes per update. The *stepwise* phase runs
    the model's own posterior on mini-batches, the M-step seeing a running average of the
    statistics (Cappé & Moulines 2009); the noise of both keeps the fit out of poor local optima,
    to which EM is prone. *EM* proper
    then alternates full E-steps and closed-form M-steps (*Khan & Bouchard 2009, eqs 39–42*) until
    the objective's relative change is below ``tolerance``. How the documents are batched does not
    change an EM iteration.

    Args:
        model: The model to fit, in place.
        guide: The guide whose posterior the E-step solves, over the same model.
        max_iterations: Bound on the M-steps of EM; one more E-step follows the last. 0 stops after
            the stochastic phases and an E-step.
        tolerance: Relative change of the objective at which EM has converged. The default stops
            after a few iterations, because on held-out words more of them do harm: the stochastic
            phases' topics generalise better than those of a tightly converged EM
            (``docs/decisions.md``). Use 1e-5 for the optimum of the objective itself.
        start: ``"lda"``, the start above; ``"documents"``, one epoch of it, from topics
            made of a few random documents each; ``"model"``, the model as it is.
        start_epochs: Epochs of the start; by default enough for 1,200 updates, within 3 to 40.
        stepwise_epochs: Epochs of the stepwise phase, 0 for none; by default enough for 80
            updates, within 2 to 10, and none with annealing or from ``start="model"``.
        restarts: Runs of the first two phases from different seeds; EM continues the one with
            the best objective.
        annealing: An :class:`~torch_lntm.inference.Annealing` schedule between the stepwise phase
            and EM, or ``"ahmed-xing"`` for the paper's.
        covariance_stride: M-steps see the covariances of one document in so many, which stands for
            the others; 1 for all documents'. Matters where a covariance costs more than its mean,
            with the posteriors of Taylor and Laplace, and changes fits by less than a seed does. By
            default 1 below 32 topics, else 8, or less where batches are small. What covariances
            add to the objective is estimated alike.
        max_docs: Documents solved at once, to bound memory; changes results by rounding only. By
            default from the number of topics.
        seed: Seed of the start's documents and of the batches.
        progress: Show progress bars on standard error.

    Raises:
        ConfigError: A setting that cannot be used.
        IncompatibleGuideError: The guide belongs to another model.
    """

    def __init__(
        self,
        model: TopicModel,
        guide: Guide[Any],
        *,
        max_iterations: int = 100,
        tolerance: float = 3e-3,
        start: Start = "lda",
        start_epochs: int | None = None,
        stepwise_epochs: int | None = None,
        restarts: int = 1,
        annealing: Annealing | str | None = None,
        covariance_stride: int | None = None,
        max_docs: int | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        require_guide(guide, model)
        if start not in get_args(Start):
            raise ConfigError(f"start {start!r}; expected one of {', '.join(get_args(Start))}")
        if isinstance(annealing, str):
            if annealing not in ANNEALING:
                raise ConfigError(
                    f"annealing {annealing!r}; expected one of {', '.join(ANNEALING)} or a schedule"
                )
            annealing = ANNEALING[annealing]
        if annealing is not None and not guide.anneals:
            raise ConfigError(
                f"annealing is for {', '.join(g.__name__ for g in GUIDES.values() if g.anneals)}; "
                f"got {type(guide).__name__}"
            )
        require_whole(0, max_iterations=max_iterations, stepwise_epochs=stepwise_epochs, seed=seed)
        require_whole(
            1,
            start_epochs=start_epochs,
            restarts=restarts,
            covariance_stride=covariance_stride,
            max_docs=max_docs,
        )
        require(0, tolerance=tolerance)
        if start_epochs is not None and start != "lda":
            raise ConfigError(f"start_epochs is of start='lda'; leave it out with start={start!r}")
        if restarts > 1 and start == "model":
            raise ConfigError("restarts from start='model' are all the same; use restarts=1")
        self.model = model
        self.guide = guide
        self.settings = VariationalSettings(
            max_iterations=max_iterations,
            tolerance=tolerance,
            start=start,
            start_epochs=start_epochs,
            stepwise_epochs=stepwise_epochs,
            restarts=restarts,
            annealing=annealing,
            covariance_stride=covariance_stride,
            max_docs=max_docs,
            seed=seed,
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
    ) -> FitResult:
        """Fit the model to a corpus.

        Where ``torch.distributed`` has been initialised with several processes, all of them call
        this with the same corpus, model and settings, and share the fit
        (``docs/several_processes.md``): it starts from the first process's parameters and ends in
        the same parameters and result in all.

        Ctrl-C ends the fit at the parameters of the last finished epoch or iteration, with
        ``stop_reason`` ``"interrupted"``.

        Args:
            corpus: The documents, or a matrix of counts; empty ones take no part.
            checkpoint: A file to save the state of the fit in. If it exists the fit continues from
                there, to the same result as without the interruption, in any number of processes.
                It is left in place.
            checkpoint_seconds: Least time between two saves.
            processes: The processes that share the fit; by default those of the default group of
                ``torch.distributed``, or this one alone.

        Returns:
            The result; the fitted parameters are in the model.

        Raises:
            CorpusError: The corpus has no tokens.
            ConfigError: The corpus has another vocabulary than the model, the checkpoint belongs to
                another fit, or there are more processes than documents.
            NumericalError: The objective left the real numbers.
            ProcessError: A process of the fit is gone, or did not answer in its group's time.
        """
        processes = processes or Processes()
        corpus = processes.together(lambda: check_corpus(self.model, corpus))
        run = VariationalRun(self.model, self.guide, self.settings, corpus, processes)
        path = None if checkpoint is None else Path(checkpoint)
        with processes.working(self.model.device):
            stop_reason = run.run(path, checkpoint_seconds)
            state = run.state
            unfinished = "means" not in state.documents or state.phase == "start"
            if unfinished:
                means = torch.zeros(corpus.num_docs, self.model.latent_dim, dtype=self.model.dtype)
            else:
                own = {"means": state.documents["means"]}
                means = run.rows.collect(own, processes, everywhere=True)["means"]
        self.model.prior.canonicalise_()
        rows = np.arange(corpus.num_docs) if unfinished else np.flatnonzero(corpus.lengths == 0)
        fill_prior_means(self.model, corpus, rows, means)
        unconverged = state.history[-1]["unconverged"] if state.history else None
        return FitResult(
            history=state.history,
            stop_reason=stop_reason,
            num_unconverged=len(run.order) if unconverged is None else unconverged,
            means=means,
            objective_name=self.guide.objective,
            seconds=state.seconds,
            statistics=state.statistics,
            posterior=self.guide,
        )


def check_corpus(model: TopicModel, documents: Corpus) -> Corpus:
    """The documents to fit a model to, as a corpus.

    Args:
        model: The model.
        documents: A corpus, or a matrix of counts.

    Raises:
        ConfigError: They are over other words.
        CorpusError: They cannot be used, or there are no tokens.
    """
    corpus = model.encode(as_corpus(documents))
    if corpus.num_tokens == 0:
        raise CorpusError("the corpus has no tokens; there is nothing to fit")
    return corpus
