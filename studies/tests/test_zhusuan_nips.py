from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from studies.measure import Cells, measure
from studies.papers import zhusuan_nips
from studies.papers.texts import read_parts
from studies.papers.zhusuan_nips import METHODS, STUDY, NipsResult, NipsSettings, run
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import AIS, log_likelihood
from torch_lntm.io import load_model
from torch_lntm.models import ctm


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with its split beside it, as the real ones are."""
    folder = tmp_path_factory.mktemp("data")
    truth = ctm(3, 30, topics=synthetic_topics(3, 30, 0.2, seed=0))
    corpus: Corpus = truth.generate([40] * 60, seed=0)[0]
    save_counts(corpus, folder / "tiny.npz")
    parts = ["test" if d % 6 == 0 else "train" for d in range(60)]
    (folder / "tiny.split.txt").write_text("\n".join(parts) + "\n")
    return folder


@pytest.fixture(scope="module")
def settings(data: Path) -> NipsSettings:
    return NipsSettings(
        corpus=str(data / "tiny.npz"),
        methods=("tutorial", "mcem-ctm", "taylor", "lda"),
        num_topics=3,
        epochs=12,
        batch_size=20,
        num_steps=5,
        ais_chains=6,
        ais_temperatures=30,
        bracket_docs=4,
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the result."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def result(settings: NipsSettings, kept: Path) -> NipsResult:
    return measure("zhusuan_nips", STUDY, settings, kept, progress=False)


@pytest.mark.slow
def test_every_method_is_fitted_and_judged(result: NipsResult, settings: NipsSettings) -> None:
    assert [fit.method for fit in result.fits] == list(settings.methods)
    assert result.test_tokens == 400
    for fit in result.fits:
        assert len(fit.log_likelihood) == 10
        expected = math.exp(-sum(fit.log_likelihood) / 400)
        assert fit.perplexity == pytest.approx(expected)
        # Better than equally likely words, and no better than the words that a topic has.
        assert 2 < fit.perplexity < 30
        assert 0 < fit.total_error < 5
        assert 1 <= fit.effective_sample_size <= 6
        assert abs(fit.gap[0]) < 5
        # Two estimators that share nothing, each within its error.
        assert math.log(fit.importance / fit.perplexity) == pytest.approx(0.0, abs=0.02)
        assert 0 <= fit.unreliable <= 1
        assert fit.fit_seconds > 0
        assert fit.evaluation_seconds > 0


@pytest.mark.slow
def test_what_is_kept_is_the_model_that_was_judged(
    result: NipsResult, settings: NipsSettings, kept: Path
) -> None:
    model = load_model(kept / "models" / "taylor")
    test = read_parts(settings.corpus, settings.num_docs)[1]
    again = log_likelihood(model, test, AIS(num_chains=6, num_temperatures=30, start="prior"))
    fit = result.fits[2]
    np.testing.assert_allclose(again.log_likelihood, fit.log_likelihood, rtol=1e-6)


@pytest.mark.slow
def test_what_is_kept_is_not_done_again(
    result: NipsResult, settings: NipsSettings, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zhusuan_nips, "measure", lambda *_, **__: pytest.fail("measured again"))
    again = measure("zhusuan_nips", STUDY, settings, kept, progress=False)
    assert again.tables() == result.tables()


@pytest.mark.slow
def test_the_tutorials_settings_are_the_tutorials(
    settings: NipsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = []

    class Recording(zhusuan_nips.MonteCarloEM):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            engines.append(self)

    monkeypatch.setattr(zhusuan_nips, "MonteCarloEM", Recording)
    train, _ = read_parts(settings.corpus, settings.num_docs)
    model = zhusuan_nips.fit_model(settings, METHODS["tutorial"], train)
    (engine,) = engines
    settings = engine
    assert settings.topic_update == "gradient"
    assert settings.start == "model"
    assert settings.chains.mass_matrix == "identity"
    assert settings.chains.num_steps == 5
    assert settings.max_epochs == 12
    assert model.config["topic_scale"] == 10.0
    assert model.config["pseudo_documents"] == 0.0


@pytest.mark.slow
def test_the_report_compares_with_the_first(result: NipsResult) -> None:
    lines = result.tables().splitlines()
    assert len(lines) == 2 + 4
    assert lines[2].startswith("| MCEM of the tutorial, diagonal Σ |")
    first, other = result.fits[0], result.fits[2]
    gap = np.array(other.log_likelihood) - np.array(first.log_likelihood)
    mean, error = gap.sum() / 400, math.sqrt(10) * gap.std(ddof=1) / 400
    assert lines[4].split("|")[3].strip() == f"{mean:+.4f} ({error:.4f})"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ("mcem",)}, "methods are mcem; expected some of tutorial, mcem-lntm"),
        ({"methods": ()}, "methods are none"),
        ({"num_topics": 1}, "num_topics is 1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"ais_chains": 1}, "ais_chains is 1"),
        ({"topic_scale": 0.0}, "topic_scale is 0.0"),
        ({"num_docs": 1}, "num_docs is 1"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        NipsSettings(**change)  # type: ignore[arg-type]


def test_a_missing_or_other_split_is_named(data: Path, tmp_path: Path) -> None:
    corpus = NipsSettings(corpus=str(tmp_path / "tiny.npz"))
    with pytest.raises(ConfigError, match=r"no corpus .*tiny\.npz"):
        run(corpus, Cells())
    save_counts(ctm(2, 5).generate([3, 4], seed=0)[0], tmp_path / "tiny.npz")
    with pytest.raises(ConfigError, match=r"no split .*tiny\.split\.txt"):
        run(corpus, Cells())
    (tmp_path / "tiny.split.txt").write_text("train\n")
    with pytest.raises(ConfigError, match="has 1 lines; expected 2"):
        run(corpus, Cells())
