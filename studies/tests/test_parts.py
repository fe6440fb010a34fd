"""The study of a corpus in parts: its documents, its fits and its table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.benchmarks import parts
from studies.measure import Cells
from torch_lntm.corpus import read_corpus
from torch_lntm.errors import ConfigError

TINY = parts.Settings(num_docs=300, num_words=50, tokens_per_doc=10, num_shards=5, num_topics=3)


def test_documents_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_DRAWN", 70)
    parts.write(TINY, tmp_path / "corpus")
    corpus = read_corpus(tmp_path / "corpus")
    assert (corpus.num_docs, corpus.num_words) == (300, 50)
    assert abs(corpus.lengths.mean() - 10) < 6 * np.sqrt(10 / 300)
    # The documents are of topics, so documents repeat words more often than the corpus does.
    frequency = corpus.word_totals / corpus.num_tokens
    pairs = (corpus.lengths * (corpus.lengths - 1)).sum()
    repeated = (corpus.counts * (corpus.counts - 1)).sum()
    assert repeated > 1.3 * pairs * np.square(frequency).sum()
    part = read_corpus(tmp_path / "corpus", rank=1, world_size=5)
    size = parts.opened(tmp_path / "corpus")
    files = [file for file in (tmp_path / "corpus").glob("shard-*/*") if file.is_file()]
    assert size * 2**20 == sum(file.stat().st_size for file in files)
    del corpus
    assert 0 < parts.opened(tmp_path / "corpus") < size / 3
    assert part.num_docs == 60


@pytest.mark.slow
def test_fits_and_table() -> None:
    found = parts.run(TINY, Cells())
    assert {name: len(ranks) for name, ranks in found.items()} == {
        "1": 1,
        "2": 2,
        "4": 4,
        "continued": 3,
    }
    expected = found["1"][0]["objectives"]
    assert len(expected) == 2
    for name in ("2", "4", "continued"):
        for cell in found[name]:
            assert cell["objectives"] == pytest.approx(expected, abs=1e-3)
        assert sum(cell["documents"] for cell in found[name]) == 300
    assert found["4"][0]["opened_mb"] < found["1"][0]["opened_mb"]
    assert "| continued |" in parts.tables(found)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_epochs is 1"):
        parts.Settings(max_epochs=1)
    with pytest.raises(ConfigError, match="fits: '3'; expected some of whole, 1, 1, 2, 4, conti"):
        parts.Settings(fits=("1", "3"))
