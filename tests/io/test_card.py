"""The card of a saved model says what the model is, and nothing in it is Markdown of a stranger."""

from __future__ import annotations

import re

import numpy as np
import pytest

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.files import writing
from torch_lntm.io.card import code

HOSTILE = (
    "# Heading\n\n[link](https://example.org) <script>alert(1)</script> ![x](y.png) `` ` ``` "
    "| cell | **bold** www.example.org a@example.org &lt; \x1b[31m\u202e"
)


def outside_code(markdown: str) -> str:
    """The text that Markdown would read as Markdown: code spans and blocks are taken out."""
    markdown = re.sub(
        r"^```python\n.*?^```$|^    .*?$", "", markdown, flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", markdown)


@pytest.fixture(scope="module")
def fitted():
    matrix = np.random.default_rng(0).poisson(0.5, (40, 30))
    words = [f"w{v}" for v in range(29)] + [HOSTILE.replace("\n", " ")]
    matrix[:, 29] = 5
    corpus = lntm.Corpus.from_matrix(matrix, words)
    model = lntm.models.ctm(3, 30, vocabulary=words)
    guide = lntm.guides.TaylorGuide(model)
    engine = lntm.inference.VariationalEM(model, guide, max_iterations=1, progress=False)
    return model, engine.fit(corpus)


@pytest.mark.parametrize(
    "value", [HOSTILE, "`", "``a", "a`", " `` ", "```", "plain", "", "\n", {"a": [1, None]}, 1.5]
)
def test_a_value_is_one_code_span_in_one_line(value):
    span = code(value)
    assert "\n" not in span
    assert not any(sign in span for sign in "\x1b\u202e")
    assert outside_code(f"* {span}") in ("* ", "* (empty)")
    assert len(code("a" * 10**6)) < 310


@pytest.mark.slow
def test_a_model_s_folder_has_a_card_that_loading_ignores(fitted, tmp_path):
    folder = lntm.save_model(fitted[0], tmp_path / "model")
    card = folder / "README.md"
    assert card.read_text(encoding="utf-8").startswith("# Topic model `ctm`\n\n3 topics over 30 ")
    assert "* `topic_smoothing`: `0.05`" in card.read_text(encoding="utf-8")
    card.write_bytes(b"\xff\x00 no text")
    assert lntm.load_model(folder).num_topics == 3


def test_a_run_s_card_has_data_settings_scores_and_licence(fitted, tmp_path):
    score = ("perplexity", 512.256, 3.5, "per token", 40, None, "importance " + HOSTILE)
    config = {"corpus": f"{HOSTILE}.csv", "posterior": "taylor", "test_fraction": 0.1, "out": "x"}
    about = {
        "corpus": {"num_docs": 40, "num_words": 30, "name": HOSTILE},
        "topic_shares": [0.2, 0.5, 0.3],
        "licence": "CC-BY-4.0",
    }
    scores = lntm.reports.scores.score_records(lntm.reports.scores.as_scores([score]))
    folder = lntm.io.save_run(tmp_path / "run", *fitted, config, metadata=about, evaluation=scores)
    card = (folder / "README.md").read_text(encoding="utf-8")
    for fact in ("`num_docs`: `40`", "`posterior`: `taylor`", "`test_fraction`: `0.1`"):
        assert f"\n* {fact}\n" in card
    assert "* `metric`: `perplexity`, `value`: `512.256`, `standard_error`: `3.5`" in card
    assert re.search(r"^    +1 +50.0% +\S", card, re.MULTILINE)
    assert "## Licence\n\n* `CC-BY-4.0`" in card
    assert "`out`" not in card
    none = lntm.io.card.settings_of(config | {"test_fraction": 0.0}, about)
    assert none == {"corpus": f"{HOSTILE}.csv", "posterior": "taylor"}
    plain = outside_code(card)
    for sign in ("[link]", "<script", "![", "**", "|", "example.org", "# Heading"):
        assert sign not in plain


@pytest.mark.parametrize("killed_at", ["model.json", "README.md"])
def test_names_after_a_kill_are_on_the_card_and_an_edited_card_stays(
    fitted, tmp_path, monkeypatch, killed_at
):
    folder = lntm.save_model(fitted[0], tmp_path / "model")
    card, model = folder / "README.md", folder / "model.json"
    real = writing.atomic_write

    def kill(path):
        if path.name == killed_at:
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(writing, "atomic_write", kill)
    with pytest.raises(KeyboardInterrupt):
        lntm.io.write_topic_names(folder, {0: "economy"})
    monkeypatch.undo()
    assert lntm.load_model(folder).num_topics == 3
    names = lntm.io.write_topic_names(folder, {0: "economy", 1: "trade"})
    assert names == lntm.load_model(folder).topic_names == ("economy", "trade", "2")
    assert re.search("^    economy .*\n    trade ", card.read_text(), re.MULTILINE)
    for edit in ("Licence: mine\n" + card.read_text(), card.read_text() + "mine", "\udcff"):
        card.write_bytes(edit.encode(errors="surrogateescape"))
        lntm.io.write_topic_names(folder, {2: "war"})
        assert card.read_bytes() == edit.encode(errors="surrogateescape")
        assert '"war"' in model.read_text()


@pytest.mark.parametrize("text", ['["x"]', '{"a": 1}', "["])
def test_damaged_scores_are_an_error_that_changes_nothing(fitted, tmp_path, text):
    folder = lntm.io.save_run(tmp_path / "run", *fitted, {})
    (folder / "evaluation.json").write_text(text)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ConfigError, match=r"evaluation\.json: not"):
        lntm.io.write_topic_names(folder, {0: "economy"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
