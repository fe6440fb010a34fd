"""The report page is complete, self-contained, safe for any text, and works in a browser."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from support.pages import Page

import torch_lntm as lntm
from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.inference import theta_draws
from torch_lntm.reports.page import render_page
from torch_lntm.reports.scores import as_scores

NUM_DOCS = 40
HOSTILE = '</title><script>document.title="owned"</script><img src=x onerror=alert(1)>"\'&'


def make(num_topics=4, num_docs=NUM_DOCS, num_words=30, correlation=0.8):
    """A guide over a model of known topics, the first two correlated, and documents of it."""
    words = [f"w{v}" for v in range(num_words - 1)] + ["<b>bold</b>"]
    covariance = torch.eye(num_topics, dtype=torch.float64) * 2.0
    covariance[0, 1] = covariance[1, 0] = 2 * correlation
    model = lntm.models.ctm(
        num_topics,
        num_words,
        vocabulary=words,
        covariance=covariance,
        topics=synthetic_topics(num_topics, num_words, 0.05, seed=1),
    )
    corpus = model.generate(torch.full((num_docs,), 60), seed=2)[0]
    return lntm.guides.TaylorGuide(model), corpus


def tips(html, picture):
    """Texts of a picture's panels where the mouse points, by the name of the topic."""
    found = re.findall(rf'<title id="{picture}-\d+">[^<]*?, ([^\n]*)\n([^<]*)</title>', html)
    return {unescape(name): unescape(text) for name, text in found}


def atlas_of(html):
    """What the script of a page draws."""
    (text,) = re.findall(r'<script type="application/json" id="atlas">(.*?)</script>', html)
    return json.loads(text)


def names_of(model):
    return [name.partition(" ")[2] for name in lntm.reports.topic_labels(model)]


def shown_documents(html, topic):
    """Text of a topic's section, and the numbers of its documents."""
    section = html.split(f'id="topic-{topic}"')[1].split("</details>")[0]
    return section, [int(d) for d in re.findall(r"document (\d+)", section)]


@pytest.fixture(scope="module")
def known():
    guide, corpus = make()
    days = [f"20{10 + d % 3}-0{1 + d % 9}-01" for d in range(NUM_DOCS)]
    columns = {"party": ["left", HOSTILE] * (NUM_DOCS // 2), "date": days}
    return guide, corpus.with_metadata(columns)


@pytest.fixture(scope="module")
def html(known):
    guide, corpus = known
    return render_page(
        guide,
        corpus,
        texts=[f"{HOSTILE} text {d}" for d in range(len(corpus))],
        scores=as_scores(
            [("perplexity", 512.25, 3.5, "per token", 40, 9, "importance " + HOSTILE)]
        ),
        settings={"start": HOSTILE},
        title="Posts " + HOSTILE,
    )


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_the_page_is_complete_and_loads_nothing_from_outside(page, html):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    parts = ["map", "topics", "prevalence", "correlations", "each", "scores", "settings", "cite"]
    assert [i for i in ids if i in parts] == parts
    links = [str(a["href"]) for a in page.all("a")]
    assert {f"#topic-{k}" for k in range(4)} <= set(links) <= {f"#{i}" for i in ids}
    assert not page.all("link") + page.all("img") + page.all("iframe")
    assert not [a for _, a in page.elements if "src" in a]
    assert not re.search(r"https?://|url\((?!#)|@import", html)
    assert len(html.encode()) < 200_000


def test_intervals_of_quoted_documents_have_their_ends_at_ranks_of_200_draws(known, html):
    guide, corpus = known
    draws = np.sort(theta_draws(guide, corpus, 200).theta.double().numpy(), axis=0)
    for k in range(4):
        section, positions = shown_documents(html, k)
        ends = re.findall(r"\(([0-9.]+) to ([0-9.]+) %\), document", section)
        # Of 200 draws, the 2.5 % point has rank 5.025 and the 97.5 % point 195.975.
        low, high = draws[4:6, positions, k], draws[194:196, positions, k]
        expected = [0.975 * low[0] + 0.025 * low[1], 0.025 * high[0] + 0.975 * high[1]]
        np.testing.assert_allclose(np.array(ends, float).T, 100 * np.array(expected), atol=0.06)


def test_texts_of_documents_are_escaped(page):
    assert [script.get("type") for script in page.all("script")] == ["application/json", None]
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
    (title,) = page.said("title")[:1]
    assert title == "Posts " + HOSTILE
    # A text, a column's value, a word, a score and a setting stand as they are.
    assert any(text.startswith(HOSTILE + " text ") for text in page.said("blockquote"))
    assert any(f"party: {HOSTILE}" in text for text in page.said("p"))
    assert "<b>bold</b>" in " ".join(page.said("th", "td"))
    assert "importance " + HOSTILE in page.said("td")
    assert HOSTILE in page.said("dd")
    policy = next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


def test_screen_readers_can_read_the_page(page):
    assert page.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = {str(attributes.get("id")) for _, attributes in page.elements}
    for svg in page.all("svg"):
        assert svg.get("aria-hidden") == "true" or {*svg["aria-labelledby"].split()} <= ids
    for head in page.all("th"):
        assert head["scope"] in ("col", "row")
    labelled = {label["for"] for label in page.all("label")}
    assert {field["id"] for field in page.all("input")} == labelled
    assert {"main", "header", "nav"} <= {tag for tag, _ in page.elements}


def test_numbers_equal_the_summarys(known, page, html):
    found = lntm.reports.summarise_corpus(*known, ["party"])
    cells, overall = " ".join(page.said("td")), found.overall
    for k in range(4):
        assert f"{100 * overall.mean[0, k]:.1f} %" in cells
        assert f"{100 * overall.lower[0, k]:.1f} to {100 * overall.upper[0, k]:.1f} %" in cells
    (prevalence,) = found.prevalence
    g = prevalence.levels.names.index("left")
    label = tips(html, "prevalence-0")[names_of(known[0].model)[2]]
    assert f"left: {prevalence.mean[g, 2]:.2%}, {prevalence.lower[g, 2]:.2%} to" in label
    assert "(20 documents)" in label
    assert "512.2" in page.said("td")


def test_documents_with_the_largest_share_represent_a_topic(known, html):
    theta = lntm.reports.summarise_corpus(*known).documents.theta
    section, shown = shown_documents(html, 1)
    assert shown == theta[:, 1].argsort(descending=True)[:4].tolist()
    assert f"text {shown[0]}<" in section


def test_a_large_corpus_is_sampled_and_the_page_says_so(known):
    guide, corpus = known
    texts = (f"text {d}." for d in range(len(corpus)))
    html = render_page(guide, corpus, by=["party"], texts=texts, max_docs=25, seed=3)
    assert f"a random sample of 25 of {len(corpus)} documents" in html
    chosen = np.sort(np.random.default_rng(3).choice(len(corpus), 25, replace=False))
    draws = theta_draws(guide, corpus, seed=3).take(chosen).of_selection(chosen)
    summary = lntm.reports.summarise_corpus(draws, corpus[chosen], ["party"])
    section, shown = shown_documents(html, 1)
    best = summary.documents.theta[:, 1].argsort(descending=True)[:4]
    # Documents keep their numbers and texts.
    assert shown == chosen[best].tolist()
    assert f"text {shown[0]}." in section
    assert f"{100 * summary.overall.mean[0, 1]:.1f}" in section
    with pytest.raises(ConfigError, match=f"25 texts for {len(corpus)} documents"):
        render_page(guide, corpus, texts=["text"] * 25, max_docs=25)


def test_a_page_is_weighted_and_says_so(known):
    guide, corpus = known
    weights, blogs = np.arange(len(corpus)) % 4 + 0.5, np.arange(len(corpus)) // 5
    columns = corpus.with_metadata({"w": weights, "blog": blogs})
    survey = {"strata": np.arange(len(corpus)) // 5 % 2, "clusters": "blog"}
    html = render_page(guide, columns, weights="w", **survey)
    summary = lntm.reports.summarise_corpus(guide, columns, ["party"], weights="w", **survey)
    for share, low, high in zip(
        summary.overall.mean[0], summary.overall.lower[0], summary.overall.upper[0], strict=True
    ):
        assert f"{100 * share:.1f} %" in html
        assert f"{100 * low:.1f} to {100 * high:.1f} %" in html
    assert "a survey with weights w, 8 clusters in 2 strata" in html
    assert "By party" in html
    assert "By w" not in html
    sampled = render_page(guide, corpus, max_docs=30, weights=weights, num_docs=0)
    assert "a survey with given weights" in sampled


def test_lines_join_correlated_topics_only():
    guide, corpus = make(num_docs=400)
    html = render_page(guide, corpus, by=[], num_docs=0)
    page = Page(html)
    assert [pair[:2] for pair in atlas_of(html)["lines"]] == [[0, 1]]
    assert "Prevalence" not in page.said("h2")
    guide, corpus = make(num_docs=3)
    page = Page(render_page(guide, corpus, by=[]))
    assert "No positive correlation differs" in " ".join(page.said("p"))


def test_without_texts_documents_show_their_frequent_words(known):
    guide, corpus = known
    html = render_page(guide, corpus, by=[], num_docs=1)
    section, (shown,) = shown_documents(html, 0)
    first = corpus[shown]
    frequent = first.vocabulary[first.word_index[first.counts.argmax()]]
    assert f"Most frequent words: {frequent}," in section
    assert "These documents are short" not in html  # 60 tokens each
    assert "From vectors" not in html


@pytest.mark.parametrize("name", ["lda", "iftm", "lntm", "ctm"])
def test_every_model_has_a_page(name):
    counts = np.random.default_rng(0).poisson(1.0, (9, 6))
    counts[3] = 0
    corpus = Corpus.from_matrix(counts, metadata={"x": [1.0] * 4 + [float("nan")] * 5})
    options = {"num_sources": 2} if name == "iftm" else {}
    model = getattr(lntm.models, name)(1 if name == "ctm" else 3, 6, **options)
    guide = lntm.guides.make_guide(None, model)
    page = Page(render_page(guide, corpus, by=["x"]))
    assert "#0" in " ".join(page.said("th"))
    assert "The documents have fewer than two levels of this column." in page.said("p")
    assert f"These documents are short, {round(counts.sum() / 9)} words" in " ".join(page.said("p"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"texts": ["a"] * 39}, ConfigError, "39 texts for 40 documents"),
        ({"by": ["county"]}, CorpusError, "county"),
        ({"groups": {"a": [9]}}, ConfigError, "9"),
        ({"sections": [("a", len)]}, ConfigError, "sections is a list; expected functions by"),
        ({"sections": {" ": len}}, ConfigError, "expected a title and a function"),
        ({"top_n": 0}, ConfigError, "top_n"),
        ({"max_docs": 0}, ConfigError, "max_docs is 0"),
    ],
)
def test_invalid_arguments_are_refused_before_draws(known, options, error, message, monkeypatch):
    monkeypatch.setattr(lntm.inference.ThetaDraws, "__iter__", None)
    with pytest.raises(error, match=message):
        render_page(*known, **options)


@pytest.mark.slow
def test_a_browser_runs_the_pages_own_script_only(html, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("needs the browser chromium (Debian's package)")
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    command = [
        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"),
        *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", "--enable-logging=stderr"),
        f"file://{tmp_path / 'page.html'}#topic-2",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr  # neither an error nor a breach of the policy
    page = Page(done.stdout)
    assert page.said("title")[0].endswith(HOSTILE)
    # The topic that the address names was opened, and the tools of the script are shown.
    opened = [a["id"] for a in page.all("details") if "id" in a and "open" in a]
    assert opened == ["topic-2"]
    assert not [p for p in page.all("p") if p.get("class") in ("filter", "tools") and "hidden" in p]


@pytest.mark.slow
def test_a_structural_model_has_a_page_with_its_effects():
    party = ["left", "right", HOSTILE] * 10
    counts = np.random.default_rng(0).poisson(2.0, (30, 8))
    corpus = Corpus.from_matrix(counts, metadata={"party": party})
    model = lntm.models.stm(2, corpus, prevalence="~ party", seed=0)
    guide = lntm.guides.TaylorGuide(model)
    effects = lntm.effects.estimate(model, guide, corpus, "~ party", num_draws=5)
    html = render_page(guide, corpus, effects=effects)
    page = Page(html)
    assert "Expected proportion by party" in page.said("h3")
    for point in effects.predict("party").itertuples():
        label = tips(html, "effects-0")[str(point.topic)]
        assert f"{point.party}: {point.estimate:.2%}, {point.lower:.2%} to" in label
    for effect in effects.table(0.95).itertuples():
        assert effect.term in page.said("th")
        assert f"{effect.estimate:.4f}".replace("-", "−") in page.said("td")
    assert " ".join(effects.notes) in page.said("p")
    assert not re.search(r"Effects\(|docs/|\.md", " ".join(page.said("p")))
    assert any("Roberts" in text for text in page.said("li"))


def test_a_page_tells_what_comes_from_word_vectors():
    counts = np.array([[30, 10, 1], [0, 0, 9]])
    corpus = Corpus.from_matrix(counts, ["tea", "coffee", "rain"])
    options = {"word_vectors": np.eye(3), "vector_strength": 40.0}
    model = lntm.models.ctm(2, corpus, **options)
    model.topics.m_step(torch.from_numpy(counts).float())
    page = Page(render_page(lntm.guides.TaylorGuide(model), corpus))
    assert {"49.4 %", "81.6 %"} <= {*page.said("td")}  # 40/81 and 40/49
    assert "From vectors" in page.said("th")


def test_a_page_replaces_a_file_only_with_overwrite(known, tmp_path):
    guide, corpus = known[0], known[1][:5]
    options = {"by": [], "num_docs": 0, "num_draws": 2}
    path = lntm.report(guide, corpus, tmp_path / "page.html", **options)
    for place, message in (
        (path, "exists already"),
        (tmp_path, "is a folder"),
        (path / "page.html", "cannot be written"),
    ):
        with pytest.raises(ConfigError, match=message):
            lntm.report(guide, corpus, place, **options)
    path.write_text("old")
    with pytest.raises(ConfigError, match="top_n is 0"):
        lntm.report(guide, corpus, path, overwrite=True, top_n=0)
    assert path.read_text() == "old"
    lntm.report(guide, corpus, path, overwrite=True, title="New", **options)
    assert Page(path.read_text(encoding="utf-8")).said("h1") == ["New"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["variational", "monte-carlo"])
def test_the_page_of_a_result_uses_the_posterior_of_the_fit(known, tmp_path, engine):
    corpus = known[1][:10]
    model = lntm.models.ctm(2, corpus.num_words, vocabulary=corpus.vocabulary, seed=0)
    guide = lntm.guides.TaylorGuide(model)
    options = {"start": "documents", "progress": False}
    if engine == "variational":
        fit = lntm.inference.VariationalEM(model, guide, max_iterations=1, **options)
    else:
        fit = lntm.inference.MonteCarloEM(model, max_epochs=4, seed=6, **options)
    result = fit.fit(corpus)
    few = {"num_draws": 3, "num_docs": 0, "by": []}
    path = lntm.report(result, corpus, tmp_path / "page.html", **few)
    page = Page(path.read_text(encoding="utf-8"))
    settings = dict(zip(page.said("dt"), page.said("dd"), strict=True))
    draws = theta_draws(result.source, corpus, 3)
    assert settings["documents' posteriors on this page"] == draws.description
    assert ("taylor" in draws.description) == (engine == "variational")
    assert ("Neal (2011)" in " ".join(page.said("li"))) == (engine == "monte-carlo")
    assert f"{100 * float(draws.theta.double().mean((0, 1))[0]):.1f} %" in page.said("td")
    assert settings["ended"] == result.ended
    assert f"{result.history[-1]['objective']:.4f}" in settings[result.objective_name]
    lntm.report(result, corpus, path, overwrite=True, source=guide, **few)
    html = path.read_text(encoding="utf-8")
    assert "The proportions of the documents come from the posterior taylor" in html


@pytest.mark.slow
def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    text = (Path(__file__).resolve().parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    example = text.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    # Small enough for a test; everything else as printed.
    code = example.replace("ctm(10,", "ctm(2,").replace(
        "(model, guide)", "(model, guide, **FEW)", 1
    )
    exec(compile(code, "report.md", "exec"), {"FEW": {"max_iterations": 1, "progress": False}})
    assert Page((tmp_path / "report.html").read_text(encoding="utf-8")).said("h1")


def test_equal_documents_give_an_equal_page(known, html):
    guide, corpus = known
    options = {"by": ["party"], "num_draws": 3}
    assert render_page(guide, corpus, **options) == render_page(guide, corpus, **options)
