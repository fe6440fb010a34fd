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
    TOKEN_OPTIONS,
    OnDocuments,
    say,
)
from torch_lntm.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from torch_lntm.corpus import Corpus, Split
    from torch_lntm.inference import FitResult, VariationalEM
    from torch_lntm.io import UnfinishedRun

#: What may differ when a killed fit is continued.
_CHANGEABLE = ("out", "overwrite", "threads", "progress", "num_words", "checkpoint_seconds")


@dataclass(kw_only=True)
class Fit(OnDocuments):
    """Fit a topic model to a corpus, print its topics and held-out perplexity, save the run.

    A fit that was killed continues from its last checkpoint when the same command is run again.
    Ctrl-C ends a fit early and saves the best so far.

    Attributes:
        out: Folder to save the run in; runs/NAME-DATE-TIME if not given.
        overwrite: Replace a run that is there already.
        model: The model; ctm is the correlated topic model, iftm the independent factor topic
            model, lda the generative aspect model (latent Dirichlet allocation).
        posterior: Approximation of the documents' posteriors, of ctm taylor (if not given),
            laplace, blei-lafferty or khan-bouchard; of iftm factor (if not given), with gaussian
            sources also taylor or laplace; of lda vb (if not given) or ep.
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
        topic_smoothing: Pseudo-counts of every word in every topic.
        pseudo_documents: Of ctm and iftm, weight of the prior of the covariance's parameters, in
            documents; if not given, 2K + 2 for ctm and 2 for iftm.
        pseudo_variance: Of ctm and iftm, variance that this prior stands for.
        dtype: Floating-point type of the parameters.
        max_iterations: Bound on the iterations of EM.
        tolerance: Relative change of the objective at which EM has converged.
        start: Where the topics come from at first.
        restarts: Starts to choose the best of.
        annealing: Deterministic annealing schedule.
        max_docs: Documents per batch, to bound memory; chosen by what the posterior needs if not
            given.
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
    model: Literal["ctm", "iftm", "lda"] = "ctm"
    posterior: (
        Literal["taylor", "laplace", "blei-lafferty", "khan-bouchard", "factor", "vb", "ep"] | None
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
    pseudo_documents: float | None = None
    pseudo_variance: float = 1.0
    dtype: Literal["float32", "float64"] = "float32"
    max_iterations: int = 100
    tolerance: float = 3e-3
    start: Literal["lda", "documents", "model"] = "lda"
    restarts: int = 1
    annealing: Literal["ahmed-xing"] | None = None
    max_docs: int | None = None
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
        engine = self._engine(corpus, device)
        model = engine.model
        config = {**asdict(self), "device": device.type, "posterior": engine.guide.name}
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
            say(f"interrupted: saved the best so far, {_stage(result)}, in {path}")
            return 130
        say(f"{result.stop_reason.replace('_', ' ')}: {_stage(result)}, {result.seconds:.1f} s")
        if result.num_unconverged:
            say(f"warning: {result.num_unconverged} documents' posteriors did not converge")
        summaries = lntm.report.summarise_topics(model, shares, num_words=self.num_words)
        print(lntm.report.format_topics(summaries))
        if split is not None:
            scores = self.complete(engine.guide, split.test, split.train)
            print(f"\n{lntm.report.format_scores(scores)}")
            lntm.report.write_scores(path / "evaluation.json", scores)
        print(f"\nThe run is in {path}")
        return 0

    def _split(self, corpus: Corpus) -> Split | None:
        if not 0 <= self.test_fraction < 1:
            raise ConfigError(f"test_fraction is {self.test_fraction}; expected 0, or below 1")
        if self.test_fraction == 0:
            return None
        if len(corpus) == 1:
            raise ConfigError("test_fraction: one document cannot be divided; set it to 0")
        return corpus.split(self.test_fraction, self.seed)

    def _engine(self, corpus: Corpus, device: torch.device) -> VariationalEM:
        settings = self._model_settings() | {"vocabulary": corpus.vocabulary}
        make_model = lntm.models.MODELS[self.model]
        model = make_model(num_words=corpus.num_words, **settings).to(device)
        update = {} if self.topics_update is None else {"topics_update": self.topics_update}
        if update and self.model != "lda":
            raise ConfigError(f"topics_update is an option of lda; leave it out with {self.model}")
        return lntm.inference.VariationalEM(
            model,
            lntm.guides.make_guide(self.posterior, model, **update),
            max_iterations=self.max_iterations,
            tolerance=self.tolerance,
            start=self.start,
            restarts=self.restarts,
            annealing=self.annealing,
            max_docs=self.max_docs,
            seed=self.seed,
            progress=self.progress,
        )

    def _model_settings(self) -> dict[str, Any]:
        """The options that are arguments of the model; none may be of another model only."""
        settings = {}
        takes = {
            kind: inspect.signature(make).parameters for kind, make in lntm.models.MODELS.items()
        }
        for field in fields(self):
            kinds = [kind for kind in takes if field.name in takes[kind]]
            value = getattr(self, field.name)
            if self.model in kinds and field.name not in ("num_words", "vocabulary"):
                settings[field.name] = value
            elif kinds and self.model not in kinds and value != field.default:
                raise ConfigError(
                    f"{field.name} is an option of {' and '.join(kinds)}; leave it out with "
                    f"{self.model}"
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
