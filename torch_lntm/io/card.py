"""The card of a saved model: the ``README.md`` of a folder, for the people who open it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch_lntm import __version__
from torch_lntm.inference.em.result import ENDS
from torch_lntm.models import TopicModel

#: Maximum number of topics, of words of a topic, and of characters of a value on a card.
_TOPICS, _WORDS, _CHARACTERS = 50, 8, 300
_NO_LICENCE = (
    "not stated. Write the licence of this model here before you share the folder. The licence "
    "of the documents may restrict the choice."
)
_LOADING = """

## How to load

```python
import torch_lntm as lntm

{}
print(model.topic_table())
```

Put the path of this folder in the place of `FOLDER`. Install torch_lntm first, and \
import the plug-in of the model, if it has one. Loading reads tensors, JSON and text, and \
executes no code. The library ignores this page, so you may edit it.
"""
#: Options of a fit that say nothing of the model, or are shown elsewhere.
_OMITTED = (
    *("out", "overwrite", "progress", "threads", "num_words", "checkpoint_seconds"),
    *("keep_chains", "model", "num_topics"),
)
#: Last line of a card that nobody edited, with a digest of the lines before.
_MARK = "\n<!-- written by torch_lntm, which keeps an edited page: {} -->\n"


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
    sections = {
        "Data": _data(config, metadata),
        "Settings": _settings(model, config, metadata),
        "Scores": [_score(score) for score in scores],
        "Topics": _topics(model, metadata.get("topic_shares")),
        "Licence": [code(metadata["licence"]) if metadata.get("licence") else _NO_LICENCE],
    }
    size = f"{model.num_topics} topics over {model.num_words} words"
    parts = [f"# Topic model {code(name)}", f"{size}, saved by torch_lntm {__version__}."]
    for title, lines in sections.items():
        if lines:
            parts += [f"## {title}", "\n".join(f"* {line}" for line in lines)]
    load = 'run = lntm.load_run("FOLDER")\nmodel = run.model'
    return "\n\n".join(parts) + _LOADING.format(
        load if metadata else 'model = lntm.load_model("FOLDER")'
    )


def signed(card: str) -> bytes:
    """A card as a file, with a mark that tells an unedited card from an edited one."""
    return (card + _MARK.format(hashlib.sha256(card.encode()).hexdigest())).encode()


def is_unedited(text: str) -> bool:
    """Whether a card is as :func:`signed` made it, for whatever names and scores."""
    return signed(text.rpartition(_MARK[:9])[0]) == text.encode()


def settings_of(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a fit by name, its end, and the versions of libraries."""
    settings = {name: x for name, x in config.items() if name not in _OMITTED and x is not None}
    settings |= {name: metadata[name] for name in ("seed", "date", "seconds") if name in metadata}
    if "stop_reason" in metadata:
        settings["ended"] = ENDS.get(str(metadata["stop_reason"]), metadata["stop_reason"])
    versions = metadata.get("versions") or {}
    return settings | {f"version of {name}": value for name, value in versions.items()}


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


def _listed(facts: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {code(x)}" for name, x in facts.items() if x is not None]


def _data(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[str]:
    """Facts about the corpus of a fit."""
    corpus = metadata.get("corpus") or {}
    facts = {
        "corpus": config.get("corpus"),
        "documents": corpus.get("num_docs"),
        "words in the vocabulary": corpus.get("num_words"),
        "tokens": corpus.get("num_tokens"),
        "fingerprint": corpus.get("fingerprint"),
        "share of documents held out from the fit": config.get("test_fraction") or None,
    }
    return _listed(facts)


def _settings(
    model: TopicModel, config: Mapping[str, Any], metadata: Mapping[str, Any]
) -> list[str]:
    """Settings of the model and of its fit, and how the fit ended."""
    settings = {} if model.construction is None else model.construction.to_json()
    settings |= settings_of(config, metadata)
    sources = {record.source for record in model.name_records}
    if sources:
        settings["names of topics by"] = ", ".join(sorted(sources))
    facts = {n: x for n, x in settings.items() if n not in ("corpus", "device")}
    return _listed({code(name): x for name, x in facts.items()})


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
