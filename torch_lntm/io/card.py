"""The card of a saved model: the ``README.md`` of a folder, for the people who open it."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from torch_lntm import __version__
from torch_lntm.inference.em.result import ENDS
from torch_lntm.models import TopicModel

#: Maximum number of characters of a value on a card.
_CHARACTERS = 300
_NO_LICENCE = "not stated. Before you share the folder, write the licence of this model here."
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
#: Options of a fit that say nothing about the model, or that the card shows elsewhere.
_OMITTED = (
    *("out", "overwrite", "progress", "threads", "top_n", "num_words", "checkpoint_seconds"),
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

    All names, words and settings are put in code spans and blocks, whose content Markdown shows
    literally. This matters because file names and vocabularies may come from strangers.

    Args:
        model: The model.
        config: Configuration of the fit. Omit it for a model alone.
        metadata: Facts about the fit, the content of ``metadata.json``. Omit for a model alone.
        scores: Scores on held-out documents, the content of ``evaluation.json``.
    """
    config, metadata = config or {}, metadata or {}
    call = model.construction
    settings = ({} if call is None else call.to_json()) | settings_of(config, metadata)
    data = {"corpus": settings.pop("corpus", None), **(metadata.get("corpus") or {})}
    licence = metadata.get("licence")
    sections = {
        "Data": _listed(data),
        "Settings": _listed(settings),
        "Scores": [", ".join(_listed(score)) for score in scores],
        "Licence": [code(licence) if licence else _NO_LICENCE],
    }
    size = f"{model.num_topics} topics over {model.num_words} words"
    parts = [f"# Topic model {code(model.name)}", f"{size}, saved by torch_lntm {__version__}."]
    for title, lines in sections.items():
        if lines:
            parts += [f"## {title}", "\n".join(f"* {line}" for line in lines)]
    table = "\n".join(
        map(_printable, str(model.topic_table(metadata.get("topic_shares"))).split("\n"))
    )
    parts += ["## Topics", textwrap.indent(table, "    ")]
    load = 'run = lntm.load_run("FOLDER")\nmodel = run.model'
    return "\n\n".join(parts) + _LOADING.format(
        load if metadata else 'model = lntm.load_model("FOLDER")'
    )


def signed(card: str) -> bytes:
    """A card as file content, signed so that later edits can be detected."""
    return (card + _MARK.format(hashlib.sha256(card.encode()).hexdigest())).encode()


def is_unedited(data: bytes) -> bool:
    """Whether a card is as :func:`signed` made it, for whatever names and scores."""
    text = data.decode(errors="replace")
    return signed(text.rpartition(_MARK[:9])[0]) == data


def settings_of(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a fit by name, how it ended, and the versions of libraries."""
    settings = {name: x for name, x in config.items() if name not in _OMITTED and x is not None}
    if not settings.get("test_fraction"):  # no documents were held out
        settings.pop("test_fraction", None)
    settings |= {name: metadata[name] for name in ("seed", "date", "seconds") if name in metadata}
    if "stop_reason" in metadata:
        settings["ended"] = ENDS.get(str(metadata["stop_reason"]), metadata["stop_reason"])
    versions = metadata.get("versions") or {}
    return settings | {f"version of {name}": value for name, value in versions.items()}


def code(value: object) -> str:
    """A value as a Markdown code span. Markdown and HTML in the value stay inert.

    Control characters, line breaks and the ends of code spans become spaces and quotes. Long values
    are cut, and floating-point numbers are rounded.
    """
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    text = f"{value:.6g}" if isinstance(value, float) else text.replace("`", "'")
    text = _printable(text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + "…")
    return f"`{text}`" if text.strip() else "(empty)"


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _listed(facts: Mapping[str, Any]) -> list[str]:
    """Facts that are known, each with its name."""
    return [f"{code(name)}: {code(x)}" for name, x in facts.items() if x not in (None, "")]
