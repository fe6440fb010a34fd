"""The map of the documents has their places, proportions, texts and times."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

import torch_lntm as lntm
from torch_lntm.corpus import synthetic_topics
from torch_lntm.reports import atlas
from torch_lntm.reports.page import render_page


def unpacked(text, dtype):
    return np.frombuffer(base64.b64decode(text), dtype)


def test_documents_of_a_topic_lie_together_also_beside_the_sample_of_the_embedding(monkeypatch):
    monkeypatch.setattr(atlas, "_LANDMARKS", 60)
    rng = np.random.default_rng(0)
    main = rng.integers(3, size=200)
    theta = rng.dirichlet(np.ones(3), 200) * 0.3 + 0.7 * np.eye(3)[main]
    at = atlas.places(theta, seed=1)
    assert at.min() == 0
    assert at.max() == 1
    near = cdist(at, at).argsort(1)[:, 1:4]
    assert (main[near] == main[:, None]).mean() > 0.95
    assert len(np.unique(at, axis=0)) == 200
    np.testing.assert_array_equal(at, atlas.places(theta, seed=1))


@pytest.mark.parametrize("shape", [(3, 5), (9, 1)])
def test_few_documents_or_topics_have_places(shape):
    assert np.isfinite(atlas.places(np.full(shape, 1 / shape[1]), seed=0)).all()
    assert np.isfinite(atlas.places(np.full((9, 4), 0.25), seed=0)).all()


def test_the_map_has_the_proportions_texts_and_times_of_a_sample_of_documents(monkeypatch):
    monkeypatch.setattr(atlas, "MAX_POINTS", 30)
    topics = synthetic_topics(5, 40, 0.05, seed=1)
    model = lntm.models.ctm(5, 40, vocabulary=[f"w{v}" for v in range(40)], topics=topics)
    corpus = model.generate(torch.full((50,), 40), seed=2)[0]
    years = [2001.0 + d % 4 for d in range(49)] + [np.nan]
    titles = [f"</script> {d}" for d in range(50)]
    columns = {"headline": titles, "year": years}
    corpus = corpus.with_metadata(columns)
    guide = lntm.guides.TaylorGuide(model)
    html = render_page(guide, corpus, by=[], texts=[f"é{d}" for d in range(50)], seed=4)
    text = html.split('id="atlas">')[1].split("</script>")[0]
    found = json.loads(text)
    rows = [int(name) for name in found["ids"]]
    assert len(set(rows)) == 30
    assert "a random sample of 30 of 50 documents" in html
    assert found["titles"] == [titles[d] for d in rows]
    assert found["texts"] == [f"é{d}" for d in rows]
    assert found["periodNames"] == ["2001", "2002", "2003", "2004"]
    periods = [255 if np.isnan(years[d]) else d % 4 for d in rows]
    assert unpacked(found["periods"], "u1").tolist() == periods
    theta = lntm.reports.summarise_corpus(guide, corpus, seed=4).documents.theta.numpy()[rows]
    best = np.sort(theta, 1)[:, :-4:-1]
    shares = unpacked(found["shares"], "u1").reshape(30, 3)
    np.testing.assert_allclose(shares / 255, best, atol=0.003)
    told = unpacked(found["topics"], "<u2").reshape(30, 3)
    np.testing.assert_array_equal(told[:, 0], theta.argmax(1))
    places = np.stack([unpacked(found[axis], "<u2") for axis in "xy"], 1) / 65535
    for k in np.unique(told[:, 0]):
        middle = np.median(places[told[:, 0] == k], 0)
        np.testing.assert_allclose(found["places"][k], middle, atol=1e-3)


def test_long_texts_are_shortened_to_the_room_of_the_page(monkeypatch):
    monkeypatch.setattr(atlas, "_BYTES", 4000)
    texts = ["ж" * 400] * 40
    shown = atlas._shortened(texts, ["x" * 10] * 40)
    assert len("".join(shown).encode()) <= 3700
    assert len(shown[0]) > 40
    assert atlas._shortened(["short"], []) == ["short"]


@pytest.mark.parametrize(
    ("num_topics", "levels", "expected"), [(1, [], 1), (9, [], 3), (9, [4], 4), (40, [9], 7)]
)
def test_every_topic_is_in_one_of_at_most_seven_groups(num_topics, levels, expected):
    model = lntm.models.ctm(num_topics, 30, seed=0)
    tree = lntm.topic_tree(model, levels) if levels else None
    groups = atlas.colour_groups(model, tree)
    assert len(groups) == expected
    assert sorted(k for topics in groups.values() for k in topics) == list(range(num_topics))


def test_the_documents_of_a_topic_do_not_fall_on_one_place():
    topics = np.repeat(np.arange(6), 12)
    theta = np.full((72, 6), 0.004) + np.random.default_rng(0).uniform(0, 1e-3, (72, 6))
    theta[np.arange(72), topics] = 0.98
    at = atlas.places(theta / theta.sum(1, keepdims=True), 0)
    assert min(np.ptp(at[topics == k], axis=0).min() for k in range(6)) > 0.02
