"""fit, which goes from documents in any form to a fitted run in one call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from torch_lntm.budget import find_device
from torch_lntm.corpus import Corpus
from torch_lntm.corpus.examples import located
from torch_lntm.corpus.readers import OF_FILES, OF_WORDS, read_documents
from torch_lntm.corpus.splits import Split
from torch_lntm.errors import require_whole
from torch_lntm.io.runs import Run, fresh_run
from torch_lntm.recipes import FitComponents, Recipe, refuse_unknown
from torch_lntm.reports.scores import held_out_scores

__all__ = ["fit"]


def fit(
    documents: Any,
    num_topics: int = 20,
    *,
    model: str | None = None,
    posterior: str | None = None,
    test_fraction: float = 0.0,
    seed: int = 0,
    device: str = "auto",
    progress: bool = True,
    **options: Any,
) -> Run:
    """Fit topics to documents in one call.

    Words are counted, a model and a method are chosen, and the fit returns a run, which has what
    you want to know next: ``run.topics`` and ``run.documents`` (data frames), ``run.transform(new
    texts)``, ``run.effects("~ party")``, ``run.report()`` and ``run.save(folder)``. The command
    ``torch-lntm fit`` makes the same runs. Ctrl-C ends the fit early and keeps what is there.

    Args:
        documents: The path of a file or folder, as for :func:`~torch_lntm.read_corpus`; a list of
            texts; a data frame or list of dicts, with texts in the column ``text`` or
            ``text_field``; counts, as for ``Corpus.from_matrix``; a corpus; or ``"example"``, 75
            short texts of this package.
        num_topics: Number of topics.
        model: Name of the model. Defaults to ``"stm"`` with ``prevalence`` or ``content``, and to
            ``"ctm"`` otherwise.
        posterior: Name of a posterior, such as ``"taylor"``. Defaults to ``"auto"``, the chains of
            Monte-Carlo EM, or to variational EM if you set one of its options.
        test_fraction: Share of the documents to hold out from the fit. ``run.scores`` then has
            their completion perplexity, and so has ``print(run)``.
        seed: Seed of all random numbers.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``. ``"auto"`` takes a GPU if there is one.
        progress: Whether to show progress bars on standard error.
        **options: Options by name, each of which goes to where it belongs: to the reader
            (``text_field``, ``stop_words``, ``min_df``), to the constructor of the model
            (``prevalence``, ``content``, ``keywords``, ``word_vectors``, ``bursty``), or to the
            engine (``max_epochs``, ``max_iterations``).

    Returns:
        The run.

    Raises:
        CorpusError: The documents are of another form, malformed, or have no words.
        ConfigError: An option is unknown, or has an invalid value.

    Example:
        >>> texts = ["salt and butter", "wind and sea", "butter on bread", "sea and harbour"]
        >>> run = lntm.fit(texts, 2, progress=False)
        >>> list(run.topics)
        ['topic', 'name', 'share', 'lower', 'upper', 'words']
        >>> run.transform(["bread, salt, butter"], progress=False).theta.shape
        torch.Size([1, 2])
    """
    require_whole(1, num_topics=num_topics)
    require_whole(0, seed=seed)
    reading = {n: options.pop(n) for n in (*OF_FILES, *OF_WORDS) if n in options}
    refuse_unknown(options)
    recipe = Recipe.of(model, posterior, options)
    where = find_device(device)
    source, defaults = located(documents)
    corpus, texts = read_documents(source, **{**defaults, **reading})
    config: dict[str, Any] = {"num_topics": num_topics, "seed": seed, "progress": progress}
    about: dict[str, Any] = {"device": where, "test_fraction": test_fraction}
    split, recipe, (_, guide, engine) = prepare(corpus, recipe, options | config, **about)
    result = engine.fit(corpus if split is None else split.train)
    config |= {
        "model": recipe.model,
        "posterior": recipe.posterior if recipe.samples else guide.name,
    }
    config |= {"device": where.type, "test_fraction": test_fraction}
    config["corpus"] = str(documents) if isinstance(documents, (str, Path)) else None
    config |= _plain(reading | {**recipe.options, **options})
    scores = None
    with suppress(KeyboardInterrupt):  # Ctrl-C keeps the fit
        if result.stop_reason not in ("interrupted", "terminated"):
            scores = held_out_scores(guide, split, seed=seed, progress=progress)
    return fresh_run(result, config, corpus, split, scores, texts)


def prepare(
    corpus: Corpus,
    recipe: Recipe,
    options: Mapping[str, Any],
    *,
    device: torch.device | str,
    test_fraction: float = 0.0,
    model_options: Mapping[str, Any] | None = None,
) -> tuple[Split[Corpus] | None, Recipe, FitComponents]:
    """Divide a corpus, and make the model, its guide and the engine for the training documents.

    Args:
        corpus: The documents.
        recipe: The model and the posterior.
        options: ``num_topics``, ``seed`` and ``progress``, and further options of
            :meth:`Recipe.make`.
        device: Device of the model.
        test_fraction: Share of the documents to hold out.
        model_options: As for :meth:`Recipe.make`.

    Returns:
        The split, or ``None``; the recipe, completed for the corpus; and the parts of the fit.
    """
    options = dict(options)
    seed = options.pop("seed")
    split = corpus.split(test_fraction, seed=seed) if test_fraction else None
    recipe = recipe.for_corpus(corpus if split is None else split.train, options["num_topics"])
    parts = recipe.make(
        corpus,  # held-out documents may have levels and dates that the others lack
        seed=seed,
        device=device,
        options=options,
        model_options=model_options,
    )
    return split, recipe, parts


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a file can hold."""
    plain = {}
    for name, value in options.items():
        with suppress(TypeError, ValueError):
            plain[name] = json.loads(json.dumps(value))
    return plain
