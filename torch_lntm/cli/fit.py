"""``torch-lntm fit``."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch_lntm as lntm
from torch_lntm.cli.documents import (
    WORD_OPTIONS,
    ChoosesWords,
    OnDocuments,
    in_options,
    say,
    structural_options,
)
from torch_lntm.cli.launch import processes_on
from torch_lntm.cli.results import CHANGEABLE, same_run, stage
from torch_lntm.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from torch_lntm.corpus import Corpus, Split
    from torch_lntm.guides import Guide
    from torch_lntm.inference import FitResult, Processes
    from torch_lntm.io import Run, UnfinishedRun
    from torch_lntm.reports import Score

_ANY_MODEL = (
    *("num_topics", "topic_smoothing", "pseudo_documents", "pseudo_variance"),
    *("bursty", "dtype"),
)
_OF_MODELS = {
    "model ctm": ("anchored",),
    "model lntm": ("topic_scale",),
    "model iftm": ("num_sources", "source"),
    "model lda": ("concentration", "symmetric", "learn_concentration"),
    "model stm": ("prevalence", "penalty", "content", "content_penalty"),
}
_MODEL_OPTIONS = (*_ANY_MODEL, *itertools.chain(*_OF_MODELS.values()))
_VARIATIONAL_OPTIONS = ("max_iterations", "tolerance", "restarts", "annealing", "max_docs")
_SAMPLER_OPTIONS = ("max_epochs", "min_gain", "num_chains", "num_transitions", "batch_size")
_ENGINE_OPTIONS = ("start", *_VARIATIONAL_OPTIONS, *_SAMPLER_OPTIONS)
_GUIDE_OPTIONS = ("topics_update",)


_ABOUT_CORPUS = ("name", "num_docs", "num_words", "num_tokens")

#: Exit code after Ctrl-C.
INTERRUPTED = 130


@dataclass(frozen=True)
class _Task:
    """What is to be fitted to what, and for which configuration."""

    corpus: Corpus
    split: Split[Corpus] | None
    model: Any
    guide: Any
    engine: Any
    config: dict[str, Any]
    samples: bool
    reason: str | None
    device: torch.device

    @property
    def fixed(self) -> dict[str, Any]:
        """The configuration that continuing a killed fit takes."""
        return {name: value for name, value in self.config.items() if name not in CHANGEABLE}

    @property
    def train(self) -> Corpus:
        """The documents to fit."""
        return self.corpus if self.split is None else self.split.train


@dataclass(kw_only=True)
class Fit(ChoosesWords, OnDocuments):
    """Fit a topic model to a corpus, save the run, print its topics and held-out perplexity.

    A fit that was killed continues from its last checkpoint when the same command is run again.
    Ctrl-C ends a fit early and saves the best so far; with Monte-Carlo EM the last finished epoch.
    Several processes share a fit that torchrun starts, with the same options:
    torchrun --nproc-per-node 2 -m torch_lntm fit CORPUS.

    Attributes:
        out: Folder to save the run in; runs/NAME-DATE-TIME if not given.
        overwrite: Replace a run that is there already.
        model: Model to fit: ctm, the correlated topic model; lntm, the same without correlations;
            iftm, the independent factor topic model; lda, the generative aspect model (latent
            Dirichlet allocation); stm, the structural topic model, whose topics' prevalence depends
            on columns of the corpus; or the name of one that a plug-in registers.
        posterior: Approximation of the documents' posteriors: taylor, laplace, blei-lafferty or
            khan-bouchard for ctm, lntm and stm; factor, or with gaussian sources taylor or laplace
            for iftm; vb or ep for lda. Or hmc, Monte-Carlo EM, which samples instead of
            approximating; or auto, which takes hmc, of fewer epochs where there are more than 7
            million tokens, and the first of these for millions of documents. If not given auto,
            unless options of only one of the two are.
        num_topics: Number of topics, K.
        topic_smoothing: Pseudo-counts of every word in every topic, not for lntm; if not given
            0.05, or less where there are fewer tokens than topics times words.
        pseudo_documents: Weight of the prior of the covariance's parameters, in documents; 2K + 2
            if not given, for iftm 2. Not for lda.
        pseudo_variance: Variance that this prior stands for; 1 if not given, with hmc 10. Not for
            lda.
        bursty: Let documents repeat their words, as if each had a distribution of words of its own
            around that of its topics; topics are then less about single documents.
        dtype: Floating-point type of the parameters.
        model_options: Further arguments of the model's constructor, as JSON.
        anchored: Use K - 1 free components instead of K.
        topic_scale: Prior standard deviation of the logits of a topic's words.
        num_sources: Number of sources, below K; K / 4 if not given.
        source: Distribution of the sources; laplace makes them sparse and readable.
        concentration: Prior of the topic proportions, for --no-learn-concentration or --start model
            (other starts estimate it); 1 / K if not given.
        symmetric: Keep one concentration for all topics.
        learn_concentration: Change the concentration in the fit.
        prevalence: Formula of the columns that the prevalence of topics depends on, such as
            "~ party + bs(date, df=6)".
        penalty: Precision of the prior of their coefficients; found by evidence if not given.
        content: Column of the groups of documents between which the words of topics differ.
        content_penalty: Precision of the prior of these differences, in tokens; the larger, the
            fewer.
        topics_update: Update of the topics; bound if not given with vb, second-order with ep.
        start: First topics: lda, by a fast fit without correlations; documents, from less of it;
            model, random ones.
        max_iterations: Bound on the iterations of EM after the stochastic phases. 0 stops after
            these and one look at all documents.
        tolerance: Relative change of the objective at which EM has converged.
        restarts: Starts to choose the best of.
        annealing: Deterministic annealing schedule, such as ahmed-xing; for taylor, laplace,
            blei-lafferty and khan-bouchard.
        max_docs: Documents per batch, to bound memory; chosen by what the posterior needs if not
            given.
        max_epochs: Visits of every document at most; 60 if not given, and with posterior auto fewer
            where there are more than 7 million tokens.
        min_gain: Nats a token that epochs have to gain for others to follow; 0 for max_epochs of
            them.
        num_chains: Chains of each document.
        num_transitions: Transitions of each chain at a visit.
        batch_size: Documents between two updates of the model; by default 8 per cent of them, but
            320 to 3,200, and a quarter at most.
        test_fraction: Share of the documents to hold out for evaluation; 0 for none.
        num_words: Top words to print of each topic.
        checkpoint_seconds: Time between checkpoints.
        keep_chains: Keep where the chains of posterior hmc ended, so that report and effects
            continue them; done for up to 100 MB, 4 bytes a document, topic and chain, if not given.
    """

    positionals = ("corpus",)
    shared = True
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "output": ("out", "overwrite", "num_words", "checkpoint_seconds", "keep_chains"),
        "reading documents": OnDocuments.groups["reading documents"],
        "words of texts": WORD_OPTIONS,
        "model": ("model", *_ANY_MODEL, "model_options"),
        **_OF_MODELS,
        "fit": ("posterior", "start", "test_fraction"),
        "variational EM (every posterior but hmc)": _VARIATIONAL_OPTIONS,
        "posteriors vb and ep": _GUIDE_OPTIONS,
        "Monte-Carlo EM (posterior hmc)": _SAMPLER_OPTIONS,
        "computation": OnDocuments.groups["computation"],
    }

    out: str | None = None
    overwrite: bool = False
    model: str = "ctm"
    posterior: str | None = None
    num_topics: int = 50
    topic_smoothing: float | None = None
    pseudo_documents: float | None = None
    pseudo_variance: float | None = None
    bursty: bool = False
    dtype: Literal["float32", "float64"] = "float32"
    model_options: dict[str, Any] | None = None
    anchored: bool = False
    topic_scale: float = 10.0
    num_sources: int | None = None
    source: Literal["gaussian", "laplace"] = "gaussian"
    concentration: float | None = None
    symmetric: bool = False
    learn_concentration: bool = True
    prevalence: str | None = None
    penalty: float | None = None
    content: str | None = None
    content_penalty: float = 3.0
    topics_update: Literal["bound", "second-order"] | None = None
    start: Literal["lda", "documents", "model"] = "lda"
    max_iterations: int = 100
    tolerance: float = 3e-3
    restarts: int = 1
    annealing: Literal["ahmed-xing"] | None = None
    max_docs: int | None = None
    max_epochs: int | None = None
    min_gain: float = 3e-3
    num_chains: int = 1
    num_transitions: int = 3
    batch_size: int | None = None
    test_fraction: float = 0.1
    num_words: int = 10
    checkpoint_seconds: float = 60.0
    keep_chains: bool | None = None

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        device = self.torch_device()
        with processes_on(device) as processes:
            task = processes.together(lambda: self._task(device))
            found = processes.together(lambda: self._place(task) if processes.first else None)
            path, is_finished = processes.gather(found)[0]
            if not is_finished:
                return self._fit(task, Path(path), processes)
            if processes.first:
                self._show_finished(lntm.load_run(path), task.split, task.fixed)
            return 0

    def _task(self, device: torch.device) -> _Task:
        """Read the corpus and make what is to be fitted to it."""
        from torch_lntm.io import check_saveable, check_target
        from torch_lntm.recipes import Recipe

        if self.num_words < 1:
            raise ConfigError(f"num_words is {self.num_words}; expected at least 1")
        asked = Recipe(self.model, self._posterior())
        if self.out is not None:
            check_target(Path(self.out), overwrite=True)
        corpus = self.read(**self.word_options())
        split = self._split(corpus)
        train = corpus if split is None else split.train
        chosen = asked.for_corpus(train, self.num_topics)
        recipe, by_hand = chosen.recipe, self.model_options or {}
        suited = {name: value for name, value in chosen.options.items() if name not in by_hand}
        given = suited | self._options()
        given |= structural_options(self.model, self.prevalence, self.content, corpus)
        model, guide, engine = recipe.make(
            corpus.num_words,
            corpus.vocabulary,
            seed=self.seed,
            device=device,
            options=given | {"progress": self.shows_progress},
            model_options=self.model_options,
        )
        check_saveable(model)
        config = {name: value for name, value in asdict(self).items() if name != "plugin"}
        config |= {
            "device": device.type,
            "posterior": recipe.posterior if recipe.samples else guide.name,
            "topic_smoothing": given.get("topic_smoothing"),
            "max_epochs": given.get("max_epochs"),
        }
        return _Task(
            corpus,
            split,
            model,
            guide,
            engine,
            config,
            recipe.samples,
            chosen.reason,
            device,
        )

    def _place(self, task: _Task) -> tuple[str, bool]:
        """Where the run goes, and whether it is there already."""
        from torch_lntm.io import check_target

        path = self._path(task.corpus, task.fixed)
        if not self.overwrite and same_run(path, task.corpus, task.fixed) is not None:
            return str(path), True
        check_target(path, self.overwrite)
        return str(path), False

    def _fit(self, task: _Task, path: Path, processes: Processes) -> int:
        """Fit, save and print; the first process alone does more than fitting."""
        from torch_lntm.io import UnfinishedRun

        opened = processes.together(
            lambda: UnfinishedRun(path, task.fixed) if processes.first else None
        )
        if opened is None:
            result = self._result(task, Path(processes.gather(None)[0]), processes)
            if result.stop_reason == "interrupted":
                processes.gather(None)  # the launcher ends all once one has gone
                return INTERRUPTED
            return 0
        corpus, split, model = task.corpus, task.split, task.model
        config = task.config | {"out": str(path)}
        with opened as unfinished:
            if unfinished.started:
                say(f"continuing the unfinished fit of {unfinished.checkpoint}")
            self._announce(task, processes)
            processes.gather(str(unfinished.checkpoint))
            result = self._result(task, unfinished.checkpoint, processes)
            shares = result.topic_shares
            assert shares is not None  # the first process has all documents
            metadata = {
                "corpus": {
                    **{name: getattr(corpus, name) for name in _ABOUT_CORPUS},
                    "fingerprint": corpus.fingerprint(),
                },
                "device": str(task.device),
                "seed": self.seed,
                "topic_shares": shares.tolist(),
            }

            def save(scores: list[Score] | None) -> None:
                self._save(unfinished, model, result, config, metadata, split, scores)

            if result.stop_reason == "interrupted":
                try:
                    save(None)
                    kept = "last finished epoch" if task.samples else "best so far"
                    say(
                        f"interrupted: saved the {kept}, {stage(result)}, in {path}; "
                        f"see torch-lntm topics {path}"
                    )
                finally:
                    processes.gather(None)
                return INTERRUPTED
            scores = None
            try:
                if split is not None:
                    scores = self.complete(
                        task.guide, split.test, split.train, path if task.samples else None
                    )
            except BaseException:
                save(None)  # the fit is not lost with its scores; the same command finishes them
                raise
            save(scores)
        say(f"{result.ended}: {stage(result)}, {result.seconds:.1f} s")
        if result.num_unconverged and not task.samples:
            say(f"warning: {result.num_unconverged} documents' posteriors did not converge")
        self._print(model, shares, scores, path)
        return 0

    def _announce(self, task: _Task, processes: Processes) -> None:
        """Say what is fitted to what."""
        corpus, split = task.corpus, task.split
        if corpus.preparation:
            say(in_options(corpus.preparation))
        if task.reason:
            say(f"posterior auto: {task.reason}")
        held_out = "" if split is None else f", with {len(split.test)} held out"
        several = "" if processes.alone else f", in {processes.size} processes"
        empty = int((task.train.lengths == 0).sum())
        wordless = f" ({empty} without words)" if empty else ""
        say(
            f"fitting {len(task.train)} documents{wordless} of {corpus.num_words} words"
            f"{held_out}, {task.device}{several}"
        )
        if len(task.train) - empty == 1:
            say("warning: one document with words cannot tell topics apart")
        if corpus.num_words < self.num_topics:
            say(f"warning: {self.num_topics} topics over {corpus.num_words} different words")

    def _result(self, task: _Task, checkpoint: Path, processes: Processes) -> FitResult:
        result: FitResult = task.engine.fit(
            task.train,
            checkpoint=checkpoint,
            checkpoint_seconds=self.checkpoint_seconds,
            processes=processes,
        )
        return result

    def _options(self) -> dict[str, Any]:
        """The options of model, guide and engine that are not at their defaults."""
        names = (*_MODEL_OPTIONS, *_ENGINE_OPTIONS, *_GUIDE_OPTIONS)
        defaults = {field.name: field.default for field in fields(self)}
        options = {name: getattr(self, name) for name in names}
        return {
            name: value
            for name, value in options.items()
            if name == "num_topics" or value != defaults[name]
        }

    def _posterior(self) -> str | None:
        """The posterior asked for; without one, what the options or else the documents want."""
        given = self._options()
        if self.posterior is not None or self.plugin is not None:
            return self.posterior
        if any(name in given for name in (*_VARIATIONAL_OPTIONS, *_GUIDE_OPTIONS)):
            return None
        return "hmc" if any(name in given for name in _SAMPLER_OPTIONS) else "auto"

    def _split(self, corpus: Corpus) -> Split[Corpus] | None:
        if not 0 <= self.test_fraction < 1:
            raise ConfigError(f"test_fraction is {self.test_fraction}; expected 0, or below 1")
        if self.test_fraction == 0:
            return None
        if len(corpus) == 1:
            raise ConfigError("test_fraction: one document cannot be divided; set it to 0")
        return corpus.split(self.test_fraction, self.seed)

    def _path(self, corpus: Corpus, fixed: dict[str, Any]) -> Path:
        """Where the run goes: where the same command's last fit was to go, if that was killed."""
        from torch_lntm.files import shortened
        from torch_lntm.io import UnfinishedRun, partial_folder

        if self.out is not None:
            return Path(self.out)
        name = shortened(corpus.name or "corpus")
        path = UnfinishedRun.find(Path("runs"), f"{name}-", fixed)
        if path is None:
            first = path = Path("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
            others = 1
            while path.exists() or partial_folder(path).exists():
                others += 1
                path = first.with_name(f"{first.name}-{others}")
        return path

    def _save(
        self,
        unfinished: UnfinishedRun,
        model: Any,
        result: FitResult,
        config: dict[str, Any],
        metadata: dict[str, Any],
        split: Split[Corpus] | None,
        scores: list[Score] | None,
    ) -> None:
        """Save the run, complete or not at all."""
        try:
            lntm.io.save_run(
                unfinished.path,
                model,
                result,
                config,
                metadata=metadata,
                split=split,
                evaluation=None if scores is None else lntm.reports.score_records(scores),
                keep_chains=self.keep_chains,
                overwrite=self.overwrite,
            )
        except (ConfigError, OSError) as error:
            if not unfinished.started:
                raise
            raise ConfigError(
                f"{error}. The checkpoint in {unfinished.folder} is kept, and the same command "
                "continues from it"
            ) from error
        unfinished.discard()

    def _show_finished(self, run: Run, split: Split[Corpus] | None, fixed: dict[str, Any]) -> int:
        """Print a run that this very command saved before, and finish its scores."""
        left = ", as Ctrl-C left it" if run.metadata.get("stop_reason") == "interrupted" else ""
        say(f"{run.path} holds this very fit already{left}; --overwrite fits it again")
        scores_file = run.path / "evaluation.json"
        scores = None
        if scores_file.exists():
            scores = lntm.reports.read_scores(scores_file)
        elif split is not None:
            guide: Guide[Any] = run.guide()
            sampled = run.config.get("posterior") in lntm.recipes.SAMPLERS
            scores = self.complete(guide, split.test, split.train, run.path if sampled else None)
            lntm.reports.write_scores(scores_file, scores)
            lntm.io.write_card(run, lntm.reports.score_records(scores))
        # A fit that was killed after it had saved the run leaves its unfinished run.
        if lntm.io.partial_folder(run.path).exists():
            with lntm.io.UnfinishedRun(run.path, fixed) as unfinished:
                unfinished.discard()
        self._print(run.model, run.metadata.get("topic_shares"), scores, run.path)
        return 0

    def _print(self, model: Any, shares: Any, scores: list[Score] | None, path: Path) -> None:
        print(model.topic_table(shares, num_words=self.num_words, num_correlated=2))
        if scores is not None:
            print(f"\n{lntm.reports.format_scores(scores)}")
        print(f"\nThe run is in {path}")
