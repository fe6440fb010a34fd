"""Names by a language model: prompts, checked answers, and a command that answers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError, NamingWarning
from torch_lntm.models import TopicModel, ctm

WORDS = tuple(f"word{v}" for v in range(12))


def make_model() -> TopicModel:
    probs = torch.rand(3, 12, generator=torch.Generator().manual_seed(0)) + 0.01
    return ctm(3, 12, vocabulary=WORDS, topics=probs / probs.sum(1, keepdim=True))


@pytest.fixture
def documents() -> tuple[TopicModel, Any]:
    model = make_model()
    return model, model.generate([15] * 20, seed=0)[0]


class Answering:
    """A function that gives answers in turn, and keeps the prompts."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.prompts = iter(answers), list[str]()

    def __call__(self, prompt: str) -> Any:
        self.prompts.append(prompt)
        return next(self.answers)


def test_topics_get_names_that_are_saved(documents: Any, tmp_path: Any) -> None:
    model, corpus = documents
    before = {name: x.clone() for name, x in model.state_dict().items()}
    ask = Answering(' "Economy." ', "<think>Is it\nwar?</think>\n War and peace", '"Trade".')
    names = lntm.name_topics(model, corpus, ask)
    assert names == ("Economy", "War and peace", "Trade")
    loaded = lntm.load_model(lntm.save_model(model, tmp_path / "model"))
    assert loaded.topic_names == names
    assert all(torch.equal(before[name], x) for name, x in loaded.state_dict().items())


def test_a_prompt_has_words_documents_and_other_names(documents: Any) -> None:
    model, corpus = documents
    model.topic_names = {0: "Economy"}
    texts = [f'Text "{d}" with\na line <b> \\' for d in range(20)]
    ask = Answering("War", "Trade")
    lntm.name_topics(model, corpus, ask, texts=texts, num_docs=2, top_n=4, language="French")
    labels = lntm.reports.label_topics(model, corpus, top_n=4).loc[1, ["frex", "probability"]]
    for said in ("in French", *(", ".join(words.split()) for words in labels)):
        assert said in ask.prompts[0]
    quoted = re.findall(r"^\d\. \"Text '\d+' with a line <b>  \"$", ask.prompts[0], re.MULTILINE)
    assert len(quoted) == 2
    assert "names: Economy." in ask.prompts[0]
    assert "names: Economy; War." in ask.prompts[1]
    words_only = Answering("X")
    lntm.name_topics(model, corpus, words_only, topics=["War"], num_docs=0)
    assert "Documents" not in words_only.prompts[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("economy", "another topic has this name"),
        ("<b>War</b>", "markup"),
        ("=SUM(A1)", "markup"),
        ("War\nand peace", "single line"),
        ("a b c d e f g h i", "more than 8 words"),
        ("War\u202e", "printable"),
        ("\x1b]0;x\x07", "special characters|printable"),
        ("17", "numbers denote topics"),
        ("", "single line|printable"),
        (None, "not a short text"),
    ],
)
def test_unsuitable_answers_are_asked_again_with_the_reason(
    answer: Any, reason: str, documents: Any
) -> None:
    model, corpus = documents
    model.topic_names = ["Economy", "Trade", None]
    ask = Answering(answer, "War")
    assert lntm.name_topics(model, corpus, ask, num_docs=0)[2] == "War"
    assert re.search(f"refused: .*({reason})", ask.prompts[1])


def test_topics_without_a_suitable_answer_keep_their_names(documents: Any) -> None:
    model, corpus = documents
    with pytest.warns(NamingWarning, match="no suitable name for topic 1 "):
        names = lntm.name_topics(model, corpus, Answering("A", "<b>", "<i>", "", "C"))
    assert names == ("A", "1", "C")
    other = make_model()
    with pytest.raises(ConfigError, match="try another language model"):
        lntm.name_topics(other, corpus, Answering(*["<b>"] * 9))
    assert not other.has_topic_names


def test_a_failure_changes_no_name(documents: Any) -> None:
    model, corpus = documents

    def ask(prompt: str) -> str:
        if "names: A." in prompt:
            raise ConfigError("broken")
        return "A"

    with pytest.raises(ConfigError, match="broken"):
        lntm.name_topics(model, corpus, ask)
    assert not model.has_topic_names
    with pytest.raises(ConfigError, match="expected a function"):
        lntm.name_topics(model, corpus, "http://localhost")  # type: ignore[arg-type]
    model.topic_names = ["A", "B", "C"]
    with pytest.raises(ConfigError, match="all topics have names"):
        lntm.name_topics(model, corpus, ask)
