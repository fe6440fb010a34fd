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
    is_built_in,
    say,
    structural_options,
)
from torch_lntm.cli.launch import processes_on
from torch_lntm.cli.mappings import read_keywords
from torch_lntm.cli.results import CHANGEABLE, about_corpus, same_run, stage
from torch_lntm.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from torch_lntm.corpus import Corpus, Split
    from torch_lntm.guides import Guide
    from torch_lntm.inference import FitResult, Processes
    from torch_lntm.io import Run, UnfinishedRun
    from torch_lntm.recipes import Recipe
    from torch_lntm.reports import Score

_ANY_MODEL = (
    *("num_topics", "topic_smoothing", "pseudo_documents", "pseudo_variance"),
    *("keywords", "keyword_strength", "exclusive_keywords", "bursty", "dtype"),
)
_OF_MODELS = {
    "model ctm": ("anchored",),
    "model lntm": ("topic_scale",),
    "model iftm": ("num_sources", "source"),
    "model lda": ("concentration", "symmetric", "learn_concentration"),
    "model stm": ("prevalence", "penalty", "content", "content_penalty", "content_scale"),
}
_MODEL_OPTIONS = (*_ANY_MODEL, *itertools.chain(*_OF_MODELS.values()))
_VARIATIONAL_OPTIONS = ("max_iterations", "tolerance", "restarts", "annealing", "max_docs")
_SAMPLER_OPTIONS = ("max_epochs", "min_gain", "num_chains", "num_transitions", "batch_size")
_ENGINE_OPTIONS = ("start", *_VARIATIONAL_OPTIONS, *_SAMPLER_OPTIONS)
_GUIDE_OPTIONS = ("topics_update",)


#: Exit codes after Ctrl-C and after SIGTERM, by the reason for the end of the fit.
STOPPED = {"interrupted": 130, "terminated": 143}


@dataclass(frozen=True)
class _Task:
    """A fit to do: corpus, model, guide, engine and configuration."""

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
        """Part of the configuration that must be equal to continue a fit."""
        return {name: value for name, value in self.config.items() if name not in CHANGEABLE}

    @property
    def train(self) -> Corpus:
        """Training documents."""
        return self.corpus if self.split is None else self.split.train


@dataclass(kw_only=True)
class Fit(ChoosesWords, OnDocuments):
    """Fit a topic model to a corpus, save the run, and print topics and held-out perplexity.

    Run the command again to continue a killed fit from its last checkpoint. Ctrl-C ends a fit early
    and saves the best iteration so far, or the last finished epoch of Monte-Carlo EM. SIGTERM saves
    a checkpoint of the last finished iteration or epoch, to continue from. torchrun
    distributes a fit over several processes:
    torchrun --nproc-per-node 2 -m torch_lntm fit CORPUS.

    Attributes:
        out: Folder of the run. Defaults to runs/NAME-DATE-TIME.
        overwrite: Replace an existing run.
        model: Model to fit. ctm: The correlated topic model. lntm: The logistic-normal topic model
            without correlations. iftm: The independent factor topic model. lda: Latent Dirichlet
            allocation, also called the generative aspect model. stm: The structural topic model,
                whose topics depend on columns of the corpus. Plug-ins can register further models.
        posterior: Method for the documents' posteriors. auto: Monte-Carlo EM (hmc), with fewer
            epochs above 7 million tokens. hmc: Monte-Carlo EM, by sampling. Variational EM has
            these approximations: taylor, laplace, blei-lafferty and khan-bouchard for ctm, lntm and
            stm; vb and ep for lda; factor for iftm, and taylor and laplace for iftm with gaussian
            sources. Defaults to auto. If you set options that only one of the two engines has,
            defaults to that engine.
        num_topics: Number of topics, K.
        topic_smoothing: Pseudo-count of every word in every topic. Unavailable for lntm. Defaults
            to 0.05, and to less for corpora with fewer tokens than topics x words.
        pseudo_documents: Weight of the prior of the covariance, in documents. Unavailable for lda.
            Defaults to 2K + 2, and to 2 for iftm.
        pseudo_variance: Variance of the prior of the covariance. Unavailable for lda. Defaults to
            1, and to 10 with hmc. With hmc and documents of at least a token for every topic, it
            defaults to the average variance of the fitted logits, between 0.1 and 10.
        keywords: YAML or JSON file of keywords by topic, such as "economy: [tax, budget]", or in a
            configuration file the keywords themselves. These topics come first. num_topics counts
            them and the free topics. For ctm, iftm, lda and stm.
        keyword_strength: Pseudo-tokens on the keywords of each topic. Defaults to 2 % of the tokens
            per topic.
        exclusive_keywords: Keep keywords out of the free topics.
        bursty: Model repeated words. Each document has its own distribution of words around the
            topics' mixture, and topics depend less on single documents.
        dtype: Floating-point type of the parameters.
        model_options: Further arguments of the model's constructor, as JSON.
        anchored: Use K - 1 free components instead of K.
        topic_scale: Prior standard deviation of the logits of a topic's words.
        num_sources: Number of sources, below K. Defaults to K / 4.
        source: Distribution of the sources. laplace gives sparse, readable sources.
        concentration: Dirichlet parameter of the topic proportions, for --no-learn-concentration or
            --start model. The starts lda and documents estimate it. Defaults to 1 / K.
        symmetric: Use an equal concentration for all topics.
        learn_concentration: Fit the concentration.
        prevalence: Formula of the columns for the prevalence of topics, such as
            "~ party + bs(date, df=6)".
        penalty: Precision of the prior of the coefficients of --prevalence. Defaults to an estimate
            from the evidence.
        content: Column of groups of documents with different words of topics. Or a formula for
            words that move with time, such as "~ rw(year)", "~ rw(date, bins='month')" or
            "~ rw(day, width=7)".
        content_penalty: Precision of the prior of the differences between groups, in tokens. Larger
            values give fewer differences.
        content_scale: Standard deviation of the steps of words between periods, for a formula of
            --content. Defaults to a deviation for each word, by evidence.
        topics_update: Update of the topics. Defaults to bound for vb and to second-order for ep.
        start: Initial topics. lda: A fast fit of a model without correlations. documents: A
            single epoch of this fit. model: Random topics.
        max_iterations: Maximum number of EM iterations after the stochastic phases. 0 stops after
            these phases and a single pass over all documents.
        tolerance: Change of the objective by an iteration for convergence of EM, in nats per token.
        restarts: Number of starts. The best start is used.
        annealing: Schedule of deterministic annealing, such as ahmed-xing, for taylor, laplace,
            blei-lafferty and khan-bouchard.
        max_docs: Maximum number of documents per batch, to bound memory. Defaults to a choice by
            the memory of the posterior.
        max_epochs: Maximum number of visits of every document. Defaults to 60, and to fewer for
            posterior auto above 7 million tokens.
        min_gain: Minimum gain of the search, in nats per token per epoch. The search ends at a
            smaller gain. 0 runs all max_epochs. Defaults to 0.0002, and to 0.003 with keywords.
        num_chains: Number of chains per document.
        num_transitions: Number of transitions of each chain per visit.
        batch_size: Number of documents between two updates of the model. Defaults to 8 % of the
            documents, within 320 to 3,200, or to 9,600 tokens if the documents are short. It is at
            most a quarter of the documents.
        test_fraction: Share of the documents to hold out for evaluation. 0 holds out none. Defaults
            to 0.1. Several processes that fit a folder in shards by hmc hold out none by default,
            and open only their own shards. With a share, each of them opens the whole corpus. A
            single process continues an unfinished fit of theirs at the path --out.
        num_words: Number of top words to print for each topic.
        checkpoint_seconds: Seconds between checkpoints.
        keep_chains: Save the last states of the chains of posterior hmc. The commands report and
            effects continue these chains. They take 4 bytes per document, topic and chain. By
            default they are saved if they take at most 100 MB.
    """

    positionals = ("corpus",)
    shared = True
    headings: ClassVar[dict[str, tuple[str, ...]]] = {
        "output": ("out", "overwrite", "num_words", "checkpoint_seconds", "keep_chains"),
        "reading documents": OnDocuments.headings["reading documents"],
        "words of texts": WORD_OPTIONS,
        "model": ("model", *_ANY_MODEL, "model_options"),
        **_OF_MODELS,
        "fit": ("posterior", "start", "test_fraction"),
        "variational EM (all posteriors except hmc)": _VARIATIONAL_OPTIONS,
        "posteriors vb and ep": _GUIDE_OPTIONS,
        "Monte-Carlo EM (posterior hmc)": _SAMPLER_OPTIONS,
        "computation": OnDocuments.headings["computation"],
    }

    out: str | None = None
    overwrite: bool = False
    model: str = "ctm"
    posterior: str | None = None
    num_topics: int = 50
    topic_smoothing: float | None = None
    pseudo_documents: float | None = None
    pseudo_variance: float | None = None
    keywords: str | dict[str, Any] | None = None
    keyword_strength: float | None = None
    exclusive_keywords: bool = True
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
    content_scale: float | None = None
    topics_update: Literal["bound", "second-order"] | None = None
    start: Literal["lda", "documents", "model"] = "lda"
    max_iterations: int = 100
    tolerance: float = 1e-3
    restarts: int = 1
    annealing: Literal["ahmed-xing"] | None = None
    max_docs: int | None = None
    max_epochs: int | None = None
    min_gain: float | None = None
    num_chains: int = 1
    num_transitions: int = 3
    batch_size: int | None = None
    test_fraction: float | None = None
    num_words: int = 10
    checkpoint_seconds: float = 60.0
    keep_chains: bool | None = None

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        from torch_lntm.inference import join_parts

        device = self.torch_device()
        with processes_on(device) as processes:
            requested = processes.together(self._requested)
            corpus = processes.together(lambda: self._corpus(processes))
            corpus = join_parts(corpus, processes)
            task = processes.together(lambda: self._task(requested, corpus, device))
            target = processes.together(lambda: self._target(task) if processes.first else None)
            path, is_finished = processes.gather(target)[0]
            if not is_finished:
                return self._fit(task, Path(path), processes)
            if processes.first:
                self._show_finished(lntm.load_run(path), task.split, task.fixed)
            return 0

    def _requested(self) -> Recipe:
        """The model and the posterior of the options, after checks that need no corpus."""
        from torch_lntm.io import check_target
        from torch_lntm.recipes import Recipe

        if self.num_words < 1:
            raise ConfigError(f"num_words is {self.num_words}; expected at least 1")
        self.keywords = read_keywords(self.keywords)  # the run keeps the words
        requested = Recipe(self.model, self._posterior())
        if self.out is not None:
            check_target(Path(self.out), overwrite=True)
        return requested

    def _corpus(self, processes: Processes) -> Corpus:
        """Read the corpus, or this process's part of it, and choose the share to hold out."""
        from torch_lntm.corpus.remote import count_shards

        alone = processes.alone and not self._continues_parts()
        whole = alone or self.test_fraction or self.reading_options()
        if whole or count_shards(str(self.corpus)) < processes.size:
            corpus = self.read(**self.word_options())
            if self.test_fraction is None:
                self.test_fraction = 0.1
            return corpus
        self.test_fraction = 0.0
        return lntm.read_corpus(str(self.corpus), rank=processes.rank, world_size=processes.size)

    def _continues_parts(self) -> bool:
        """Whether the path of the run holds an unfinished fit by processes with their own shards.

        A single process then continues this fit.
        """
        from torch_lntm.inference.em.parts import folder_of
        from torch_lntm.io import partial_folder
        from torch_lntm.io.folders import CHECKPOINT

        if self.out is None:
            return False
        return folder_of(partial_folder(Path(self.out)) / CHECKPOINT).is_dir()

    def _task(self, requested: Recipe, corpus: Corpus, device: torch.device) -> _Task:
        """Make the model, the guide and the engine."""
        from torch_lntm.io import check_saveable

        split = self._split(corpus)
        train = corpus if split is None else split.train
        resolved = requested.for_corpus(train, self.num_topics)
        recipe, explicit = resolved.recipe, self.model_options or {}
        options = {name: value for name, value in resolved.options.items() if name not in explicit}
        options |= self._options()
        options |= structural_options(self.model, self.prevalence, self.content, corpus)
        model, guide, engine = recipe.make(
            corpus.num_words,
            corpus.vocabulary,
            seed=self.seed,
            device=device,
            options=options | {"progress": self.shows_progress},
            model_options=self.model_options,
        )
        check_saveable(model)
        config = {name: value for name, value in asdict(self).items() if name != "plugin"}
        config |= {
            "device": device.type,
            "posterior": recipe.posterior if recipe.samples else guide.name,
            "topic_smoothing": options.get("topic_smoothing"),
            "max_epochs": options.get("max_epochs"),
        }
        return _Task(
            corpus,
            split,
            model,
            guide,
            engine,
            config,
            recipe.samples,
            resolved.reason,
            device,
        )

    def _target(self, task: _Task) -> tuple[str, bool]:
        """Path of the run, and whether the run is already finished."""
        from torch_lntm.io import check_target

        path = self._path(task.corpus, task.fixed)
        if not self.overwrite and same_run(path, task.corpus, task.fixed) is not None:
            return str(path), True
        check_target(path, self.overwrite)
        return str(path), False

    def _fit(self, task: _Task, path: Path, processes: Processes) -> int:
        """Fit, save and print. Only the first process saves and prints."""
        from torch_lntm.io import UnfinishedRun

        first_run = processes.together(
            lambda: UnfinishedRun(path, task.fixed) if processes.first else None
        )
        if first_run is None:
            result = self._result(task, Path(processes.gather(None)[0]), processes)
            if result.stop_reason in STOPPED:
                processes.gather(None)  # the launcher ends all processes after the first exit
            return STOPPED.get(result.stop_reason, 0)
        split, model = task.split, task.model
        config = task.config | {"out": str(path)}
        with first_run as unfinished:
            if unfinished.started:
                say(f"continuing the unfinished fit of {unfinished.checkpoint}")
            self._announce(task, processes)
            processes.gather(str(unfinished.checkpoint))
            result = self._result(task, unfinished.checkpoint, processes)
            if result.stop_reason == "terminated":
                return self._terminated(unfinished, result, processes)
            shares = result.topic_shares
            assert shares is not None  # the first process has the topic shares of all documents
            metadata = {
                "corpus": about_corpus(task.corpus),
                "device": str(task.device),
                "seed": self.seed,
                "topic_shares": shares.tolist(),
            }

            def save(scores: list[Score] | None) -> None:
                self._save(unfinished, model, result, config, metadata, split, scores)

            if result.stop_reason == "interrupted":
                try:
                    save(None)
                    state = "last finished epoch" if task.samples else "best so far"
                    say(
                        f"interrupted: saved the {state}, {stage(result)}, in {path}; "
                        f"see torch-lntm topics {path}"
                    )
                finally:
                    processes.gather(None)
                return STOPPED[result.stop_reason]
            scores = None
            try:
                if split is not None:
                    scores = self.complete(
                        task.guide, split.test, split.train, path if task.samples else None
                    )
            except BaseException:
                save(None)  # The fit is kept. The next call of this command computes the scores.
                raise
            save(scores)
        say(f"{result.ended}: {stage(result)}, {result.seconds:.1f} s")
        if result.num_unconverged and not task.samples:
            say(f"warning: {result.num_unconverged} documents' posteriors did not converge")
        self._print(model, shares, scores, path)
        return 0

    def _terminated(
        self, unfinished: UnfinishedRun, result: FitResult, processes: Processes
    ) -> int:
        """End after SIGTERM. The checkpoint stays, so that the same command continues the fit."""
        processes.gather(None)
        say(
            f"terminated: saved the checkpoint {unfinished.checkpoint}, {stage(result)}; "
            "run the command again to continue"
        )
        return STOPPED[result.stop_reason]

    def _announce(self, task: _Task, processes: Processes) -> None:
        """Print the documents, the words, the device and large tables of the fit."""
        from torch_lntm.models import DynamicTopics

        corpus, split = task.corpus, task.split
        if corpus.preparation:
            say(in_options(corpus.preparation))
        if task.reason:
            say(f"posterior auto: {task.reason}")
        held_out = "" if split is None else f", with {len(split.test)} held out"
        several = "" if processes.alone else f", in {processes.size} processes"
        if corpus.part is not None:
            several += ", in parts" if processes.alone else " with their own shards"
            several += ", and none held out"
        num_docs = task.train.whole.num_docs
        empty = num_docs - task.train.whole.num_nonempty
        wordless = f" ({empty} without words)" if empty else ""
        say(
            f"fitting {num_docs} documents{wordless} of {corpus.num_words} words"
            f"{held_out}, {task.device}{several}"
        )
        if isinstance(task.model.topics, DynamicTopics):
            say(task.model.topics.size_note)
        if num_docs - empty == 1:
            say("warning: one document with words cannot tell topics apart")
        if self.num_topics == 1:
            say("warning: every document consists of the only topic; use 2 topics or more")
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
        """Options of model, guide and engine that differ from their defaults."""
        names = (*_MODEL_OPTIONS, *_ENGINE_OPTIONS, *_GUIDE_OPTIONS)
        defaults = {field.name: field.default for field in fields(self)}
        options = {name: getattr(self, name) for name in names}
        return {
            name: value
            for name, value in options.items()
            if name == "num_topics" or value != defaults[name]
        }

    def _posterior(self) -> str | None:
        """Name of the posterior: the user's, or a choice by the user's other options."""
        options = self._options()
        if self.posterior is not None or not is_built_in(self.model):
            return self.posterior
        if any(name in options for name in (*_VARIATIONAL_OPTIONS, *_GUIDE_OPTIONS)):
            return None
        return "hmc" if any(name in options for name in _SAMPLER_OPTIONS) else "auto"

    def _split(self, corpus: Corpus) -> Split[Corpus] | None:
        assert self.test_fraction is not None
        if not 0 <= self.test_fraction < 1:
            raise ConfigError(f"test_fraction is {self.test_fraction}; expected 0, or below 1")
        if self.test_fraction == 0:
            return None
        if len(corpus) == 1:
            raise ConfigError("test_fraction: one document cannot be divided; set it to 0")
        return corpus.split(self.test_fraction, self.seed)

    def _path(self, corpus: Corpus, fixed: dict[str, Any]) -> Path:
        """Path of the run: the user's, that of a killed fit of this command, or a new path."""
        from torch_lntm.files import shortened
        from torch_lntm.io import UnfinishedRun, partial_folder

        if self.out is not None:
            return Path(self.out)
        name = shortened(corpus.name or "corpus")
        path = UnfinishedRun.find(Path("runs"), f"{name}-", fixed)
        if path is None:
            first = path = Path("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
            number = 1
            while path.exists() or partial_folder(path).exists():
                number += 1
                path = first.with_name(f"{first.name}-{number}")
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
        """Save the run atomically."""
        try:
            lntm.io.save_run(
                unfinished.path,
                model,
                result,
                config,
                metadata=metadata,
                split=split,
                evaluation=None if scores is None else lntm.reports.scores.score_records(scores),
                keep_chains=self.keep_chains,
                overwrite=self.overwrite,
            )
        except (ConfigError, OSError) as error:
            if not unfinished.started:
                raise
            raise ConfigError(
                f"{error}. The checkpoint in {unfinished.folder} is kept; run the command "
                "again to continue from it"
            ) from error
        unfinished.discard()

    def _show_finished(self, run: Run, split: Split[Corpus] | None, fixed: dict[str, Any]) -> int:
        """Print a run that an equal command saved before, and complete its scores."""
        state = ", as Ctrl-C left it" if run.metadata.get("stop_reason") == "interrupted" else ""
        say(f"{run.path} holds this fit already{state}; --overwrite fits it again")
        scores_file = run.path / "evaluation.json"
        scores = None
        if scores_file.exists():
            scores = lntm.reports.scores.read_scores(scores_file)
        elif split is not None:
            guide: Guide[Any] = run.guide()
            by_chains = run.config.get("posterior") in lntm.recipes.SAMPLERS
            folder = run.path if by_chains else None
            scores = self.complete(guide, split.test, split.train, folder)
            lntm.reports.scores.write_scores(scores_file, scores)
            lntm.io.write_card(run, lntm.reports.scores.score_records(scores))
        # A fit killed between saving the run and cleaning up leaves its unfinished run.
        if lntm.io.partial_folder(run.path).exists():
            with lntm.io.UnfinishedRun(run.path, fixed) as unfinished:
                unfinished.discard()
        self._print(run.model, run.metadata.get("topic_shares"), scores, run.path)
        return 0

    def _print(self, model: Any, shares: Any, scores: list[Score] | None, path: Path) -> None:
        print(model.topic_table(shares, num_words=self.num_words, num_correlated=2))
        if scores is not None:
            print(f"\n{lntm.frames.Rows(scores)}")
        print(f"\nThe run is in {path}")
