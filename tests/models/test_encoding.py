"""Arrays that a model encodes from a corpus's columns: computed once, and carried along."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from tests.support.formulas import count_evaluations
from torch_lntm.corpus import Corpus
from torch_lntm.errors import CorpusError
from torch_lntm.models import TopicModel

NUM_DOCS = 40


@pytest.fixture(scope="module")
def model(corpus) -> TopicModel:
    return lntm.models.stm(3, corpus, "~ party + age", content="party", dtype="float64")


@pytest.fixture
def evaluations(monkeypatch) -> Iterator[list[str]]:
    """The formulas that are evaluated, in order."""
    with count_evaluations() as found:
        yield found


def right(corpus: Corpus) -> np.ndarray:
    return (corpus.metadata["party"] == "Right").astype(float)


def test_encoded_arrays_survive_selection_splits_and_hold_outs(corpus, model, evaluations) -> None:
    encoded = model.encode(corpus)
    train, test = encoded.split(0.25, seed=1)
    observed, held_out = encoded.hold_out_words(0.5, seed=0)
    parts = [encoded[5:9], train, test, observed, held_out]
    assert all(model.encode(part) is part for part in parts)
    for part in (*parts, encoded.with_vocabulary(encoded.vocabulary[::-1])):
        batch = part.batch()
        assert batch.covariates["prevalence"][:, 0].tolist() == right(part).tolist()
        assert batch.covariates["content"].tolist() == right(part).tolist()
        with pytest.raises(ValueError, match="read-only"):
            part.encodings["prevalence"][0] = 0.0
    assert len(evaluations) == 1


def test_a_second_model_encodes_its_own_arrays(corpus, model, evaluations) -> None:
    other = lntm.models.stm(3, corpus, "~ age + party", dtype="float64")
    evaluations.clear()
    encoded = other.encode(model.encode(corpus))
    assert evaluations == ["1 + party + age", "1 + age + party"]
    assert encoded.batch().covariates["prevalence"][:, 1].tolist() == right(corpus).tolist()


def test_splines_with_equal_names_and_different_knots_are_encoded_separately(corpus) -> None:
    formula = "~ bs(age, df=4, extrapolation='clip')"
    of_old, of_all = (
        lntm.models.stm(3, documents, formula)
        for documents in (corpus[corpus.metadata["age"] > 30], corpus)
    )
    assert of_old.prior.names == of_all.prior.names
    encoded = of_all.encode(of_old.encode(corpus))
    expected = of_all.encode(corpus).encodings["prevalence"]
    assert encoded.encodings["prevalence"].tolist() == expected.tolist()


def test_groups_with_different_levels_are_encoded_separately(corpus) -> None:
    three = np.array(["Green", "Left", "Right"])[np.arange(NUM_DOCS) % 3]
    parties = corpus.with_metadata({"party": three})
    some = parties[np.arange(NUM_DOCS) % 3 > 0]
    all_three, two = (lntm.models.stm(3, c, content="party") for c in (parties, some))
    encoded = all_three.encode(two.encode(some))
    assert encoded.encodings["content"].tolist() == [1 + d % 2 for d in range(some.num_docs)]


def test_a_model_with_array_covariates_ignores_encoded_arrays(corpus, model) -> None:
    given = corpus.with_covariates({"prevalence": np.arange(2.0 * NUM_DOCS).reshape(NUM_DOCS, 2)})
    plain = lntm.models.stm(3, given, dtype="float64")
    encoded = model.encode(given)
    assert encoded.batch().covariates["prevalence"][:, 0].tolist() == right(corpus).tolist()
    back = plain.encode(encoded)
    assert back.batch().covariates["prevalence"].tolist() == given.covariates["prevalence"].tolist()
    assert plain.encode(given) is given
    # A model made from an encoded corpus uses the arrays of the user.
    assert lntm.models.stm(3, encoded).prior.covariates == plain.prior.covariates


def test_generated_documents_keep_their_covariates(corpus) -> None:
    model = lntm.models.stm(3, corpus, "~ party + age", dtype="float64")
    x = np.random.default_rng(0).normal(size=(6, 2))
    drawn, _ = model.generate([20] * 6, covariates={"prevalence": x})
    assert model.encode(drawn) is drawn
    assert drawn.batch(dtype=torch.float64).covariates["prevalence"].tolist() == x.tolist()
    with pytest.raises(CorpusError, match="has 1 columns; the model was made for 2"):
        model.encode(drawn.with_covariates({"prevalence": x[:, :1]}))
    # Columns have precedence over an array.
    named = drawn.with_metadata({"party": ["Left"] * 6, "age": range(20, 26)})
    assert model.encode(named).encodings["prevalence"][:, 1].tolist() == list(range(20, 26))


def test_replacing_a_column_drops_arrays_encoded_from_it(corpus, model) -> None:
    encoded = model.encode(corpus)
    swapped = np.where(right(corpus) == 1, "Left", "Right")
    changed = encoded.with_metadata({"party": swapped})
    assert dict(changed.encodings) == {}
    batch = model.encode(changed).batch()
    assert batch.covariates["prevalence"][:, 0].tolist() == (1 - right(corpus)).tolist()
    assert batch.covariates["content"].tolist() == (1 - right(corpus)).tolist()


def test_covariates_set_after_encoding_replace_encoded_arrays(corpus, model) -> None:
    x = np.ones((NUM_DOCS, 2))
    given = model.encode(corpus).with_covariates({"prevalence": x})
    assert given.batch().covariates["prevalence"].tolist() == x.tolist()
    assert given.batch().covariates["content"].tolist() == right(corpus).tolist()
