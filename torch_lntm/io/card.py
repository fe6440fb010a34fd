"""The card of a saved model: the ``README.md`` of a folder, for the people who open it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch_lntm import __version__
from torch_lntm.inference.em.result import ENDS
from torch_lntm.models import TopicModel

#: Maximum number of topics, of words of a topic, and of characters of a value on a card.
_TOPICS, _WORDS, _CHARACTERS = 50, 8, 300
#: Options of a fit that the card omits, or shows elsewhere.
_OMITTED = frozenset(
    (
        *("out", "overwrite", "progress", "threads", "num_words", "checkpoint_seconds"),
        *("keep_chains", "corpus", "model", "num_topics", "device"),
    )
)


def model_card(
    model: TopicModel,
    config: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    scores: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The card of a model or a run, in Markdown.

    All names, words and settings stand in code spans. File names, labels and vocabularies may come
    from strangers, and Markdown shows the content of a code span literally.

    Args:
        model: The model.
        config: Configuration of the fit. Omit it for a model alone.
        metadata: Facts about the fit, the content of ``metadata.json``. Omit for a model alone.
        scores: Scores on held-out documents, the content of ``evaluation.json``.
    """
    config, metadata = config or {}, metadata or {}
    name = model.construction.name if model.construction else model.name
    size = f"{model.num_topics} topics over {model.num_words} words"
    parts = [
        f"# Topic model {code(name)}",
        f"{size}, saved by torch_lntm {__version__}.",
        *_section("Data", _data(config, metadata)),
        *_section("Settings", _settings(model, config, metadata)),
        *_section("Scores", [_score(score) for score in scores]),
        *_section("Topics", _topics(model, metadata.get("topic_shares"))),
        *_section("Licence", [_licence(metadata)]),
        "## How to load",
        _how_to_load(is_run=bool(metadata)),
    ]
    return "\n\n".join(parts) + "\n"


def code(value: object) -> str:
    """A value as a Markdown code span. Markdown and HTML in the value stay inert.

    Control characters and line breaks become spaces. Long values are cut. The fence is longer than
    each run of backticks in the value.
    """
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    text = "".join(sign if sign.isprintable() else " " for sign in text[: _CHARACTERS + 1])
    if len(text) > _CHARACTERS:
        text = text[:_CHARACTERS] + "…"
    if not text.strip():
        return "(empty)"
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    # A space at both ends keeps a backtick there apart from the fence; Markdown removes the spaces.
    margin = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{margin}{text}{margin}{fence}"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    """A heading and a list; empty for an empty list."""
    listed = "\n".join(f"* {line}" for line in lines)
    return [f"## {title}", listed] if listed else []


def _data(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[str]:
    """Facts about the corpus of a fit."""
    corpus = metadata.get("corpus") or {}
    lines = [f"corpus: {code(config['corpus'])}"] if config.get("corpus") is not None else []
    for name, meaning in (
        ("num_docs", "documents"),
        ("num_words", "words in the vocabulary"),
        ("num_tokens", "tokens"),
        ("fingerprint", "fingerprint"),
    ):
        if corpus.get(name) is not None:
            lines.append(f"{meaning}: {code(corpus[name])}")
    if config.get("test_fraction"):
        lines.append(f"share of documents held out from the fit: {code(config['test_fraction'])}")
    return lines


def _settings(
    model: TopicModel, config: Mapping[str, Any], metadata: Mapping[str, Any]
) -> list[str]:
    """Settings of the model and of its fit, and how the fit ended."""
    settings: dict[str, Any] = {}
    if model.construction is not None:
        settings |= model.construction.to_json()
    settings |= {name: value for name, value in config.items() if name not in _OMITTED}
    settings |= {name: metadata[name] for name in ("seed", "date", "seconds") if name in metadata}
    sources = {record.source for record in model.name_records}
    if sources:
        settings["names of topics by"] = ", ".join(sorted(sources))
    if "stop_reason" in metadata:
        settings["ended"] = ENDS.get(str(metadata["stop_reason"]), metadata["stop_reason"])
    versions = metadata.get("versions") or {}
    settings |= {f"version of {name}": value for name, value in versions.items()}
    return [f"{code(name)}: {code(x)}" for name, x in settings.items() if x is not None]


def _score(score: Mapping[str, Any]) -> str:
    """A score with its protocol."""
    error = score.get("standard_error")
    spread = "" if error is None else f" (standard error {code(round(error, 4))})"
    about = f" on {code(score['documents'])} documents" if score.get("documents") else ""
    return (
        f"{code(score.get('metric'))}: {code(round(score['value'], 4))}{spread}, "
        f"{code(score.get('unit'))}{about}; method: {code(score.get('method'))}"
    )


def _topics(model: TopicModel, shares: Sequence[float] | None) -> list[str]:
    """The largest topics with their shares and words."""
    table = model.topic_table(shares, num_words=_WORDS)
    lines = []
    for topic in table[:_TOPICS]:
        share = "" if shares is None else f" ({shares[topic.topic]:.1%})"
        name = topic.name if topic.name == str(topic.topic) else code(topic.name)
        lines.append(f"topic {name}{share}: {code(' '.join(topic.words))}")
    if len(table) > _TOPICS:
        lines.append(f"and {len(table) - _TOPICS} smaller topics")
    return lines


def _licence(metadata: Mapping[str, Any]) -> str:
    """The licence of the model, if it was stated."""
    if metadata.get("licence"):
        return code(metadata["licence"])
    return (
        "not stated. Write the licence of this model here before you share the folder. The licence "
        "of the documents may restrict the choice."
    )


def _how_to_load(is_run: bool) -> str:
    loaded = (
        'run = lntm.load_run("FOLDER")\nmodel = run.model'
        if is_run
        else ('model = lntm.load_model("FOLDER")')
    )
    return (
        f"```python\nimport torch_lntm as lntm\n\n{loaded}\nprint(model.topic_table())\n```\n\n"
        "Put the path of this folder in the place of `FOLDER`. Install torch_lntm first, and "
        "import the plug-in of the model, if it has one. Loading reads tensors, JSON and text, and "
        "executes no code. The library ignores this page, so you may edit it."
    )
