"""The study of the neural papers' tables: scores by definition, halves, and a run."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from support.markdown import code_of

import torch_lntm as lntm
from studies.__main__ import load
from studies.benchmarks import neural, tables
from studies.benchmarks.neural import Fit, Task
from studies.benchmarks.topic_scores import RULES, c_v, printed_words, purity_and_nmi, svc_accuracy
from studies.measure import measure
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError

OURS = "torch_lntm ctm, auto"


def test_purity_and_nmi_follow_their_definitions() -> None:
    labels, clusters = list("aaabbc"), [0, 0, 1, 1, 1, 1]
    purity, nmi = purity_and_nmi(labels, clusters)
    assert purity == pytest.approx((2 + 2) / 6)
    joint = {("a", 0): 2, ("a", 1): 1, ("b", 1): 2, ("c", 1): 1}
    of_label, of_cluster = {"a": 3, "b": 2, "c": 1}, {0: 2, 1: 4}
    information = sum(
        n / 6 * math.log(6 * n / (of_label[a] * of_cluster[c])) for (a, c), n in joint.items()
    )
    entropies = [
        -sum(n / 6 * math.log(n / 6) for n in of.values()) for of in (of_label, of_cluster)
    ]
    assert nmi == pytest.approx(information / (sum(entropies) / 2))


def test_separated_proportions_are_classified() -> None:
    theta = np.repeat(np.eye(3), 10, axis=0)
    labels = np.repeat(["a", "b", "c"], 10)
    assert svc_accuracy(theta, labels, theta[::10], ["a", "b", "a"]) == pytest.approx(2 / 3)


def test_c_v_equals_gensims_with_documents_as_windows(lee: Corpus) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = pytest.importorskip("gensim.models")
        dictionaries = pytest.importorskip("gensim.corpora")
    texts = neural.texts_of(lee)
    words = np.array(lee.vocabulary)
    rng = np.random.default_rng(0)
    frequent = np.argsort(-np.asarray(lee.word_totals))[:300]
    lists = np.stack([rng.choice(frequent, 8, replace=False) for _ in range(4)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = models.CoherenceModel(
            topics=words[lists].tolist(),
            texts=texts,
            dictionary=dictionaries.Dictionary(texts),
            coherence="c_v",
            topn=8,
            window_size=max(map(len, texts)),
            processes=1,
        ).get_coherence_per_topic()
    np.testing.assert_allclose(c_v(lists, lee), peer, atol=1e-6)


def test_words_without_a_document_have_no_vector() -> None:
    corpus = Corpus.from_matrix([[1, 1, 0], [1, 1, 0], [1, 0, 0]])
    # The vectors of words 0 and 1 are (NPMI with itself, NPMI with the other); word 2 has none.
    p = np.array([1.0, 2 / 3])
    npmi = math.log(2 / 3 / (p[0] * p[1])) / -math.log(2 / 3)
    first, second = np.array([1.0, npmi]), np.array([npmi, 1.0])
    first[0] = math.log(1.0 + 1e-12) / -math.log(1.0 + 1e-12)
    both = first + second
    expected = [row @ both / np.linalg.norm(row) / np.linalg.norm(both) for row in (first, second)]
    found = c_v(np.array([[0, 1, 2]]), corpus)
    assert found == pytest.approx(sum(expected) / 3, abs=1e-4)


def test_frex_prints_exclusive_words_among_the_most_probable() -> None:
    # Word 0 is the commonest word of both topics. Word 399 is exclusive to topic 0, and rare.
    topics = np.full((2, 400), 1e-6)
    topics[:, 0] = 0.5
    topics[0, 1:16] = topics[1, 16:31] = np.linspace(0.05, 0.02, 15)
    topics[0, 399] = 1e-5
    topics /= topics.sum(1, keepdims=True)
    train = Corpus.from_matrix(np.full((2, 400), 500))
    probable = printed_words(topics, train, "probability")
    exclusive = printed_words(topics, train, "FREX of 30")
    assert probable[:, 0].tolist() == [0, 0]
    assert probable[0].tolist() == list(range(15))
    assert set(exclusive[0]) == set(range(1, 16))
    assert set(exclusive[1]) == set(range(16, 31))
    # Without them, word 399 is the only exclusive word of topic 0.
    topics[:, 1:31] = 1e-6
    assert 399 in printed_words(topics, train, "FREX")[0]
    assert 399 in printed_words(topics, train, "FREX of 30")[0]
    # Among more words that are as probable, a floor in the topic leaves the rare word out.
    topics[:, 1:31] = 1e-4
    assert 399 not in printed_words(topics, train, "FREX of 30")[0]


def test_a_floor_in_documents_leaves_rare_words_out() -> None:
    counts = np.ones((300, 40), dtype=int)
    counts[2:, 20:] = 0  # two of 300 documents have the words from 20 on
    topics = np.full((2, 40), 0.01)
    topics[0, 25:] = topics[1, 5:20] = 0.05
    topics /= topics.sum(1, keepdims=True)
    train = Corpus.from_matrix(counts)
    rule = "FREX in 1 % of documents, weight .85"
    assert set(printed_words(topics, train, "FREX")[0]) == set(range(25, 40))
    assert printed_words(topics, train, rule).max() < 20
    assert set(printed_words(topics, train, rule)[1]) == set(range(5, 20))


@pytest.fixture
def halved(tmp_path: Path) -> Path:
    """A corpus with 60 training documents, 20 test documents and their halves."""
    rng = np.random.default_rng(3)
    topics = rng.dirichlet(np.full(12, 0.3), 2)
    theta = rng.dirichlet(np.ones(2), 80)
    counts = np.stack([rng.multinomial(20, row) for row in theta @ topics])
    words = [f"w{v}" for v in range(12)]
    path = tmp_path / "halved.npz"
    save_counts(Corpus.from_matrix(counts, words), path)
    path.with_name("halved.split.txt").write_text("\n".join(["train"] * 60 + ["test"] * 20))
    first = np.stack([rng.multivariate_hypergeometric(row, 10) for row in counts[60:]])
    for name, part in {"h1": first, "h2": counts[60:] - first}.items():
        save_counts(Corpus.from_matrix(part), path.with_name(f"halved.{name}.npz"))
    return path


def test_halves_are_those_of_the_files(halved: Path) -> None:
    train, hold_out = tables.halves(str(halved))
    assert train.num_docs == 60
    for part, name in ((hold_out.observed, "h1"), (hold_out.held_out, "h2")):
        expected = lntm.read_corpus(halved.with_name(f"halved.{name}.npz")).to_scipy().toarray()
        np.testing.assert_array_equal(part.to_scipy().toarray(), expected)
    some = tables._some(hold_out, np.array([3, 17]))
    whole = hold_out.observed.to_scipy().toarray()
    np.testing.assert_array_equal(some.observed.to_scipy().toarray(), whole[[3, 17]])


def test_halves_that_do_not_add_up_are_refused(halved: Path) -> None:
    wrong = np.ones((20, 12), dtype=int)
    save_counts(Corpus.from_matrix(wrong), halved.with_name("halved.h1.npz"))
    with pytest.raises(ConfigError, match="do not add up"):
        tables.halves(str(halved))


def test_scores_of_halves_follow_both_definitions(halved: Path, tmp_path: Path) -> None:
    row = tables.halves_of(str(halved), 2, 0, OURS, tmp_path, tolerance=0.01)
    train, hold_out = tables.halves(str(halved))
    fit = neural.ours(Task(train, 2, 0, tmp_path))
    held_out = hold_out.held_out.to_scipy().toarray()
    logs = np.log(fit.proportions(hold_out.observed) @ fit.topics)
    nats = (held_out * logs).sum(1)
    assert row["own_documents"] == pytest.approx(math.exp(-(nats / held_out.sum(1)).mean()))
    assert row["own_tokens"] == pytest.approx(math.exp(-nats.sum() / held_out.sum()))
    # All documents are among the scored documents. Both means of theta are exact but for draws.
    assert row["own_some"] == pytest.approx(row["own_tokens"])
    assert row["exact_tokens"] == pytest.approx(row["own_tokens"], rel=0.05)
    assert row["simulation_error"] < 0.02


@pytest.mark.slow
def test_the_study_compares_systems_on_labelled_documents(
    texts: Path, halved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def oracle(task: Task) -> Fit:
        """Topics and proportions from the labels of the training documents."""
        labels, kinds = np.array(task.train.labels), sorted(set(task.train.labels or ()))
        counts = task.train.to_scipy().toarray()
        topics = np.stack([counts[labels == kind].sum(0) + 0.1 for kind in kinds])
        topics = topics / topics.sum(1, keepdims=True)

        def nearest(corpus: Corpus) -> np.ndarray:
            scores = corpus.to_scipy().toarray() @ np.log(topics).T
            weights = np.exp(scores - scores.max(1, keepdims=True))
            return np.asarray(weights / weights.sum(1, keepdims=True))

        return Fit(topics, nearest, 1.5, normalised=False)

    monkeypatch.setitem(neural.SYSTEMS, "oracle", ((), oracle))
    monkeypatch.setitem(neural.SYSTEMS, "absent", (("no_such_library",), oracle))
    study = load("tables")
    chosen = tables.Settings(
        corpora=(str(texts),),
        num_topics=(4,),
        seeds=(0, 1),
        systems=(OURS, "oracle", "absent"),
        word_seeds=(7,),
        halves=(str(halved),),
        tolerance=0.02,
    )
    result = measure("tables", study, chosen, tmp_path / "out", progress=False)
    assert [(row["system"], row["seed"]) for row in result.rows] == [
        (system, seed) for seed in (0, 1) for system in (OURS, "oracle")
    ]
    assert result.skipped == {"absent": "no_such_library"}
    for row in result.rows:
        # Guessing the commonest of four labels is right in a third of the documents.
        assert row["purity"] > 0.6
        assert row["svc"] > 0.6
        assert 0.25 < row["words"]["probability"]["diversity"] <= 1.0
    assert set(result.rows[0]["words"]) == set(tables.SHOWN)
    assert set(result.rows[1]["words"]) == {"probability"}
    of_rule = result.words[0]["words"]
    assert set(of_rule) == {*RULES, *tables.RANDOM}
    assert all(of_rule["probability"]["npmi"] > of_rule[random]["npmi"] for random in tables.RANDOM)
    assert [row["system"] for row in result.halves] == [OURS, OURS]
    text = study.table(result)
    assert "skipped: absent (no_such_library is not installed)" in text
    assert "| oracle " in text
    assert "## Held-out halves" in text


def test_a_corpus_without_a_split_or_labels_is_refused(tmp_path: Path) -> None:
    save_counts(Corpus.from_matrix([[1, 2], [2, 1]], ["a", "b"]), tmp_path / "plain.npz")
    with pytest.raises(ConfigError, match=r"plain\.split\.txt"):
        tables.parts(str(tmp_path / "plain.npz"))
    (tmp_path / "plain.split.txt").write_text("train\ntest\n")
    with pytest.raises(ConfigError, match="no labels"):
        tables.parts(str(tmp_path / "plain.npz"))


def test_the_page_converts_the_corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for source in ("AGNews", "YahooAnswer", "20NG"):
        folder = tmp_path / "ECRTM" / "data" / source
        folder.mkdir(parents=True)
        for part, number in {"train": 12, "test": 5}.items():
            counts = sp.csr_matrix(rng.poisson(1.0, (number, 6)).astype(np.float32))
            sp.save_npz(folder / f"{part}_bow.npz", counts)
            labels = [f"{part}{d % 3}" for d in range(number)]
            (folder / f"{part}_labels.txt").write_text("\n".join(labels) + "\n")
        (folder / "vocab.txt").write_text("\n".join("abcdef"))
    monkeypatch.chdir(tmp_path)
    exec(compile(code_of("../studies/pages/neural.md"), "neural.md", "exec"), {})
    monkeypatch.setenv("LNTM_DATA", str(tmp_path / "corpora"))
    for name in tables.Settings().corpora:
        train, test = tables.parts(name)
        assert (train.num_docs, test.num_docs, train.num_words) == (12, 5, 6)
        assert list(train.labels or ())[:2] == ["train0", "train1"]
        assert set(test.labels or ()) == {"test0", "test1", "test2"}


def test_rows_with_word_vectors_are_those_of_their_study() -> None:
    pages = Path(__file__).parents[1] / "pages"
    table = re.compile(r"^\| (\*\w+\*) \| ([\d,]+) \| (.* → .*) \|$", re.MULTILINE)
    text = (pages / "vectors.md").read_text(encoding="utf-8").split("K = 20:")[0]
    text = re.sub(" +", " ", text)
    found = table.findall((pages / "neural.md").read_text(encoding="utf-8"))
    assert len(found) >= 9
    for corpus, number, cells in found:
        purity, nmi, npmi = map(re.escape, cells.split(" | "))
        row = re.escape(f"| {corpus} | {number} |") + rf".*\| {purity} \| {nmi} \|"
        assert re.search(row + rf"(?: [\d.]* \|)? {npmi} \|", text), corpus  # NMI, spread
