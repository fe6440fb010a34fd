"""Observed data: corpora of word counts, batches of documents, readers and splits."""

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.examples import example_corpus, lee_corpus, synthetic_topics
from torch_lntm.corpus.readers import read_corpus
from torch_lntm.corpus.readers.formats import register_reader
from torch_lntm.corpus.splits import WordHoldOut
from torch_lntm.corpus.vectors import WordVectors, read_vectors

__all__ = [
    "Corpus",
    "DocumentBatch",
    "WordHoldOut",
    "WordVectors",
    "example_corpus",
    "lee_corpus",
    "read_corpus",
    "read_vectors",
    "register_reader",
    "synthetic_topics",
]
