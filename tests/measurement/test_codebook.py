"""Codebooks: what is frozen, what is refused, what a file holds, and what is measured."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from support.fits import COVARIANCE, NUM_WORDS, TOPICS
from support.known import make_corpus, make_model

import torch_lntm as lntm
from torch_lntm.errors import ConfigError, CorpusError, MissingColumnError


@pytest.fixture(scope="module")
def corpus():
    """60 documents with words, names, parties and books."""
    truth = lntm.models.ctm(3, NUM_WORDS, covariance=COVARIANCE, topics=TOPICS)
    matrix = truth.generate(torch.full((60,), 12), seed=1)[0].to_scipy()
    columns = {
        "id": [f"d{i:02}" for i in range(60)],
        "party": ["left", "right"] * 30,
        "book": [f"b{i // 7}" for i in range(60)],
    }
    words = [f"w{v}" for v in range(NUM_WORDS)]
    return lntm.Corpus.from_matrix(matrix, words, metadata=columns)


@pytest.fixture(scope="module")
def halves(corpus):
    return tuple(corpus.split_for_discovery(0.5, by="book", seed=2))


@pytest.fixture(scope="module")
def book(halves):
    model = lntm.models.ctm(3, halves[0], covariance=COVARIANCE, topics=TOPICS)
    settings = {"groups": {"both": [0, 2]}, "names": {1: "sport"}, "discovery": halves[0]}
    return lntm.codebook(model, **settings, decisions=["two topics are one"])


# ------------------------------------------------------------------ discovery apart


def test_clusters_stay_on_one_side(corpus, halves):
    discovery, estimation = halves
    assert {*discovery.metadata["book"]}.isdisjoint(estimation.metadata["book"])
    assert sorted([*discovery.metadata.index, *estimation.metadata.index]) == [
        *corpus.metadata.index
    ]
    # Books have 7 documents, or 4, so a set is at most half a book from its share.
    for fraction in (0.2, 0.5, 0.9):
        for seed in range(20):
            found = corpus.split_for_discovery(fraction, by="book", seed=seed)
            assert abs(found.train.num_docs - 60 * fraction) <= 3.5
    given = corpus.split(0.5, by=corpus.metadata["book"][::-1], seed=2)
    assert (given.train_index == corpus.split_for_discovery(by="book", seed=2).train_index).all()
    assert corpus.split_for_discovery(0.7, seed=3).train.num_docs == 42


def test_clusters_that_cannot_be_divided_are_refused(corpus):
    gaps = corpus.with_metadata({"who": [None, *"ab" * 29, "c"], "one": ["x"] * 60})
    with pytest.raises(CorpusError, match=r"'who' lacks a value in 1 documents, .* document 0"):
        gaps.split(by="who")
    with pytest.raises(CorpusError, match="at least 2 values of 'one', got 1"):
        gaps.split(by="one")
    with pytest.raises(MissingColumnError, match=r"'boook'.*'book'"):
        gaps.split_for_discovery(by="boook")
    with pytest.raises(CorpusError, match="fraction must lie between 0 and 1, got 1"):
        corpus.split_for_discovery(1)


def test_documents_of_the_discovery_are_known_by_words_and_name(corpus, halves, book):
    discovery, estimation = halves
    assert book.seen(corpus).to_numpy().tolist() == [
        name in discovery.metadata.index for name in corpus.metadata.index
    ]
    first = discovery.metadata.index[0]
    with pytest.raises(ConfigError, match=rf"32 of 60 documents .*, the first of them {first}[.]"):
        book.measure(corpus)
    measured = book.measure(corpus, allow_discovery=True, num_draws=2, progress=False)
    assert "60 documents, 32 of them documents of discovery" in repr(measured)
    assert book.measure(estimation, num_draws=2).num_seen == 0
    assert book.measure(corpus[~book.seen(corpus)], num_draws=2).corpus.num_docs == 28
    # Other names are other documents; without names, words decide, in any order of the vocabulary.
    matrix, words = discovery.to_scipy(), discovery.vocabulary
    renamed = lntm.Corpus.from_matrix(matrix, words, metadata={"id": range(100, 132)})
    assert not book.seen(renamed).any()
    nameless = lntm.Corpus.from_matrix(matrix[:, ::-1], words[::-1])
    assert book.seen(nameless).all()
    changed = matrix.copy()
    changed.data[:] += np.arange(matrix.nnz) == 0
    assert book.seen(lntm.Corpus.from_matrix(changed, words)).tolist() == [False] + [True] * 31


def test_without_its_documents_a_codebook_cannot_know_them():
    book = lntm.codebook(make_model())
    assert "documents of discovery unknown" in repr(book)
    assert book.measure(make_corpus(), num_draws=2, progress=False).num_seen == 0
    with pytest.raises(ConfigError, match=r"give them to lntm.codebook as discovery=corpus"):
        book.seen(make_corpus())
    known = lntm.codebook(make_model(), discovery=make_corpus())
    assert known.seen(make_corpus()).tolist() == [True] * 4 + [False] + [True] * 4  # empty


# ------------------------------------------------------------------ frozen


def test_a_codebook_is_a_copy_with_a_hash_of_its_content(halves):
    model = make_model()
    book = lntm.codebook(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    same = lntm.codebook(make_model(), decisions=["a"], discovery=make_corpus())
    assert book.hash == same.hash
    others = [
        lntm.codebook(make_model(), names=["a", None, None]),
        lntm.codebook(make_model(), groups={"g": [0, 1]}),
        lntm.codebook(make_model(), groups={"h": [0, 1]}),
        lntm.codebook(make_model(vocabulary=("ant", "bee", "dog", "cat"))),
        lntm.codebook(make_model(loc=torch.tensor([0.0, 0.0, 1e-6]))),
    ]
    assert len({book.hash, *(other.hash for other in others)}) == 6
    with torch.no_grad():
        next(book.model.prior.parameters()).add_(1e-6)
    with pytest.raises(ConfigError, match=r"not those of its hash .* they were changed"):
        book.measure(make_corpus())
    with pytest.raises(ConfigError, match="a codebook has no documents"):
        book.effects("~ 1")


def test_decisions_are_dated_and_leave_the_old_book(book):
    new = book.decide("a topic is left out")
    assert [d["text"] for d in new.decisions] == ["two topics are one", "a topic is left out"]
    assert new.decisions[0] == book.decisions[0]
    assert len(book.decisions) == 1
    assert pd.Timestamp(new.decisions[1]["date"]) >= pd.Timestamp(book.decisions[0]["date"])
    assert new.hash == book.hash
    with pytest.raises(ConfigError, match="expected a sentence"):
        book.decide(" ")


# ------------------------------------------------------------------ files


@pytest.fixture
def path(book, tmp_path):
    return book.save(tmp_path / "book.safetensors")


def test_a_file_holds_all_but_texts(book, halves, path):
    loaded = lntm.Codebook.load(path)
    for name in ("hash", "content", "decisions", "versions", "discovery", "groups"):
        assert getattr(loaded, name) == getattr(book, name)
    assert repr(loaded) == repr(book)
    assert loaded.model.topic_names == ("0", "sport", "2")
    assert loaded.seen(halves[0]).all()
    theta = [x.measure(halves[1], num_draws=3).draws.theta for x in (book, loaded)]
    assert torch.equal(*theta)
    assert loaded.save(path.with_name("again")).read_bytes() == path.read_bytes()
    assert b"d00" not in path.read_bytes()  # names of documents are hashed too
    with pytest.raises(ConfigError, match="exists already"):
        book.save(path)
    assert book.decide("b").save(path, overwrite=True) == path
    assert len(lntm.Codebook.load(path).decisions) == 2


def test_models_with_formulas_and_runs_are_frozen_too(corpus, tmp_path):
    model = lntm.models.stm(3, corpus, prevalence="~ party")
    book = lntm.codebook(model, discovery=corpus[:30])
    loaded = lntm.Codebook.load(book.save(tmp_path / "book"))
    assert loaded.hash == book.hash
    assert loaded.measure(corpus[30:], num_draws=2).corpus.num_docs == 30
    result = lntm.inference.MonteCarloEM(model, max_epochs=1, progress=False).fit(corpus)
    assert lntm.codebook(result).discovery["fingerprint"] == corpus.fingerprint()


def altered(path, change):
    """Writes the file anew, with a change of its description and tensors."""
    with safe_open(path, "pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    sealed = json.loads(header["codebook"])
    change(sealed["about"], tensors)
    header["codebook"] = json.dumps(sealed)
    path.write_bytes(safetensors.torch.save(tensors, header))


def test_altered_files_are_refused(path, tmp_path):
    def decision(about, tensors):
        about["decisions"][0]["text"] = "other"

    def topics(about, tensors):
        next(x for x in tensors.values() if x.is_floating_point()).flatten()[0] += 1e-6

    def documents(about, tensors):
        tensors["discovery.documents"][0] += 1

    whole = path.read_bytes()
    for change in (decision, topics, documents):
        altered(path, change)
        with pytest.raises(ConfigError, match=r"was altered .*hash"):
            lntm.Codebook.load(path)
        path.write_bytes(whole)
    for size in (0, 9, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match="no complete codebook"):
            lntm.Codebook.load(path)
    path.write_bytes(safetensors.torch.save({"x": torch.zeros(1)}))
    with pytest.raises(ConfigError, match="no complete codebook"):
        lntm.Codebook.load(path)
    with pytest.raises(ConfigError, match="no such file"):
        lntm.Codebook.load(tmp_path / "none")


def test_tensors_with_exchanged_names_are_refused(tmp_path):
    path = lntm.codebook(lntm.models.ctm(3, 3, seed=0)).save(tmp_path / "book")

    def exchange(about, tensors):
        first, second = (name for name, x in tensors.items() if x.shape == (3, 3))
        tensors[first], tensors[second] = tensors[second], tensors[first]

    altered(path, exchange)
    with pytest.raises(ConfigError, match=r"its tensors .* have other hashes"):
        lntm.Codebook.load(path)


# ------------------------------------------------------------------ measuring


def test_documents_get_shares_with_intervals(book, halves):
    measured = book.measure(halves[1], num_draws=40)
    frame, theta = measured.frame(level=0.9), measured.draws.theta.double().numpy()
    assert frame["document"].tolist() == np.repeat(halves[1].metadata.index, 4).tolist()
    assert frame["topic"].tolist()[:4] == [0, 1, 2, "both"]
    assert frame["name"].tolist()[:4] == ["0", "sport", "2", "both"]
    shares = frame["share"].to_numpy().reshape(-1, 4)
    np.testing.assert_allclose(shares[:, :3], theta.mean(0), rtol=1e-12)
    np.testing.assert_allclose(shares[:, 3], theta[..., [0, 2]].sum(-1).mean(0), rtol=1e-12)
    inside = (frame["lower"].to_numpy().reshape(-1, 4)[:, :3] <= theta) & (
        theta <= frame["upper"].to_numpy().reshape(-1, 4)[:, :3]
    )
    assert abs(inside.mean() - 0.9) < 0.03
    torch.testing.assert_close(measured.topic_shares, torch.from_numpy(theta.mean((0, 1))))
    assert measured.topic_table()[0].share == float(measured.topic_shares.max())
    table = measured.document_table()
    np.testing.assert_allclose(table["both"], shares[:, 3], rtol=1e-6)
    with pytest.raises(ConfigError, match="level is 95"):
        measured.frame(level=95)


def test_a_measurement_has_a_report(book, halves, tmp_path):
    measured = book.measure(halves[1], num_draws=10)
    page = measured.report(tmp_path / "page.html", by=["party"]).read_text(encoding="utf-8")
    assert book.hash in page
    assert "both" in page


def test_a_whole_sums_the_draws_of_its_documents(book, halves):
    counts = halves[1].to_scipy().toarray()
    counts[1] = counts[1] * 3
    counts[2] = 0
    documents = lntm.Corpus.from_matrix(counts, halves[1].vocabulary)
    documents = documents.with_metadata({"book": ["b", "b", "c"] + ["a"] * 25})
    measured = book.measure(documents, num_draws=20, allow_discovery=True)
    frame, theta = measured.frame("book"), measured.draws.theta.double().numpy()
    assert frame["book"].tolist()[::4] == ["a", "b", "c"]
    assert frame["tokens"].tolist()[::4] == [25 * 12, 12 + 36, 0]
    expected = [theta[:, 3:].mean(1), theta[:, 0] / 4 + theta[:, 1] * 3 / 4, theta[:, 2]]
    shares = frame["share"].to_numpy().reshape(3, 4)[:, :3]
    np.testing.assert_allclose(shares, np.mean(expected, 1), rtol=1e-12)
    width = (frame["upper"] - frame["lower"]).to_numpy().reshape(3, 4)[:, :3]
    spread = np.std(expected, 1, ddof=1)
    assert (width[0] < width[2]).all()
    assert ((3 * spread < width) & (width < 4.2 * spread)).all()  # 3.92 of a normal one
    with pytest.raises(MissingColumnError, match="'boook'"):
        measured.frame("boook")


@pytest.mark.stat
@pytest.mark.slow
def test_intervals_of_documents_hold_the_truth():
    model = lntm.models.ctm(3, NUM_WORDS, covariance=COVARIANCE, topics=TOPICS)
    corpus, latents = model.generate(torch.full((2000,), 20), seed=1)
    theta = model.theta(latents["eta"]).double().numpy().ravel()
    frame = lntm.codebook(model).measure(corpus, progress=False).frame()
    held = ((frame["lower"] <= theta) & (theta <= frame["upper"])).mean()
    assert 0.935 < held < 0.96  # 0.95 less a little, as the variance has 100 draws


def test_effects_take_a_codebook_and_its_groups(book, halves):
    measured = book.measure(halves[1], num_draws=30)
    effects = measured.effects("~ party", link="identity", progress=False)
    assert effects.topics == ("both",)
    given = {"source": measured.source, "progress": False, "link": "identity"}
    same = lntm.effects.estimate(book, corpus=halves[1], formula="~ party", **given)
    pd.testing.assert_frame_equal(effects.table(), same.table())
    old = lntm.effects.estimate(
        book.model, corpus=halves[1], formula="~ party", groups=book.groups, **given
    )
    pd.testing.assert_frame_equal(effects.table(), old.table())
    assert measured.effects("~ party", topics=["sport"], progress=False).topics == (1,)
    assert measured.effects("~ party", outcome="both / sport", link="identity").measure == "value"
    new = book.effects("~ party", halves[1], num_draws=3, progress=False)
    assert new.topics == ("both",)
    with pytest.raises(ConfigError, match="are documents of the discovery"):
        book.effects("~ party", halves[0])
    with pytest.raises(ConfigError, match="are documents of the discovery"):
        lntm.effects.estimate(book, None, halves[0], "~ party")


def test_other_vocabularies_are_matched_by_word(book, halves):
    words = [*halves[1].vocabulary[::-1], "new"]
    counts = np.hstack([halves[1].to_scipy().toarray()[:, ::-1], np.ones((28, 1), int)])
    other = lntm.Corpus.from_matrix(counts, words, metadata=halves[1].metadata)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        measured = book.measure(other, num_draws=2)
    assert ["dropped 28 of" in str(w.message) for w in caught] == [True]
    assert torch.equal(measured.draws.theta, book.measure(halves[1], num_draws=2).draws.theta)
