"""``torch-lntm fit``."""

from __future__ import annotations

import functools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch_lntm as lntm
from torch_lntm.cli.command import Headed, say, show
from torch_lntm.cli.documents import (
    ChoosesWords,
    OnDocuments,
    completion,
    is_built_in,
    structural_options,
)
from torch_lntm.cli.launch import STOPPED, processes_on
from torch_lntm.cli.mappings import read_keywords
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.options import CHOSEN, GUIDES, MODELS, SAMPLED, VARIATIONAL, fit_options

if TYPE_CHECKING:
    import torch

    from torch_lntm.corpus import Corpus
    from torch_lntm.corpus.splits import Split
    from torch_lntm.guides import Guide
    from torch_lntm.inference import FitResult, Processes
    from torch_lntm.io import Run
    from torch_lntm.recipes import FitComponents, Recipe
    from torch_lntm.reports import Score

#: Options that may change when a killed fit is continued.
CHANGEABLE = (
    *("out", "overwrite", "threads", "progress", "num_words", "checkpoint_seconds"),
    "keep_chains",
)
#: Parameters of constructors and engines that have no option, or an option with another help.
_OWN = ("num_topics", "num_words", "keywords", "seed", "progress")


@dataclass(frozen=True)
class _Task:
    """A fit to do: corpus, its parts and its configuration."""

    corpus: Corpus
    split: Split[Corpus] | None
    parts: FitComponents
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

    @property
    def about(self) -> dict[str, Any]:
        """Facts about the whole corpus, for the metadata of a run.

        A part has the fingerprint of the manifest, because no process reads all counts.
        """
        corpus, whole = self.corpus, self.corpus.whole
        about: dict[str, Any] = {"name": corpus.name, "num_docs": whole.num_docs}
        about |= {"num_words": corpus.num_words, "num_tokens": whole.num_tokens}
        if corpus.part is None:
            return about | {"fingerprint": corpus.fingerprint()}
        return about | {"manifest": corpus.part.fingerprint}

    def is_saved(self, path: Path) -> bool:
        """Whether a folder holds a run of an equal configuration and corpus."""
        run = lntm.load_run(path) if (path / "metadata.json").is_file() else None
        if run is None:
            return False
        fixed = {name: value for name, value in run.config.items() if name not in CHANGEABLE}
        saved = run.metadata.get("corpus", {})
        return fixed == json.loads(json.dumps(self.fixed)) and self.about.items() <= saved.items()


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
        keywords: YAML or JSON file of keywords by topic, such as "economy: [tax, budget]", or in a
            configuration file the keywords themselves. These topics come first. num_topics counts
            them and the free topics. For ctm, iftm, lda and stm.
        model_options: Further arguments of the model's constructor, as JSON.
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
        **ChoosesWords.headings,
        "model": ("model", "num_topics", "keywords", "model_options"),
        **{f"model {name}": () for name in MODELS if name != "ctm"},
        "fit": ("posterior", "test_fraction"),
        **dict.fromkeys((*VARIATIONAL, *GUIDES, *SAMPLED), ()),
        "computation": OnDocuments.headings["computation"],
    }

    out: str | None = None
    overwrite: bool = False
    model: str = "ctm"
    posterior: str | None = None
    num_topics: int = 50
    keywords: str | dict[str, Any] | None = None
    model_options: dict[str, Any] | None = None
    test_fraction: float | None = None
    num_words: int = 10
    checkpoint_seconds: float = 60.0
    keep_chains: bool | None = None

    @classmethod
    @functools.cache
    def headed(cls) -> Headed:
        """The options by name, with those of the models, guides and engines."""
        more = fit_options(_OWN)
        return {h: {**group, **more.get(h, {})} for h, group in super().headed().items()}

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
                self._show_finished(lntm.load_run(path), task)
            return 0

    def _requested(self) -> Recipe:
        """The model and the posterior of the options, after checks that need no corpus."""
        from torch_lntm.recipes import Recipe

        require_whole(1, num_words=self.num_words)
        self.keywords = read_keywords(self.keywords)  # the run keeps the words
        posterior = self.posterior
        if posterior is None and is_built_in(self.model):
            options, groups = self._options(), self.headed()
            variational = {name for h in (*VARIATIONAL, *GUIDES) for name in groups[h]}
            sampled = {name for heading in SAMPLED for name in groups[heading]}
            if not variational & options.keys():
                posterior = "hmc" if sampled & options.keys() else "auto"
        requested = Recipe(self.model, posterior)
        if self.out is not None:
            lntm.io.check_target(Path(self.out), overwrite=True)
        return requested

    def _options(self) -> dict[str, Any]:
        """Options of model, guide and engine that differ from their defaults."""
        names = {name for group in fit_options(_OWN).values() for name in group}
        return {"num_topics": self.num_topics, **self.given((*names, "keywords"))}

    def _corpus(self, processes: Processes) -> Corpus:
        """Read the corpus, or this process's part of it, and choose the share to hold out."""
        from torch_lntm.corpus.remote import count_shards

        alone = processes.alone and not self._continues_parts()
        whole = alone or self.test_fraction or self.given(self.headings["reading documents"])
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
        from torch_lntm.inference.em.checkpoint import folder_of
        from torch_lntm.io import partial_folder
        from torch_lntm.io.unfinished import CHECKPOINT

        if self.out is None:
            return False
        return any(folder_of(partial_folder(Path(self.out)) / CHECKPOINT).glob("*-part*"))

    def _task(self, requested: Recipe, corpus: Corpus, device: torch.device) -> _Task:
        """Make the model, the guide and the engine."""
        split = self._split(corpus)
        train = corpus if split is None else split.train
        recipe, chosen, reason = requested.for_corpus(train, self.num_topics)
        explicit = self.model_options or {}
        options = {name: value for name, value in chosen.items() if name not in explicit}
        options |= self._options()
        options |= structural_options(self.model, self.prevalence, self.content, corpus)
        options |= {"progress": self.shows_progress}
        about: dict[str, Any] = {
            "seed": self.seed,
            "device": device,
            "model_options": self.model_options,
        }
        parts = recipe.make(corpus.num_words, corpus.vocabulary, options=options, **about)
        lntm.io.check_saveable(parts.model)
        names = (name for name in self.known() if name not in self.line_only)
        config = {name: getattr(self, name) for name in names}
        config |= {name: options.get(name) for name in CHOSEN} | {"device": device.type}
        config["posterior"] = recipe.posterior if recipe.samples else parts.guide.name
        return _Task(corpus, split, parts, config, recipe.samples, reason, device)

    def _split(self, corpus: Corpus) -> Split[Corpus] | None:
        share = self.test_fraction or 0.0
        if not 0 <= share < 1:
            raise ConfigError(f"test_fraction is {share}; expected 0, or below 1")
        if share and len(corpus) == 1:
            raise ConfigError("test_fraction: one document cannot be divided; set it to 0")
        return corpus.split(share, self.seed) if share else None

    def _target(self, task: _Task) -> tuple[str, bool]:
        """Path of the run, and whether the run is already finished."""
        path = self._path(task)
        is_finished = not self.overwrite and task.is_saved(path)
        if not is_finished:
            lntm.io.check_target(path, self.overwrite)
        return str(path), is_finished

    def _path(self, task: _Task) -> Path:
        """Path of the run: the user's, that of a killed fit of this command, or a new path."""
        from torch_lntm.files.writing import shortened
        from torch_lntm.io import UnfinishedRun, partial_folder

        if self.out is not None:
            return Path(self.out)
        name = shortened(task.corpus.name or "corpus")
        path = UnfinishedRun.find(Path("runs"), f"{name}-", task.fixed)
        if path is not None:
            return path
        name = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        paths = (Path("runs", name + ending) for ending in ("", *(f"-{n}" for n in range(2, 99))))
        return next(p for p in paths if not p.exists() and not partial_folder(p).exists())

    def _fit(self, task: _Task, path: Path, processes: Processes) -> int:
        """Fit, save and print. Only the first process saves and prints."""
        from torch_lntm.io import UnfinishedRun

        options: dict[str, Any] = {
            "checkpoint_seconds": self.checkpoint_seconds,
            "processes": processes,
        }
        fit = functools.partial(task.parts.engine.fit, task.train, **options)
        claim = functools.partial(UnfinishedRun, path, task.fixed)
        first_run = processes.together(lambda: claim() if processes.first else None)
        if first_run is None:
            result = fit(checkpoint=Path(processes.gather(None)[0]))
            if result.stop_reason in STOPPED:
                processes.gather(None)  # the launcher ends all processes after the first exit
            return STOPPED.get(result.stop_reason, 0)
        with first_run as unfinished:
            if unfinished.started:
                say(f"continuing the unfinished fit of {unfinished.checkpoint}")
            self._announce(task, processes)
            processes.gather(str(unfinished.checkpoint))
            result = fit(checkpoint=unfinished.checkpoint)
            if result.stop_reason == "terminated":
                processes.gather(None)
                saved = (
                    f"terminated: saved the checkpoint {unfinished.checkpoint}, {_stage(result)}"
                )
                say(f"{saved}; run the command again to continue")
                return STOPPED[result.stop_reason]
            save = functools.partial(self._save, unfinished, task, result)
            scores, interrupted = None, result.stop_reason == "interrupted"
            try:
                if not interrupted:
                    scores = self._scores(task, task.parts.guide, path)
            finally:  # A fit without scores is kept. The next call of this command computes them.
                try:
                    save(scores)
                finally:
                    if interrupted:
                        processes.gather(None)
        if interrupted:
            state = "last finished epoch" if task.samples else "best so far"
            say(f"interrupted: saved the {state}, {_stage(result)}, in {path}")
            return STOPPED["interrupted"]
        say(f"{result.ended}: {_stage(result)}, {result.seconds:.1f} s")
        if result.num_unconverged and not task.samples:
            say(f"warning: {result.num_unconverged} documents' posteriors did not converge")
        self._print(task.parts.model, result.topic_shares, scores, path)
        return 0

    def _announce(self, task: _Task, processes: Processes) -> None:
        """Print the documents, the words, the device and large tables of the fit."""
        from torch_lntm.models import DynamicTopics

        corpus, topics, whole = task.corpus, task.parts.model.topics, task.train.whole
        if corpus.preparation:
            say(corpus.preparation)
        if task.reason:
            say(f"posterior auto: {task.reason}")
        held_out = "" if task.split is None else f", with {len(task.split.test)} held out"
        several = "" if processes.alone else f", in {processes.size} processes"
        if corpus.part is not None:
            several += ", in parts" if processes.alone else " with their own shards"
            several += ", and none held out"
        empty = whole.num_docs - whole.num_nonempty
        wordless = f" ({empty} without words)" if empty else ""
        about = f"{whole.num_docs} documents{wordless} of {corpus.num_words} words{held_out}"
        say(f"fitting {about}, {task.device}{several}")
        if isinstance(topics, DynamicTopics):
            say(topics.size_note)
        if whole.num_nonempty == 1:
            say("warning: one document with words cannot tell topics apart")
        if self.num_topics == 1:
            say("warning: every document consists of the only topic; use 2 topics or more")
        if corpus.num_words < self.num_topics:
            say(f"warning: {self.num_topics} topics over {corpus.num_words} different words")

    def _save(self, unfinished: Any, task: _Task, result: FitResult, scores: Any) -> None:
        """Save the run atomically."""
        assert result.topic_shares is not None  # the first process has those of all documents
        metadata = {"corpus": task.about, "device": str(task.device), "seed": self.seed}
        options: dict[str, Any] = {"split": task.split, "overwrite": self.overwrite}
        options["evaluation"] = scores and lntm.reports.scores.score_records(scores)
        options["metadata"] = metadata | {"topic_shares": result.topic_shares.tolist()}
        options |= {"keep_chains": self.keep_chains}
        config = task.config | {"out": str(unfinished.path)}
        try:
            lntm.io.save_run(unfinished.path, task.parts.model, result, config, **options)
        except (ConfigError, OSError):
            if unfinished.started:
                say(f"the checkpoint in {unfinished.folder} is kept; run the command again")
            raise
        unfinished.discard()

    def _scores(self, task: _Task, guide: Guide[Any], path: Path) -> list[Score] | None:
        """Scores of the held-out documents; ``None`` if there are none."""
        if task.split is None:
            return None
        of_chains = path if task.samples else None
        return completion(guide, task.split.test, task.split.train, of_chains, **self.random)

    def _show_finished(self, run: Run, task: _Task) -> None:
        """Print a run that an equal command saved before, and complete its scores."""
        state = ", as Ctrl-C left it" if run.metadata.get("stop_reason") == "interrupted" else ""
        say(f"{run.path} holds this fit already{state}; --overwrite fits it again")
        file, scores, library = run.path / "evaluation.json", None, lntm.reports.scores
        if file.exists():
            scores = library.read_scores(file)
        elif task.split is not None:
            scores = self._scores(task, run.guide(), run.path) or []
            library.write_scores(file, scores)
            lntm.io.write_card(run, library.score_records(scores))
        # A fit killed between saving the run and cleaning up leaves its unfinished run.
        if lntm.io.partial_folder(run.path).exists():
            with lntm.io.UnfinishedRun(run.path, task.fixed) as unfinished:
                unfinished.discard()
        self._print(run.model, run.metadata.get("topic_shares"), scores, run.path)

    def _print(self, model: Any, shares: Any, scores: list[Score] | None, path: Path) -> None:
        show(model.topic_table(shares, num_words=self.num_words, num_correlated=2))
        if scores is not None:
            show(f"\n{lntm.frames.Rows(scores)}")
        show(f"\nThe run is in {path}")


def _stage(result: FitResult) -> str:
    """Last phase, iteration and objective of a fit, in words."""
    if not result.history:
        return "the start"
    last = result.history[-1]
    value = f"{last['objective']:.4f} nats per token ({result.objective_name})"
    return f"phase {last['phase']}, iteration {last['iteration']}, {value}"
