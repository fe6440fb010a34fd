"""Observed data: corpora of word counts, batches of documents, readers and splits."""

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.examples import (
    example_corpus,
    lee_corpus,
    lee_file,
    synthetic_topics,
)
from torch_lntm.corpus.readers import read_corpus
from torch_lntm.corpus.readers.formats import register_reader
from torch_lntm.corpus.splits import WordHoldOut, load_split

__all__ = [
    "Corpus",
    "DocumentBatch",
    "WordHoldOut",
    "example_corpus",
    "lee_corpus",
    "lee_file",
    "load_split",
    "read_corpus",
    "register_reader",
    "synthetic_topics",
]
