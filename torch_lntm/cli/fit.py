"""``torch-lntm fit``."""

from __future__ import annotations

import inspect
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch_lntm as lntm
from torch_lntm.cli.documents import (
    PRUNING_OPTIONS,
    SAMPLED,
    TOKEN_OPTIONS,
    OnDocuments,
    say,
)
from torch_lntm.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from torch_lntm.corpus import Corpus, Split
    from torch_lntm.guides import Guide
    from torch_lntm.inference import FitResult, MonteCarloEM, VariationalEM
    from torch_lntm.io import UnfinishedRun

#: What may differ when a killed fit is continued.
_CHANGEABLE = ("out", "overwrite", "threads", "progress", "num_words", "checkpoint_seconds")


@dataclass(kw_only=True)
class Fit(OnDocuments):
    """Fit a topic model to a corpus, print its topics and held-out perplexity, save the run.

    A fit that was killed continues from its last checkpoint when the same command is run again.
    Ctrl-C ends a fit early and saves the best so far; of hmc, the last finished epoch.

    Attributes:
        out: Folder to save the run in; runs/NAME-DATE-TIME if not given.
        overwrite: Replace a run that is there already.
        model: The model; ctm is the correlated topic model, lntm the same without correlations,
            iftm the independent factor topic model, lda the generative aspect model (latent
            Dirichlet allocation).
        posterior: Approximation of the documents' posteriors, of ctm and lntm taylor (if not
            given), laplace, blei-lafferty or khan-bouchard; of iftm factor (if not given), with
            gaussian sources also taylor or laplace; of lda vb (if not given) or ep. Or hmc, for all
            but lda: Monte-Carlo EM, with samples in the place of an approximation.
        num_topics: Number of topics, K.
        anchored: Of ctm, K - 1 free components instead of K.
        num_sources: Of iftm, number of sources, below K; K / 4 if not given.
        source: Of iftm, distribution of the sources; laplace makes them sparse and readable.
        concentration: Of lda, the prior of the topic proportions, for --no-learn-concentration or
            --start model (other starts estimate it); 1 / K if not given.
        symmetric: Of lda, the same concentration for all topics.
        learn_concentration: Of lda, change the concentration in the fit.
        topics_update: Of the posteriors vb and ep, the topics' update; bound if not given with vb,
            second-order with ep.
        topic_smoothing: Of all but lntm, pseudo-counts of every word in every topic.
        topic_scale: Of lntm, prior standard deviation of the logits of a topic's words.
        pseudo_documents: Of all but lda, weight of the prior of the covariance's parameters, in
            documents; if not given, 2K + 2, for iftm 2.
        pseudo_variance: Of all but lda, variance that this prior stands for.
        dtype: Floating-point type of the parameters.
        max_iterations: Of all but hmc, bound on the iterations of EM.
        tolerance: Of all but hmc, relative change of the objective at which EM has converged.
        restarts: Of all but hmc, starts to choose the best of.
        annealing: Of taylor, laplace, blei-lafferty and khan-bouchard, deterministic annealing
            schedule.
        max_docs: Of all but hmc, documents per batch, to bound memory; chosen by what the posterior
            needs if not given.
        max_epochs: Of hmc, visits of every document.
        num_chains: Of hmc, chains of each document.
        num_transitions: Of hmc, transitions of each chain at a visit.
        batch_size: Of hmc, documents between two updates of the model.
        start: Where the topics come from at first.
        test_fraction: Share of the documents to hold out for evaluation; 0 for none.
        stop_words: Of texts, the words not to count, "english" or a file with a word per line.
        min_df: Of texts, the least documents a word must be in, a number or a share such as 0.01.
        max_df: Of texts, the most documents a word may be in, a number or a share such as 0.5.
        token_pattern: Of texts, the regular expression of a word.
        lowercase: Of texts, turn words to lower case, which is done if not given.
        num_words: Top words to print of each topic.
        checkpoint_seconds: Time between checkpoints.
    """

    positionals = ("corpus",)
    required = ()

    out: str | None = None
    overwrite: bool = False
    model: Literal["ctm", "lntm", "iftm", "lda"] = "ctm"
    posterior: (
        Literal["taylor", "laplace", "blei-lafferty", "khan-bouchard", "factor", "vb", "ep", "hmc"]
        | None
    ) = None
    num_topics: int = 50
    anchored: bool = False
    num_sources: int | None = None
    source: Literal["gaussian", "laplace"] = "gaussian"
    concentration: float | None = None
    symmetric: bool = False
    learn_concentration: bool = True
    topics_update: Literal["bound", "second-order"] | None = None
    topic_smoothing: float = 0.05
    topic_scale: float = 10.0
    pseudo_documents: float | None = None
    pseudo_variance: float = 1.0
    dtype: Literal["float32", "float64"] = "float32"
    max_iterations: int = 100
    tolerance: float = 3e-3
    restarts: int = 1
    annealing: Literal["ahmed-xing"] | None = None
    max_docs: int | None = None
    max_epochs: int = 10
    num_chains: int = 1
    num_transitions: int = 5
    batch_size: int = 100
    start: Literal["lda", "documents", "model"] = "lda"
    test_fraction: float = 0.1
    stop_words: str | None = None
    min_df: int | float | None = None
    max_df: int | float | None = None
    token_pattern: str | None = None
    lowercase: bool | None = None
    num_words: int = 10
    checkpoint_seconds: float = 60.0

    def run(self) -> int:
        """Run it; returns the exit code."""
        from torch_lntm.io import check_target, save_run

        if self.num_words < 1:
            raise ConfigError(f"num_words is {self.num_words}; expected at least 1")
        device = self.torch_device()
        if self.out is not None:
            check_target(Path(self.out), self.overwrite)
        options = {name: getattr(self, name) for name in (*TOKEN_OPTIONS, *PRUNING_OPTIONS)}
        corpus = self.read({name: value for name, value in options.items() if value is not None})
        split = self._split(corpus)
        train = corpus if split is None else split.train
        engine, guide = self._engine(corpus, device)
        model = engine.model
        posterior = SAMPLED if self.posterior == SAMPLED else guide.name
        config = {**asdict(self), "device": device.type, "posterior": posterior}
        unfinished = self._unfinished(corpus, config)
        config["out"] = str(unfinished.path)
        with unfinished:
            if unfinished.started:
                say(f"continuing the unfinished fit of {unfinished.checkpoint}")
            held_out = "" if split is None else f", with {len(split.test)} held out"
            say(f"fitting {len(train)} documents of {corpus.num_words} words{held_out}, {device}")
            result = engine.fit(
                train,
                checkpoint=unfinished.checkpoint,
                checkpoint_seconds=self.checkpoint_seconds,
            )
            shares = lntm.report.topic_shares(model.theta(result.means), train)
            metadata = {
                "corpus": {
                    "name": corpus.name,
                    "num_docs": corpus.num_docs,
                    "num_words": corpus.num_words,
                    "num_tokens": corpus.num_tokens,
                    "fingerprint": corpus.fingerprint(),
                },
                "device": str(device),
                "seed": self.seed,
                "topic_shares": shares.tolist(),
            }
            path = save_run(
                unfinished.path,
                model,
                result,
                config,
                metadata=metadata,
                split=split,
                overwrite=self.overwrite,
            )
            unfinished.discard()
        if result.stop_reason == "interrupted":
            kept = "last finished epoch" if self.posterior == SAMPLED else "best so far"
            say(f"interrupted: saved the {kept}, {_stage(result)}, in {path}")
            return 130
        say(f"{result.stop_reason.replace('_', ' ')}: {_stage(result)}, {result.seconds:.1f} s")
        if result.num_unconverged and self.posterior != SAMPLED:
            say(f"warning: {result.num_unconverged} documents' posteriors did not converge")
        summaries = lntm.report.summarise_topics(model, shares, num_words=self.num_words)
        print(lntm.report.format_topics(summaries))
        if split is not None:
            scores = self.complete(guide, split.test, split.train)
            print(f"\n{lntm.report.format_scores(scores)}")
            lntm.report.write_scores(path / "evaluation.json", scores)
        print(f"\nThe run is in {path}")
        return 0

    def _split(self, corpus: Corpus) -> Split[Corpus] | None:
        if not 0 <= self.test_fraction < 1:
            raise ConfigError(f"test_fraction is {self.test_fraction}; expected 0, or below 1")
        if self.test_fraction == 0:
            return None
        if len(corpus) == 1:
            raise ConfigError("test_fraction: one document cannot be divided; set it to 0")
        return corpus.split(self.test_fraction, self.seed)

    def _engine(
        self, corpus: Corpus, device: torch.device
    ) -> tuple[VariationalEM | MonteCarloEM, Guide]:
        """The engine over a new model, and the guide to complete documents with."""
        makers = lntm.models.MODELS
        settings = self._arguments(self.model, makers, ("num_words", "vocabulary", "seed"))
        model = makers[self.model](
            num_words=corpus.num_words, vocabulary=corpus.vocabulary, seed=self.seed, **settings
        ).to(device)
        update = {} if self.topics_update is None else {"topics_update": self.topics_update}
        if update and self.model != "lda":
            raise ConfigError(f"topics_update is an option of lda; leave it out with {self.model}")
        engines: dict[str, Callable[..., Any]] = {
            "variational EM": lntm.inference.VariationalEM,
            f"posterior {SAMPLED}": lntm.inference.MonteCarloEM,
        }
        chosen = list(engines)[self.posterior == SAMPLED]
        options = self._arguments(chosen, engines, ("model", "guide"))
        if self.posterior == SAMPLED:
            engine = lntm.inference.MonteCarloEM(model, **options)
            return engine, lntm.guides.make_guide(None, model)
        guide = lntm.guides.make_guide(self.posterior, model, **update)
        return lntm.inference.VariationalEM(model, guide, **options), guide

    def _arguments(
        self, chosen: str, makers: dict[str, Callable[..., Any]], given: tuple[str, ...]
    ) -> dict[str, Any]:
        """The options that are arguments of one maker; none may be of the others only.

        Args:
            chosen: Its name.
            makers: All of them, by the names that a user knows.
            given: Arguments that come from elsewhere.
        """
        settings = {}
        takes = {name: inspect.signature(make).parameters for name, make in makers.items()}
        for field in fields(self):
            names = [name for name in takes if field.name in takes[name]]
            value = getattr(self, field.name)
            if chosen in names and field.name not in given:
                settings[field.name] = value
            elif names and chosen not in names and value != field.default:
                those = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
                raise ConfigError(
                    f"{field.name} is an option of {those}; leave it out with {chosen}, or take "
                    f"{names[0]}"
                )
        return settings

    def _unfinished(self, corpus: Corpus, config: dict[str, Any]) -> UnfinishedRun:
        """Where checkpoints go: of the same command's last fit, if that was killed."""
        from torch_lntm.io import UnfinishedRun

        fixed = {name: value for name, value in config.items() if name not in _CHANGEABLE}
        if self.out is not None:
            return UnfinishedRun(Path(self.out), fixed)
        name = corpus.name or "corpus"
        path = UnfinishedRun.find(Path("runs"), f"{name}-", fixed)
        if path is None:
            first = path = Path("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
            others = 1
            while path.exists() or path.with_name(f"{path.name}.partial").exists():
                others += 1
                path = first.with_name(f"{first.name}-{others}")
        return UnfinishedRun(path, fixed)


def _stage(result: FitResult) -> str:
    """How far a fit came."""
    if not result.history:
        return "the start"
    last = result.history[-1]
    return (
        f"phase {last['phase']}, iteration {last['iteration']}, "
        f"{last['objective']:.4f} nats per token ({result.objective_name})"
    )
