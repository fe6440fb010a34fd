"""``torch-lntm names``: the names of a run's topics."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch_lntm as lntm
from torch_lntm.cli.command import say, show
from torch_lntm.cli.documents import OnRun
from torch_lntm.cli.mappings import mapping_option
from torch_lntm.errors import ConfigError

NAMING = "reports:name_topics"


@dataclass(kw_only=True)
class Names(OnRun):
    """Set and print the names of a run's topics.

    All commands show names in place of numbers, and accept names. Names never change a number.
    CORPUS matters for --names-by only, and defaults to the corpus of the fit.

    Attributes:
        set: Names to set, by the topic's number or present name, such as "3=economy; 7=trade"; or a
            file that ends in .json or .yaml with names by topic. Other names stay. An empty name
            removes a name.
        clear: Remove all names first.
        names_by: Address of a language model with the usual interface of chat completions, such as
            http://localhost:11434/v1. It names the topics without a name. Words of the topics and
            excerpts of documents are sent to this address, and to no other.
        names_model: Name of the language model at this address.
        key_variable: Environment variable with the key of the server.
        num_docs: Number of documents of each topic to send. 0 sends words only.
        timeout: Maximum number of seconds for an answer.
        num_words: Number of top words to print for each topic.
        print_as: Output format.
    """

    takes: ClassVar[dict[str, str]] = {NAMING: "num_docs language"}

    set: dict | str | None = None  # type: ignore[type-arg]
    clear: bool = False
    names_by: str | None = None
    names_model: str | None = None
    key_variable: str | None = None
    timeout: float = 60.0
    num_words: int = 10
    print_as: Literal["text", "json", "csv"] = "text"

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        folder = str(self.run_folder)
        if self.names_by is None and (self.names_model or self.key_variable):
            raise ConfigError("names_by: not given; name the address of the language model")
        if self.set is not None or self.clear:
            model = lntm.load_run(folder).model
            lntm.io.write_topic_names(folder, self._names(model))
        if self.names_by is not None:
            self._ask(folder, self.names_by)
        table = lntm.load_run(folder).topic_table(num_words=self.num_words)
        show(lntm.frames.render(table, self.print_as))
        return 0

    def _names(self, model: Any) -> dict[int, str]:
        """Names of the topics by number, after the changes of the options."""
        from torch_lntm.models.names import find_topics, is_named

        old = model.topic_names
        names = {} if self.clear else {k: old[k] for k in range(len(old)) if is_named(old, k)}
        for key, name in mapping_option("set", self.set or {}).items():
            (topic,) = find_topics(old, [key], "set")
            if name in (None, ""):
                names.pop(topic, None)
            else:
                names[topic] = name
        return names

    def _ask(self, folder: str, address: str) -> None:
        """Names by a language model."""
        from torch_lntm.reports.chat import ChatServer

        if self.names_model is None:
            raise ConfigError("names_model: not given; name the language model, such as llama3")
        key = None
        if self.key_variable is not None:
            key = os.environ.get(self.key_variable)
            if key is None:
                raise ConfigError(f"key_variable: the environment has no {self.key_variable}")
        ask = ChatServer(address, self.names_model, key, self.timeout)
        run, guide, corpus = self.load(folder)
        texts = self.texts() if self.num_docs else None
        of_documents = "words" if texts is None else "excerpts"
        also = f" and {of_documents} of documents" if self.num_docs else ""
        say(f"sending words of topics{also} to {address}")
        options: dict[str, Any] = {"num_words": self.num_words, "progress": self.shows_progress}
        options |= {"texts": texts, "guide": guide, **self.arguments(NAMING)}
        lntm.name_topics(run.model, corpus, ask, **options)
        lntm.io.write_topic_names(folder, run.model.topic_names, run.model.name_records)
