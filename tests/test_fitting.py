"""One call from documents in any form to a run with topics, documents, effects and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch

import torch_lntm as lntm
from torch_lntm.cli import main
from torch_lntm.corpus.examples import example_file
from torch_lntm.errors import ConfigError, CorpusError, LNTMError
from torch_lntm.inference.em import result

QUICK = {"num_topics": 3, "max_epochs": 4, "progress": False}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return pd.read_json(example_file(), lines=True)


@pytest.fixture(scope="module")
def run(frame: pd.DataFrame) -> lntm.io.Run:
    return lntm.fit(frame, **QUICK)


def test_documents_of_every_form_give_the_same_run(frame, run, tmp_path) -> None:
    frame.to_csv(tmp_path / "posts.csv", index=False)
    corpus = lntm.Corpus.from_frame(frame)
    counts = corpus.to_scipy()
    body = frame.rename(columns={"text": "body"})
    forms: list[tuple[Any, dict[str, Any]]] = [
        (tmp_path / "posts.csv", {}),
        (str(tmp_path / "posts.csv"), {}),
        (frame["text"].tolist(), {}),
        (frame["text"], {}),
        (body, {"text_field": "body"}),
        (body.to_dict("records"), {"text_field": "body"}),
        (corpus, {}),
        (counts, {"vocabulary": corpus.vocabulary}),
        (pd.DataFrame(counts.toarray(), columns=corpus.vocabulary), {}),
    ]
    for documents, options in forms:
        other = lntm.fit(documents, **QUICK, **options)
        assert torch.equal(other.model.topics.probs, run.model.topics.probs)
        assert other.model.vocabulary == corpus.vocabulary
    # Rows of counts from a frame have its index, so that only columns of texts bring metadata.
    assert list(lntm.fit(body, text_field="body", **QUICK).documents)[:3] == [
        "document",
        "theme",
        "season",
    ]


def test_a_run_has_what_comes_next(frame, run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    topics = run.topics
    assert topics["share"].tolist() == sorted(run.topic_shares, reverse=True)
    assert all(len(name.split()) == 3 for name in topics["name"])
    assert topics["words"].str.split().str.len().eq(10).all()
    printed = str(run)
    assert all(f"{row.share:.1%}   {row.name}" in printed for row in topics.itertuples())
    assert topics["name"][0] in run._repr_html_()
    assert run.documents["theme"].tolist() == frame["theme"].tolist()
    assert np.allclose(run.documents.loc[:, "topic_0":"topic_2"].sum(axis=1), 1.0)
    with pytest.warns(UserWarning, match="dropped 2 of 4 tokens"):
        new = run.transform(["the cook fries onions in butter"])
    expected = lntm.Corpus.from_texts(["cook butter"], vocabulary=run.model.vocabulary)
    assert torch.equal(new.theta, run.transform(expected).theta)
    assert set(run.effects("~ theme", num_draws=4).table()["topic"]) == {0, 1, 2}
    with pytest.raises(ConfigError, match=r"the method guide; call it as guide\(\)"):
        lntm.inference.theta_draws(run.guide, run.corpus)
    page = run.report(num_draws=4)
    assert page == Path("report.html")
    assert frame["text"][0][:30] in page.read_text(encoding="utf-8")


def test_a_saved_run_is_the_same_and_serves_the_shell(frame, tmp_path, capsys) -> None:
    path = tmp_path / "posts.csv"
    frame.rename(columns={"text": "body"}).to_csv(path, index=False)
    fresh = lntm.fit(path, text_field="body", prevalence="~ theme", **QUICK)
    assert (fresh.model.name, fresh.config["posterior"]) == ("stm", "hmc")
    folder = fresh.save(tmp_path / "run")
    loaded = lntm.load_run(folder, fresh.corpus)
    assert loaded.metadata == fresh.metadata
    assert loaded.config == fresh.config
    pd.testing.assert_frame_equal(loaded.topics, fresh.topics)
    pd.testing.assert_frame_equal(loaded.documents, fresh.documents)
    with pytest.raises(ConfigError, match="already; copy this folder"):
        loaded.save(tmp_path / "again")
    assert main(["effects", str(folder), "--num-draws", "4", "--no-progress"]) == 0
    assert "theme" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"lowercase": False},
        {"ngram_range": (1, 2)},
        {"strip_accents": "unicode"},
        {"stop_words": {"garden", "wind"}},
        {"tokenizer": str.split, "token_pattern": None},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.filterwarnings("ignore:dropped .* tokens")
def test_new_texts_become_words_as_those_of_the_fit(options, frame, tmp_path) -> None:
    """In a fresh run, in one from a folder, and where the corpus comes from a file."""
    given = frame.rename(columns={"text": "body"}).assign(text="another column")
    run = lntm.fit(given, **QUICK | {"max_epochs": 1}, text_field="body", min_df=1, **options)
    run.save(tmp_path / "run")
    run.corpus.save(tmp_path / "corpus")
    read = lntm.read_corpus(tmp_path / "corpus")
    fits = [run, run.result, lntm.load_run(tmp_path / "run"), lntm.fit(read, **QUICK)]
    own = run.corpus.to_scipy()
    for fit, new in zip(fits, [given, [*frame["text"]], given, [*frame["text"]]], strict=True):
        if "tokenizer" in options and fit is not run and fit is not run.result:
            with pytest.raises(CorpusError, match="split, a function, which no file holds"):
                fit.check_corpus(new)
        else:
            assert (fit.check_corpus(new).to_scipy() != own).nnz == 0


def test_options_in_files_open_no_other_files(frame, tmp_path) -> None:
    """A hostile corpus or run could name files by the options of its texts."""
    words = tmp_path / "words.txt"
    words.write_text("garden\n")
    run = lntm.fit(frame, **QUICK | {"max_epochs": 1}, stop_words=words)
    assert run.corpus.counting == {"stop_words": ["garden"]}
    run.save(tmp_path / "run")
    run.corpus.save(tmp_path / "corpus")
    hostile = {"input": "filename", "stop_words": str(words), "lowercase": False}
    for file, place in (("run/metadata.json", ["corpus"]), ("corpus/corpus.json", [])):
        about = whole = json.loads((tmp_path / file).read_text())
        for name in place:
            about = about[name]
        assert about["counting"] == {"stop_words": ["garden"]}
        about["counting"] = hostile
        (tmp_path / file).write_text(json.dumps(whole))
    assert lntm.load_run(tmp_path / "run").reading == {"lowercase": False}
    assert lntm.read_corpus(tmp_path / "corpus").counting == {"lowercase": False}


def test_the_shell_and_python_make_the_same_fit(frame, tmp_path) -> None:
    path = tmp_path / "posts.csv"
    frame.to_csv(path, index=False)
    options = ["--num-topics", "3", "--max-epochs", "4", "--test-fraction", "0", "--min-df", "3"]
    assert main(["fit", str(path), "--out", str(tmp_path / "run"), *options, "--no-progress"]) == 0
    shell, python = lntm.load_run(tmp_path / "run"), lntm.fit(path, min_df=3, **QUICK)
    assert torch.equal(shell.model.topics.probs, python.model.topics.probs)
    assert shell.metadata["corpus"] == python.metadata["corpus"]
    shared = python.config.keys() & shell.config.keys()
    assert {n: shell.config[n] for n in shared - {"progress"}} == {
        n: python.config[n] for n in shared - {"progress"}
    }
    corpus = lntm.fit("example", **QUICK).corpus
    assert corpus is not None
    assert corpus.fingerprint() == lntm.example_corpus().fingerprint()
    by_guide = lntm.fit(path, 3, max_iterations=1, stepwise_epochs=0, progress=False)
    assert by_guide.config["posterior"] == "taylor"


@pytest.mark.parametrize("method", [{}, {"posterior": "taylor", "max_iterations": 2}])
def test_shares_have_the_intervals_of_a_summary(frame, method, monkeypatch) -> None:
    run = lntm.fit(frame, 3, progress=False, **(method or {"max_epochs": 4}))
    topics = run.topics.set_index("topic").sort_index()
    overall = lntm.reports.summarise_corpus(run.source, run.corpus, num_draws=50).overall
    for ends in ("lower", "upper"):
        np.testing.assert_allclose(topics[ends], getattr(overall, ends)[0], rtol=1e-12)
    # Rubin's rules by hand, on the same draws.
    theta = lntm.inference.theta_draws(run.source, run.corpus, 50).theta.double().numpy()
    within = theta.var(1, ddof=1).mean(0) / len(frame)
    error = np.sqrt(within + (1 + 1 / 50) * theta.mean(1).var(0, ddof=1))
    reach = scipy.stats.t.ppf(0.975, len(frame) - 1) * error
    mean = theta.mean((0, 1))
    np.testing.assert_allclose(topics["share"], mean, atol=1e-4)
    np.testing.assert_allclose(topics["upper"], mean + reach, rtol=1e-10)
    np.testing.assert_allclose(topics["lower"], mean - reach, rtol=1e-10)
    # A sample of a larger corpus has the errors of the whole corpus.
    monkeypatch.setattr(result, "_INTERVAL_DOCS", 50)
    sampled = replace(run.result).topic_intervals
    whole = (topics["upper"] - topics["lower"]).to_numpy()
    np.testing.assert_allclose(sampled[1] - sampled[0], whole, rtol=0.15)
    assert not np.allclose(sampled[1] - sampled[0], whole, rtol=0.001)


def test_held_out_documents_are_scored_as_by_the_shell(frame, tmp_path, capsys) -> None:
    path = tmp_path / "posts.csv"
    frame.to_csv(path, index=False)
    options = ["--num-topics", "3", "--max-epochs", "4", "--seed", "5", "--no-progress"]
    assert main(["fit", str(path), "--out", str(tmp_path / "shell"), *options]) == 0
    python = lntm.fit(path, test_fraction=0.1, seed=5, **QUICK)
    saved = lntm.load_run(python.save(tmp_path / "python"), python.corpus)
    shell = lntm.load_run(tmp_path / "shell", python.corpus)
    for run in (saved, shell):
        pd.testing.assert_frame_equal(run.scores, python.scores)
        pd.testing.assert_frame_equal(run.topics, python.topics)
        assert run.training.fingerprint() == python.training.fingerprint()
    for run in (python, saved, shell):
        test = run.split_documents(run.corpus).test
        assert len(test) == 8
        assert len(run.documents) == len(frame)
        again = lntm.evaluation.document_completion(run.model, test, seed=5, progress=False)
        assert run.scores["value"][0] == pytest.approx(again.perplexity, rel=1e-3)
        line = f"completion perplexity of 8 held-out documents: {again.perplexity:.1f}"
        assert line in str(run)
    assert len(lntm.inference.refine(python, forbid=["salt"]).training) == len(frame) - 8
    assert lntm.fit(path, **QUICK).scores is None


@pytest.mark.parametrize(
    ("documents", "options", "error", "message"),
    [
        (["a"], {"n_topics": 3}, ConfigError, "did you mean num_topics"),
        (["a"], {"text_feild": "b"}, ConfigError, "did you mean text_field"),
        (["a"], {"text_field": "b"}, ConfigError, "names a column; the documents have none"),
        (["a"], {"encoding": "ascii"}, ConfigError, "encoding: no option of texts in memory"),
        (np.ones((2, 2), int), {"min_df": 2}, ConfigError, "min_df: no option of counts"),
        (["a"], {"device": "tpu"}, ConfigError, "device 'tpu'"),
        (["a"], {"num_topics": 0}, ConfigError, "num_topics is 0"),
        (["a"], {"model": "mtc"}, ConfigError, "model 'mtc'"),
        (["a b", 3], {}, CorpusError, "1 of 2 documents have no text"),
        (3, {}, CorpusError, "counts must be a matrix"),
        ("nosuch.csv", {}, CorpusError, "no such file"),
        (pd.DataFrame({"body": ["a"]}), {}, CorpusError, "name the column of the texts"),
    ],
)
def test_what_cannot_be_fitted_is_refused(documents, options, error, message) -> None:
    with pytest.raises(LNTMError, match=message) as caught:
        lntm.fit(documents, **{**QUICK, **options})
    assert isinstance(caught.value, error)


def test_a_refined_run_is_a_run(tmp_path: Path) -> None:
    """It has what a run has, and the same documents as the fit, the held-out ones too."""
    first = lntm.fit("example", 4, test_fraction=0.2, max_epochs=3, progress=False)
    gone = first.corpus.vocabulary[3]
    run = first.absorb([0, 1], forbid=[gone], num_epochs=1, progress=False)
    assert (len(run.topics), run.config["num_topics"]) == (3, 3)
    assert len(run.documents) == len(first.documents)
    assert gone not in run.corpus.vocabulary
    best = lntm.reports.representative_documents(run, num_docs=1)
    given = {"corpus": run.corpus, "texts": run.texts}
    transformed = run.transform(progress=False)
    found = lntm.reports.representative_documents(transformed, num_docs=1, **given)
    pd.testing.assert_frame_equal(best.drop(columns="name"), found.drop(columns="name"))
    labels = lntm.reports.topic_labels(run.model, numbered=False)
    assert best["name"].tolist() == [labels[k] for k in best["topic"]]
    assert run.before is first
    again = lntm.load_run(run.split(0, num_epochs=1, progress=False).save(tmp_path / "run"))
    assert again.decisions == [{"absorb": [[0, 1]], "forbid": [gone]}, {"split": {"0": 2}}]
    known = again.split_documents(run.corpus)
    assert known.test_index.tolist() == first.split_documents(first.corpus).test_index.tolist()
    other = again.forbid(run.corpus.vocabulary[0], corpus=run.corpus, num_epochs=1, progress=False)
    assert other.save(tmp_path / "other").is_dir()
    # As many other documents are not those of the fit.
    size = len(first.training)
    strange = lntm.example_corpus()[:size].with_vocabulary(first.corpus.vocabulary)
    moved = first.split(0, corpus=strange, num_epochs=1, progress=False)
    assert moved.corpus.fingerprint() == strange.fingerprint() != first.training.fingerprint()
    assert moved.texts is None
    assert len(moved.documents) == size
