"""Topics that are split, absorbed and given words by hand, and what stays of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from support.fits import fit_monte_carlo

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.inference import refine
from torch_lntm.inference.em.result import MonteCarloResult

NUM_TOPICS = 6
#: Options of constructors by the name of the model.
MODELS: dict[str, dict[str, Any]] = {
    "ctm": {"bursty": True},
    "lntm": {},
    "iftm": {"num_sources": 2},
    "lda": {},
    "stm": {"prevalence": "~ theme", "content": "season"},
}


@pytest.fixture(scope="module")
def corpus() -> lntm.Corpus:
    return lntm.example_corpus()


def fitted(corpus: lntm.Corpus, name: str = "ctm", **options: Any) -> MonteCarloResult:
    model = getattr(lntm.models, name)(NUM_TOPICS, corpus, **options)
    return fit_monte_carlo(model, corpus, max_epochs=20)


@pytest.fixture(scope="module")
def result(corpus: lntm.Corpus) -> MonteCarloResult:
    found = fitted(corpus)
    found.model.topic_names = {2: "third"}
    return found


def similarities(one: lntm.models.TopicModel, other: lntm.models.TopicModel) -> np.ndarray:
    """Cosines ``(num_topics, num_topics)`` of word probabilities."""
    rows = [m.topics.mean_probs.detach().double() for m in (one, other)]
    return (rows[0] @ rows[1].mT / torch.outer(*(x.norm(dim=1) for x in rows))).numpy()


def test_a_topic_that_absorbed_another_splits_into_both(corpus, result) -> None:
    before = {name: x.clone() for name, x in result.model.state_dict().items()}
    one = result.absorb(1, 4, progress=False)
    assert one.model.num_topics == NUM_TOPICS - 1
    assert one.model.topic_names[2] == "third"
    near = similarities(result.model, one.model)
    # Others move up, and keep their words.
    assert (near[[0, 2, 3, 5], [0, 2, 3, 4]] > 0.98).all()
    assert (near[[1, 4], 1] > 0.5).all()
    assert one.topic_shares[1] == pytest.approx(float(result.topic_shares[[1, 4]].sum()), abs=0.03)
    again = one.split(1, progress=False)
    rows, columns = linear_sum_assignment(-similarities(result.model, again.model))
    assert dict(zip(rows.tolist(), columns.tolist(), strict=True))[2] == 2
    assert {columns[1], columns[4]} == {1, NUM_TOPICS - 1}
    assert (similarities(result.model, again.model)[rows, columns] > 0.9).all()
    # Decisions can be taken back and repeated.
    assert again.before.before is result
    assert again.decisions == [{"absorb": [[1, 4]]}, {"split": {"1": 2}}]
    assert all(torch.equal(x, before[name]) for name, x in result.model.state_dict().items())
    repeated: Any = result
    for decision in again.decisions:
        repeated = refine(repeated, progress=False, **decision)
    assert torch.equal(repeated.model.topics.probs, again.model.topics.probs)


def test_a_forbidden_word_leaves_the_vocabulary_and_a_moved_word_its_topics(corpus, result) -> None:
    model = result.model
    words = model.words_at(model.topics.top_words(2)[0][3].tolist())
    refined = result.forbid(words[0], num_epochs=2, progress=False)
    assert refined.model.num_words == corpus.num_words - 1
    assert words[0] not in refined.model.vocabulary
    assert refined.corpus.vocabulary == refined.model.vocabulary
    moved = result.move(words[1], to="third", num_epochs=2, progress=False)
    # Topics with keywords come first.
    assert moved.model.topic_names == ("third", *map(str, range(1, NUM_TOPICS)))
    order = [2, 0, 1, 3, 4, 5]
    assert (np.diag(similarities(model, moved.model)[order]) > 0.85).all()
    column = corpus.vocabulary.index(words[1])
    assert moved.model.topics.probs[0, column] > 1.5 * model.topics.probs[3, column] / NUM_TOPICS
    assert (moved.model.topics.probs[1:, column] < 1e-20).all()
    # A keyword stays with its topic, and goes with the vocabulary.
    joined = moved.absorb(4, 0, forbid=[words[0]], num_epochs=1, progress=False)
    assert joined.model.topics.keywords.to_json() == {
        f"topic of {words[1]}": {words[1]: joined.model.vocabulary.index(words[1])}
    }
    # A topic whose only keyword is forbidden is free again.
    free = joined.forbid(words[1], num_epochs=1, progress=False).model
    assert free.topics.keywords is None
    assert free.topic_names[0] == f"topic of {words[1]}"


@pytest.mark.parametrize("name", MODELS)
def test_models_of_every_kind_keep_their_settings(corpus, name) -> None:
    fit = fitted(corpus, name, **MODELS[name])
    refined = refine(fit, absorb=[(0, 1, 2)], split={3: 2}, num_epochs=1, progress=False)
    sizes = {"num_topics": NUM_TOPICS - 1, "num_words": corpus.num_words}
    assert refined.model.config == fit.model.config | sizes
    assert type(refined.model.topics) is type(fit.model.topics)
    assert type(refined.model.words) is type(fit.model.words)
    assert refined.num_unconverged == 0
    assert torch.isfinite(refined.means).all()
    assert refined.means.shape == (len(corpus), refined.model.latent_dim)


def test_word_vectors_and_guides_and_runs_of_folders_are_refined(corpus, tmp_path) -> None:
    vectors = np.random.default_rng(0).normal(size=(corpus.num_words, 3)).astype(np.float32)
    model = lntm.models.ctm(4, corpus, word_vectors=vectors)
    guide = lntm.guides.TaylorGuide(model)
    engine = lntm.inference.VariationalEM(model, guide, max_iterations=2, progress=False)
    fit = engine.fit(corpus)
    gone = corpus.vocabulary[5]
    refined = fit.absorb(0, 1, forbid=[gone], num_epochs=1, progress=False)
    kept = torch.tensor([word != gone for word in corpus.vocabulary])
    # The fit subtracts the vectors' mean over the tokens, which one word changes a little.
    shift = refined.model.topics.word_vectors - model.topics.word_vectors[kept]
    assert shift.abs().max() < 0.02 < model.topics.word_vectors.std()
    lntm.io.save_run(tmp_path / "run", refined.model, refined, {"model": "ctm"})
    run = lntm.load_run(tmp_path / "run")
    assert run.metadata["decisions"] == [{"absorb": [[0, 1]], "forbid": [gone]}]
    more = run.split(0, corpus=refined.corpus, num_epochs=1, progress=False)
    assert more.model.num_topics == 4
    assert more.decisions == [*refined.decisions, {"split": {"0": 2}}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": {1: 2}, "absorb": [(0, 1)]}, "topic 1 is in two changes"),
        ({"split": {"4th": 2}}, "split: topic '4th'"),
        ({"split": {0: 1}}, "split is 1"),
        ({"split": {0: 70}}, "has tokens in .* documents; expected at least 140"),
        ({"absorb": [(3,)]}, "list of one topic"),
        ({"forbid": "garden"}, "expected a list of words"),
        ({"forbid": [0, ["garden"]]}, "name 0; expected words"),
        ({"forbid": ["gardden"]}, "no word 'gardden'; did you mean 'garden'"),
        ({"move": {"garden": 9}}, "move: topic 9"),
        ({"move": {"garden": 1}, "forbid": ["garden"]}, "'garden' is forbidden and moved"),
        ({"num_epochs": 0}, "num_epochs is 0"),
    ],
)
def test_changes_that_make_no_sense_are_refused(result, changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        refine(result, progress=False, **changes)
