"""Conversion of any format to a corpus's folder, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from torch_lntm.corpus.checks import check_counts, check_vocabulary
from torch_lntm.corpus.mapped import Rows
from torch_lntm.corpus.metadata import FrozenDict, describe, make_metadata
from torch_lntm.corpus.readers import STREAMS, Source, joined, open_source
from torch_lntm.corpus.readers.counts import CountStream, Entries, check_size, no_entries
from torch_lntm.corpus.readers.texts import TextOptions, TextStream
from torch_lntm.corpus.store import StoreWriter, new_store
from torch_lntm.corpus.texts import count_words
from torch_lntm.errors import CorpusError, FileError


def convert_corpus(
    source: str | Path,
    folder: str | Path,
    vocabulary: str | Path | Iterable[str] | None = None,
    format: str | None = None,
    labels: str | Path | Iterable[object] | None = None,
    *,
    text_field: str | None = None,
    label_field: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    metadata: Any = None,
    shard_size: int | None = None,
    **options: Any,
) -> Path:
    r"""Converts a file or folder to a corpus's folder for memory-mapping by ``read_corpus``.

    The source may be larger than the memory. Memory holds a part of the documents, the distinct
    words and the metadata. ``npz`` and ``json`` files are the exception and are read completely.
    Texts are read twice: for the words and for the counts. In files of
    coordinates (``uci`` and ``mtx``) the documents must be in order.

    Args:
        source: The file or folder, as for ``read_corpus``.
        folder: The folder to write. It is written atomically and replaces an older corpus.
        vocabulary: As for ``read_corpus``.
        format: As for ``read_corpus``.
        labels: As for ``read_corpus``.
        text_field: As for ``read_corpus``.
        label_field: As for ``read_corpus``.
        encoding: As for ``read_corpus``.
        delimiter: As for ``read_corpus``.
        metadata: As for ``read_corpus``.
        shard_size: Number of documents of each shard, for processes that read only their own
            shards. The last shard may have fewer. Defaults to one shard.
        **options: Options of ``Corpus.from_texts`` for texts, except ``vectorizer``.

    Returns:
        The folder.

    Raises:
        CorpusError: As for ``read_corpus`` and ``Corpus.save``. Documents are out of order.

    Example:
        >>> from pathlib import Path
        >>> size = Path("texts.txt").write_text("wood and stone\nwater\n")
        >>> folder = lntm.corpus.convert_corpus("texts.txt", "texts")
        >>> lntm.read_corpus(folder)
        Corpus('texts', num_docs=2, num_words=3, num_tokens=3)
    """
    text_options = TextOptions(text_field, label_field, encoding, delimiter, math.inf)
    documents = open_source(source, vocabulary, format, labels, text_options, options)
    if "vectorizer" in options:
        raise CorpusError("vectorizer cannot be given here; give its options and vocabulary")
    columns = documents.find_metadata(metadata)
    with new_store(Path(folder), shard_size) as writer, documents.named():
        _convert(documents, writer, columns, options)
    return Path(folder)


def _convert(source: Source, writer: StoreWriter, columns: Any, options: Mapping[str, Any]) -> None:
    labels, preparation, covariates = source.labels, None, FrozenDict[Any]()
    words: Iterable[str] | None
    if source.is_text:
        texts = TextStream(source.path, source.format, source.options)
        counts, words, preparation = count_words(texts, source.vocabulary, **options)
        num_words = len(words)
        for matrix in counts:
            writer.add(_rows(matrix))
        metadata: Any = texts.metadata
        labels = texts.labels if labels is None else labels
    elif source.format in STREAMS:
        stream = STREAMS[source.format](source.path, source.num_words, math.inf)
        num_words = write_stream(source.path, stream, writer)
        words, metadata = source.vocabulary or stream.vocabulary, stream.metadata
    else:
        corpus = source.read({})
        for _, rows in corpus.parts():
            writer.add(rows)
        num_words, words = corpus.num_words, corpus.vocabulary
        metadata, covariates = corpus.table, corpus.covariates
        preparation = corpus.preparation
    if not writer.nnz:
        raise CorpusError(
            f"the corpus is empty: {writer.num_docs} documents, {num_words} words, 0 tokens; "
            "give at least one document with one word"
        )
    table = describe(metadata, writer.num_docs, metadata, labels)
    if columns is not None:
        table = table.assign(**make_metadata(joined(columns, table), len(table), table.index))
    writer.close(num_words, check_vocabulary(words, num_words), table, covariates, preparation)


def write_stream(path: Path, stream: CountStream, writer: StoreWriter) -> int:
    """Writes a stream of counts with ordered documents. Returns the number of words.

    Raises:
        FileError: The documents are out of order, or a size is out of proportion to the file.
    """
    num_words = 0 if stream.num_words is None else stream.num_words
    for piece in _complete(path, stream):
        first = writer.num_docs
        num_entries = writer.nnz + piece.words.size
        if stream.num_words is None:
            num_words = max(num_words, int(piece.words.max(initial=-1)) + 1)
            check_size(path, 0, num_words, num_entries, None)
        check_size(path, piece.num_docs, 0, num_entries, None)
        entries = (piece.counts, (piece.rows - first, piece.words))
        writer.add(_rows(sp.coo_matrix(entries, (piece.num_docs - first, num_words))))
    return num_words


def _complete(path: Path, stream: CountStream) -> Iterator[Entries]:
    """Joins the pieces of a stream to pieces of complete documents in order."""
    first, incomplete = 0, no_entries(0)
    for piece in stream.pieces:
        arrays = zip(incomplete[1:], piece[1:], strict=True)
        piece = Entries(piece.num_docs, *map(np.concatenate, arrays))
        rows = piece.rows
        if rows.size and (rows[0] < first or (rows[1:] < rows[:-1]).any()):
            raise FileError(
                f"{path}: the documents are not in order; sort the lines by document, or read the "
                "file by read_corpus, which takes more memory, and save the corpus"
            )
        done = int(np.searchsorted(rows, piece.num_docs))
        incomplete = Entries(piece.num_docs, *(array[done:] for array in piece[1:]))
        if piece.num_docs > first:
            yield Entries(piece.num_docs, *(array[:done] for array in piece[1:]))
            first = piece.num_docs


def _rows(matrix: Any) -> Rows:
    """Checked rows of a matrix of counts."""
    if not matrix.shape[0] or not matrix.shape[1]:
        none = np.empty(0, np.int64)
        return Rows(np.zeros(matrix.shape[0], np.int64), none, none)
    csr = check_counts(matrix, allow_empty=True)
    return Rows(np.diff(csr.indptr), csr.indices, csr.data)
