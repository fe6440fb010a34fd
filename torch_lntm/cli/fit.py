"""``torch-lntm fit``."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch_lntm as lntm
from torch_lntm.cli.command import given, register_command, say, show, takes
from torch_lntm.cli.documents import Computation, Documents
from torch_lntm.cli.launch import STOPPED, processes_on
from torch_lntm.cli.values import lists_option
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.options import CHOSEN, fit_options

if TYPE_CHECKING:
    from torch_lntm.corpus import Corpus, WordVectors
    from torch_lntm.corpus.splits import Split
    from torch_lntm.inference import FitResult, Processes
    from torch_lntm.io import UnfinishedRun
    from torch_lntm.recipes import FitComponents, Recipe


#: Options that may change when a killed fit is continued.
CHANGEABLE = (
    *("out", "overwrite", "threads", "progress", "top_n", "checkpoint_seconds"),
    "keep_chains",
)
#: Parameters of constructors and engines that have no option, or an option with another help.
_OWN = ("num_topics", "num_words", "keywords", "word_vectors", "seed", "progress")


@dataclass(kw_only=True)
class FitOptions:
    """The model, the method and the folder that the user asks for.

    Attributes:
        model: Model to fit. ctm: The correlated topic model. lntm: The logistic-normal topic model
            without correlations. iftm: The independent factor topic model. lda: Latent Dirichlet
            allocation, also called the generative aspect model. stm: The structural topic model,
            whose topics depend on columns of the corpus. Plug-ins can register further models.
            Defaults to stm with prevalence or content, and to ctm without.
        posterior: Method for the documents' posteriors. auto: Monte-Carlo EM (hmc), with fewer
            epochs above 9 million tokens. hmc: Monte-Carlo EM, by sampling. Variational EM has
            these approximations: taylor, laplace, blei-lafferty and khan-bouchard for ctm, lntm and
            stm; vb and ep for lda; factor for iftm, and taylor and laplace for iftm with gaussian
            sources. Defaults to auto, or to variational EM if you set any of its options.
        num_topics: Number of topics, K.
        keywords: Keywords by topic, such as "economy=tax,budget; war=army", or a .yaml or .json
            file of lines such as "economy: [tax, budget]". These topics come first, and num_topics
            counts them as well as the free ones. For ctm, iftm, lda and stm.
        word_vectors: File of word vectors, by which topics expect words of similar meaning: text of
            GloVe, word2vec or fastText, or binary of word2vec, perhaps gzipped. For ctm, iftm, lda
            and stm.
        model_options: Further arguments of the model's constructor, as JSON.
        test_fraction: Share of the documents to hold out for evaluation; 0 holds out none. Defaults
            to 0.1, except for several processes that fit a folder in shards by hmc. They hold out
            none by default, so that each opens only its own shards, whereas with a share each opens
            the whole corpus.
        out: Folder of the run. Defaults to runs/NAME, with the name of the corpus.
        overwrite: Replace an existing run.
        top_n: Number of top words to print for each topic.
        checkpoint_seconds: Seconds between checkpoints.
        keep_chains: Save the last states of the chains of posterior hmc, so that the commands
            report and effects can continue them. They take 4 bytes per document, topic and chain.
    """

    model: str | None = None
    posterior: str | None = None
    num_topics: int = 50
    keywords: str | dict[str, Any] | None = None
    word_vectors: str | None = None
    model_options: dict[str, Any] | None = None
    test_fraction: float | None = None
    out: str | None = None
    overwrite: bool = False
    top_n: int = 10
    checkpoint_seconds: float = 60.0
    keep_chains: bool = True


@register_command("fit")
@takes(lambda: fit_options(_OWN))
def fit_model(
    *,
    fit: FitOptions,
    documents: Documents,
    computation: Computation,
    **options: Any,
) -> int:
    """Fit a topic model to a corpus, save the run, and print topics and held-out perplexity.

    If a fit is killed, run the same command again to continue from its last checkpoint. Ctrl-C ends
    a fit early and saves the best iteration so far, or the last finished epoch of Monte-Carlo EM.
    SIGTERM saves a checkpoint of the last finished iteration or epoch, from which the fit can
    continue. To distribute a fit over several processes, start it by torchrun:
    torchrun --nproc-per-node 2 -m torch_lntm fit CORPUS.
    """
    device = computation.start()
    with processes_on(device) as processes:
        together = processes.together
        recipe, corpus = together(lambda: _read(documents, fit, options, processes))
        joined = lntm.inference.join_parts(corpus, processes)
        config = {"corpus": documents.corpus} | documents.given
        config |= vars(computation) | vars(fit) | options | {"device": device.type}
        return together(lambda: _task(fit, options, config, recipe, joined)).run(processes)


def _read(
    documents: Documents, fit: FitOptions, options: dict[str, Any], processes: Processes
) -> tuple[Recipe, Corpus]:
    """Check the options, and read the corpus or this process's part of it."""
    from torch_lntm.corpus.store import count_shards
    from torch_lntm.recipes import Recipe

    require_whole(1, top_n=fit.top_n)
    fit.keywords = lists_option("keywords", fit.keywords)  # the run keeps the words
    if fit.out is not None:
        lntm.io.check_target(Path(fit.out), fit.overwrite)
    recipe = Recipe.of(fit.model, fit.posterior, given(fit_model, options))
    fit.model = recipe.model
    whole = processes.alone or fit.test_fraction or documents.given
    if whole or count_shards(documents.path) < processes.size:
        fit.test_fraction = 0.1 if fit.test_fraction is None else fit.test_fraction
        return recipe, documents.read()
    fit.test_fraction = 0.0
    rank, size = processes.rank, processes.size
    return recipe, lntm.read_corpus(documents.path, rank=rank, world_size=size)


def _task(
    fit: FitOptions,
    options: dict[str, Any],
    config: dict[str, Any],
    recipe: Recipe,
    corpus: Corpus,
) -> _Task:
    """Make the model, the guide and the engine, and check the folder of the run."""
    from torch_lntm.files.writing import shortened
    from torch_lntm.fitting import prepare

    vectors = None
    if fit.word_vectors is not None:
        vectors = lntm.corpus.read_vectors(fit.word_vectors, corpus.vocabulary)
    of_words = {"keywords": fit.keywords, "word_vectors": vectors}
    settings: dict[str, Any] = {n: value for n, value in of_words.items() if value is not None}
    settings |= {"num_topics": fit.num_topics, **given(fit_model, options)}
    split, recipe, parts = prepare(
        corpus,
        recipe,
        settings | {name: config[name] for name in ("seed", "progress")},
        device=config["device"],
        test_fraction=fit.test_fraction or 0.0,
        model_options=fit.model_options,
    )
    settings = {**recipe.options, **settings}
    lntm.io.check_saveable(parts.model)
    path = Path(fit.out or Path("runs", shortened(corpus.name or "corpus")))
    lntm.io.check_target(path, fit.overwrite)
    posterior = recipe.posterior if recipe.samples else parts.guide.name
    config |= {name: (settings | (fit.model_options or {})).get(name) for name in CHOSEN}
    config |= {"out": str(path), "posterior": posterior}
    return _Task(path, corpus, split, parts, config, recipe, vectors)


@dataclass(frozen=True)
class _Task:
    """A fit that is ready to run: its corpus with the split, its parts and its configuration."""

    path: Path
    corpus: Corpus
    split: Split[Corpus] | None
    parts: FitComponents
    config: dict[str, Any]
    recipe: Recipe
    vectors: WordVectors | None

    @property
    def train(self) -> Corpus:
        """Training documents."""
        return self.corpus if self.split is None else self.split.train

    def run(self, processes: Processes) -> int:
        """Fit the model; the first process then saves and prints the results."""
        from torch_lntm.io.runs import CHECKPOINT, UnfinishedRun, partial_folder

        fixed = {name: value for name, value in self.config.items() if name not in CHANGEABLE}
        with ExitStack() as stack:
            enter = stack.enter_context
            unfinished = processes.together(
                lambda: enter(UnfinishedRun(self.path, fixed)) if processes.first else None
            )
            if unfinished is not None:
                self.announce(unfinished, processes)
            result = self.parts.engine.fit(
                self.train,
                checkpoint=partial_folder(self.path) / CHECKPOINT,
                checkpoint_seconds=self.config["checkpoint_seconds"],
                processes=processes,
            )
            if unfinished is not None:
                self.finish(unfinished, result)
            if result.stop_reason in STOPPED:
                processes.gather(None)  # the launcher ends all processes after the first exit
        return STOPPED.get(result.stop_reason, 0)

    def finish(self, unfinished: UnfinishedRun, result: FitResult) -> None:
        """Score the documents that are held out, if any, save and print."""
        from torch_lntm.reports.scores import held_out_scores

        scores, interrupted = None, result.stop_reason == "interrupted"
        random = {name: self.config[name] for name in ("seed", "progress")}
        if result.stop_reason == "terminated":
            saved = f"saved the checkpoint {unfinished.checkpoint}, {_stage(result)}"
            say(f"terminated: {saved}; run the command again to continue")
            return
        try:
            if not interrupted:
                scores = held_out_scores(self.parts.guide, self.split, **random)
        except KeyboardInterrupt:
            say("the fit is saved without scores, which torch-lntm evaluate makes")
            raise
        finally:  # the command evaluate scores a fit that is saved without scores
            self.save(unfinished, result, scores)
        if interrupted:
            state = "last finished epoch" if self.recipe.samples else "best so far"
            say(f"interrupted: saved the {state}, {_stage(result)}, in {self.path}")
            return
        say(f"{result.ended}: {_stage(result)}, {result.seconds:.1f} s")
        if result.num_unconverged and not self.recipe.samples:
            say(f"warning: {result.num_unconverged} documents' posteriors did not converge")
        top_n, model = self.config["top_n"], self.parts.model
        show(model.topic_table(result.topic_shares, top_n=top_n, num_correlated=2))
        if scores is not None:
            show(f"\n{lntm.frames.render(scores)}")
        show(f"\nThe run is in {self.path}")

    def announce(self, unfinished: UnfinishedRun, processes: Processes) -> None:
        """Print the documents, the words and the device of the fit."""
        corpus, whole = self.corpus, self.train.whole
        if unfinished.started:
            say(f"continuing the unfinished fit of {unfinished.checkpoint}")
        if corpus.preparation:
            say(corpus.preparation)
        if self.recipe.reason:
            say(f"posterior auto: {self.recipe.reason}")
        if self.vectors is not None:
            found, share = self.vectors.found, self.vectors.share_found(corpus.word_totals)
            say(f"word vectors of {found.sum()} of {found.size} words, {share:.1%} of the tokens")
        held_out = "" if self.split is None else f", with {len(self.split.test)} held out"
        several = "" if processes.alone else f", in {processes.size} processes"
        if corpus.part is not None:
            several += " with their own shards, and none held out"
        empty = whole.num_docs - whole.num_nonempty
        wordless = f" ({empty} without words)" if empty else ""
        about = f"{whole.num_docs} documents{wordless} of {corpus.num_words} words{held_out}"
        say(f"fitting {about}, {self.config['device']}{several}")

    def save(self, unfinished: UnfinishedRun, result: FitResult, scores: Any) -> None:
        """Save the run atomically."""
        from torch_lntm.io.runs import fresh_run

        run = fresh_run(result, self.config, self.corpus, self.split, scores)
        try:
            run.save(self.path, **{n: self.config[n] for n in ("keep_chains", "overwrite")})
        except (ConfigError, OSError):
            if unfinished.started:
                say(f"the checkpoint in {unfinished.folder} is kept; run the command again")
            raise
        unfinished.discard()


def _stage(result: FitResult) -> str:
    """Last phase, iteration and objective of a fit, in words."""
    if not result.history:
        return "the start"
    last = result.history[-1]
    value = f"{last['objective']:.4f} nats per token ({result.objective_name})"
    return f"phase {last['phase']}, iteration {last['iteration']}, {value}"
