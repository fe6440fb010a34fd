"""Parts of a corpus know their place, and selections of a part are corpora of their own."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.corpora import make_corpus

from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.corpus.part import Facts
from torch_lntm.errors import CorpusError, FileError
from torch_lntm.models import stm


@pytest.fixture
def corpus() -> Corpus:
    return make_corpus(num_docs=60, num_words=20)


@pytest.fixture
def part(corpus: Corpus, tmp_path: Path) -> Corpus:
    """Documents 30 to 60, in the shards 3 to 5."""
    corpus.save(tmp_path / "toy", shard_size=10)
    return read_corpus(tmp_path / "toy", rank=1, world_size=2)


def test_a_part_knows_its_place(part: Corpus, corpus: Corpus, tmp_path: Path) -> None:
    place = part.part
    assert place is not None
    assert place.sizes == (10,) * 6
    assert (place.num_docs, place.first) == (60, 10 * place.shards[0])
    rows = [np.arange(part.num_docs)[rows] for _, rows in place.slices()]
    np.testing.assert_array_equal(np.concatenate(rows), np.arange(part.num_docs))
    np.testing.assert_array_equal(part.lengths, corpus.lengths[place.first :])
    assert str(place) == f"shards {place.shards[0]} to 5 of 6"
    assert str(place) in repr(part)
    other = read_corpus(tmp_path / "toy", rank=0, world_size=2).part
    assert other is not None
    assert other.fingerprint == place.fingerprint
    assert other.shards == (0, place.shards[0])
    assert read_corpus(tmp_path / "toy").part is None


def test_parts_of_other_corpora_have_other_fingerprints(corpus: Corpus, tmp_path: Path) -> None:
    def fingerprint(name: str, documents: Corpus, shard_size: int) -> str:
        documents.save(tmp_path / name, shard_size=shard_size)
        part = read_corpus(tmp_path / name, rank=0, world_size=1).part
        assert part is not None
        return part.fingerprint

    words = replace(corpus, vocabulary=tuple(f"v{i}" for i in range(20)))
    found = [
        fingerprint("a", corpus, 10),
        fingerprint("b", corpus[::-1], 10),
        fingerprint("c", corpus, 20),
        fingerprint("d", words, 10),
    ]
    assert len(set(found)) == 4
    assert fingerprint("e", corpus, 10) == found[0]


def test_the_numbers_of_the_whole_are_unknown_until_the_parts_are_joined(part: Corpus) -> None:
    with pytest.raises(CorpusError, match=r"does not know the numbers.*join_parts"):
        _ = part.whole
    numbers = np.arange(20)
    facts = Facts(60, numbers, numbers, 1.0 * numbers, 9.0, np.array([10, 9, 10, 10, 0, 1]))
    assert part.part is not None
    joined = replace(part, part=replace(part.part, facts=facts))
    assert joined.whole is facts
    assert joined.whole.num_nonempty == 40
    again = pickle.loads(pickle.dumps(joined))
    assert again.part.shards == part.part.shards
    assert again.whole.num_tokens == 190


def test_a_whole_corpus_is_its_own_whole(corpus: Corpus) -> None:
    assert corpus.whole is corpus
    matrix = corpus.to_scipy().toarray()
    np.testing.assert_array_equal(corpus.document_frequency, (matrix > 0).sum(0))
    np.testing.assert_array_equal(corpus.word_totals, matrix.sum(0))
    np.testing.assert_array_equal(corpus.word_squares, (matrix.astype(float) ** 2).sum(0))
    assert corpus.num_nonempty == (matrix.sum(1) > 0).sum()


def test_other_documents_counts_and_words_are_no_part(part: Corpus) -> None:
    part = replace(part, vocabulary=tuple(f"w{i}" for i in range(20)))
    observed, held_out = part.hold_out_words()
    train, test = part.split(0.2)
    words = part.with_vocabulary(reversed(part.vocabulary or ()))
    for other in (part[:], observed, held_out, train, test, words):
        assert other.part is None
        assert other.whole is other
    # Columns belong to the same documents.
    assert part.with_metadata({"n": range(part.num_docs)}).part is part.part
    assert part.with_covariates({"x": np.ones(part.num_docs)}).part is part.part


def test_the_columns_of_all_documents_are_known_to_every_part(
    corpus: Corpus, tmp_path: Path
) -> None:
    corpus = corpus.with_metadata({"year": range(60)}).with_covariates({"x": np.arange(60.0)})
    corpus.save(tmp_path / "toy", shard_size=10)
    part = read_corpus(tmp_path / "toy", rank=1, world_size=3)
    columns = part.columns_of_whole()
    assert columns.metadata["year"].tolist() == list(range(60))
    np.testing.assert_array_equal(columns.covariates["x"], np.arange(60.0))
    assert (columns.num_docs, columns.num_tokens) == (60, 0)
    assert columns.vocabulary == corpus.vocabulary
    assert corpus.columns_of_whole() is corpus
    (tmp_path / "toy/shard-00005/covariates.npz").unlink()
    with pytest.raises(FileError, match=r"shard-00005/covariates.npz: no such file"):
        part.columns_of_whole()


def test_models_learn_from_the_columns_of_all_documents(corpus: Corpus, tmp_path: Path) -> None:
    sides = ["left", "right", "centre"]
    # The last process has documents of one group only.
    columns = {"side": [sides[d // 20] for d in range(60)], "x": np.linspace(-1.0, 1.0, 60)}
    corpus = corpus.with_metadata(columns)
    corpus.save(tmp_path / "toy", shard_size=10)
    part = read_corpus(tmp_path / "toy", rank=2, world_size=3)
    found, expected = (
        stm(2, documents, "~ bs(x, df=5) + side", content="side") for documents in (part, corpus)
    )
    assert found.prior.covariates == expected.prior.covariates
    own, whole = found.encode(part).encodings, expected.encode(corpus).encodings
    assert own.keys() == whole.keys() == {"content", "prevalence"}
    for name in own:
        np.testing.assert_array_equal(own[name], whole[name][-part.num_docs :])
