"""The study of words that move with time, on a small corpus with known periods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from studies.__main__ import load
from studies.benchmarks import moving_words, time
from studies.measure import measure

NUM_WORDS, YEARS = 12, np.repeat(np.arange(1987, 1993), 30)


@pytest.fixture(autouse=True)
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents of two topics. The first word rises from year to year, and the second falls."""
    rng = np.random.default_rng(0)
    counts = np.zeros((len(YEARS), NUM_WORDS), int)
    for d, year in enumerate(YEARS):
        late = (year - 1987) / 5
        first = np.array([0.05 + late, 1.05 - late, 1, 1, 1, 1])
        share = rng.dirichlet([0.3, 0.3])
        probs = np.concatenate([share[0] * first / first.sum(), np.full(6, share[1] / 6)])
        counts[d] = rng.multinomial(40, probs)
    matrix = sp.csr_matrix(counts)
    arrays = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    np.savez(tmp_path / "nips12.npz", **arrays, shape=np.array(matrix.shape))
    words = [f"w{v}" for v in range(NUM_WORDS)]
    (tmp_path / "nips12.vocab.txt").write_text("\n".join(words))
    (tmp_path / "nips12.columns.csv").write_text("\n".join(["year", *map(str, YEARS)]))
    monkeypatch.setenv("LNTM_DATA", str(tmp_path))
    return tmp_path


def test_moving_words_predict_held_out_documents_and_the_next_period(corpus: Path) -> None:
    systems = (time.CTM, "words by groups", time.WALK)
    settings = time.Settings(("nips12",), 2, (0,), systems, 20, 1, 5, 0)
    study = load("time")
    result = measure("time", study, settings, corpus / "out", progress=False)
    for rows in (result.held_out, result.following):
        ctm, groups, walk = (
            sum(row["log_predictive"]) / sum(row["held_out_tokens"]) for row in rows
        )
        assert walk > ctm + 0.005
        assert groups > ctm
    assert len(result.held_out[0]["log_predictive"]) == 20
    table = study.table(result)
    assert table.count(time.WALK) == 2
    assert "next period" in table


def test_another_program_fits_and_scores_documents_of_all_periods() -> None:
    pytest.importorskip("tomotopy")
    corpus = time.dated("nips12")
    fit = time.tomotopy_dtm(time.Task(corpus, 6, 2, 0, 5))
    for period in (0, 5, 6):  # the last period stands for the period after it
        result = fit.score(corpus[:10].hold_out_words(0.5, seed=0), period)
        assert 1 < result.perplexity < 2 * NUM_WORDS


def test_documents_have_the_numbers_and_names_of_their_periods() -> None:
    corpus = time.dated("nips12")
    assert corpus.metadata["period"].iloc[[0, 30, -1]].tolist() == [0, 1, 5]
    assert corpus.metadata["group"].iloc[31] == "p001"


def test_unknown_words_of_a_program_get_its_least_probability() -> None:
    corpus = time.dated("nips12")
    hold_out = corpus[:10].hold_out_words(0.5, seed=0)
    known = np.full((2, NUM_WORDS - 1), 1.0)
    columns = time._columns(corpus, [f"w{v}" for v in range(NUM_WORDS - 1)])
    result = time._completion(np.ones(2), known, columns, hold_out)
    assert result.perplexity == pytest.approx(NUM_WORDS)


def test_bands_of_true_topics_hold_the_truth() -> None:
    truth = moving_words.simulated(0, periods=3, docs=40, topics=2, words=30)
    assert truth.tokens.sum() == pytest.approx(truth.corpus.num_tokens)
    np.testing.assert_allclose(truth.probs.sum(2), 1.0)
    still = ~truth.moves
    ratios = np.log(truth.probs[2] / truth.probs[0])
    for k in range(2):  # still words change by the common normaliser alone
        assert np.ptp(ratios[k][still[k]]) < 1e-9
