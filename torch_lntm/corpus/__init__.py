"""Observed data: corpora of word counts, batches of documents, readers and splits."""

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.corpus.corpus import Corpus, as_corpus
from torch_lntm.corpus.examples import (
    example_corpus,
    example_file,
    lee_corpus,
    lee_file,
    synthetic_topics,
)
from torch_lntm.corpus.readers import read_corpus
from torch_lntm.corpus.readers.convert import convert_corpus
from torch_lntm.corpus.readers.registration import register_reader
from torch_lntm.corpus.readers.texts import TextOptions, read_metadata
from torch_lntm.corpus.splits import Split, WordHoldOut, load_split, load_word_hold_out

__all__ = [
    "Corpus",
    "DocumentBatch",
    "Split",
    "TextOptions",
    "WordHoldOut",
    "as_corpus",
    "convert_corpus",
    "example_corpus",
    "example_file",
    "lee_corpus",
    "lee_file",
    "load_split",
    "load_word_hold_out",
    "read_corpus",
    "read_metadata",
    "register_reader",
    "synthetic_topics",
]
