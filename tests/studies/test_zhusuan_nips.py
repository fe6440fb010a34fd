from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.evaluation import AIS, log_likelihood
from torch_lntm.experiments import zhusuan_nips
from torch_lntm.experiments.zhusuan_nips import METHODS, NipsResult, NipsSettings, main, run
from torch_lntm.io import load_model
from torch_lntm.models import ctm

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with its split beside it, as the real ones are."""
    folder = tmp_path_factory.mktemp("data")
    truth = ctm(3, 30, topics=synthetic_topics(3, 30, 0.2, seed=0))
    corpus: Corpus = truth.generate([40] * 60, seed=0)[0]
    corpus.save(folder / "tiny.npz")
    parts = ["test" if d % 6 == 0 else "train" for d in range(60)]
    (folder / "tiny.split.txt").write_text("\n".join(parts) + "\n")
    return folder


@pytest.fixture(scope="module")
def settings(data: Path, tmp_path_factory: pytest.TempPathFactory) -> NipsSettings:
    return NipsSettings(
        corpus="tiny",
        methods=("tutorial", "mcem-ctm", "taylor", "lda"),
        num_topics=3,
        epochs=12,
        batch_size=20,
        num_steps=5,
        ais_chains=6,
        ais_temperatures=30,
        bracket_docs=4,
        data=str(data),
        keep=str(tmp_path_factory.mktemp("kept")),
    )


@pytest.fixture(scope="module")
def result(settings: NipsSettings) -> NipsResult:
    return run(settings, progress=False)


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


def test_what_is_kept_is_the_model_that_was_judged(
    result: NipsResult, settings: NipsSettings
) -> None:
    model = load_model(Path(str(settings.keep)) / "taylor")
    test = zhusuan_nips.read_parts(settings)[1]
    again = log_likelihood(model, test, AIS(num_chains=6, num_temperatures=30))
    fit = result.fits[2]
    np.testing.assert_allclose(again.log_likelihood, fit.log_likelihood, rtol=1e-6)


def test_what_is_kept_is_not_done_again(
    result: NipsResult, settings: NipsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zhusuan_nips, "measure", lambda *_, **__: pytest.fail("measured again"))
    assert [fit.perplexity for fit in run(settings, progress=False).fits] == [
        fit.perplexity for fit in result.fits
    ]
    with pytest.raises(ConfigError, match="made with other settings"):
        run(replace(settings, epochs=13), progress=False)


def test_the_tutorials_settings_are_the_tutorials(
    settings: NipsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = []

    class Recording(zhusuan_nips.MonteCarloEM):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            engines.append(self)

    monkeypatch.setattr(zhusuan_nips, "MonteCarloEM", Recording)
    train, _ = zhusuan_nips.read_parts(settings)
    model = zhusuan_nips.fit_model(settings, METHODS["tutorial"], train)
    (engine,) = engines
    assert engine.topic_update == "gradient"
    assert engine.start == "model"
    assert engine.kernel.mass_matrix == "identity"
    assert engine.kernel.num_steps == 5
    assert engine.max_epochs == 12
    assert model.config["topic_scale"] == 10.0
    assert model.config["pseudo_documents"] == 0.0


def test_the_report_compares_with_the_first(result: NipsResult) -> None:
    lines = result.report().splitlines()
    assert len(lines) == 2 + 4
    assert lines[2].startswith("| MCEM of the tutorial, diagonal Σ | ")
    first, other = result.fits[0], result.fits[2]
    gap = np.array(other.log_likelihood) - np.array(first.log_likelihood)
    mean, error = gap.sum() / 400, math.sqrt(10) * gap.std(ddof=1) / 400
    assert f"| {mean:+.4f} ({error:.4f}) |" in lines[4]


def test_command_line(
    settings: NipsSettings, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--methods=[taylor] --num_topics=2 --ais_temperatures=5 --bracket_docs=2 --seed=3"
    out = tmp_path / "out"
    options = [*arguments.split(), "--corpus=tiny", f"--data={data}", f"--out={out}"]
    result = main(options)
    assert result.settings.seed == 3
    assert json.loads((out / "result.json").read_text())["fits"][0]["method"] == "taylor"
    assert "| VEM, Taylor, full Σ |" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="exists already"):
        main(options)


def test_committed_config_is_the_default() -> None:
    import yaml

    content = yaml.safe_load((CONFIGS / "zhusuan_nips.yaml").read_text())
    settings = NipsSettings(**{**content, "methods": tuple(content["methods"])})
    assert settings == NipsSettings()


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


def test_a_missing_folder_corpus_or_split_is_named(
    settings: NipsSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LNTM_DATA", raising=False)
    with pytest.raises(ConfigError, match="no folder of corpora"):
        run(replace(settings, data=None), progress=False)
    with pytest.raises(CorpusError, match=r"tiny\.npz"):
        run(replace(settings, data=str(tmp_path)), progress=False)
    ctm(2, 5).generate([3, 4], seed=0)[0].save(tmp_path / "tiny.npz")
    with pytest.raises(CorpusError, match=r"tiny\.split\.txt"):
        run(replace(settings, data=str(tmp_path)), progress=False)
