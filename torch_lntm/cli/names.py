"""``torch-lntm names``: the names of a run's topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch_lntm as lntm
from torch_lntm.cli.documents import Command
from torch_lntm.cli.mappings import mapping_option
from torch_lntm.models.names import is_named


@dataclass(kw_only=True)
class Names(Command):
    """Set and print the names of a run's topics.

    All commands show names in place of numbers, and accept names. Names never change a number.

    Attributes:
        run_folder: The run's folder.
        set: Names to set, by the topic's number or present name, such as "3=economy; 7=trade"; or a
            file that ends in .json or .yaml with names by topic. Other names stay. An empty name
            removes a name.
        clear: Remove all names first.
        num_words: Number of top words to print for each topic.
        format: Output format.
    """

    positionals = ("run_folder",)

    run_folder: str | None = None
    set: dict | str | None = None  # type: ignore[type-arg]
    clear: bool = False
    num_words: int = 10
    format: Literal["text", "json", "csv"] = "text"

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        folder = str(self.run_folder)
        if self.set is not None or self.clear:
            model = lntm.load_run(folder).model
            lntm.io.write_topic_names(folder, self._names(model))
        table = lntm.load_run(folder).topic_table(num_words=self.num_words)
        print(lntm.reports.format_topics(table, self.format))
        return 0

    def _names(self, model: Any) -> dict[int, str]:
        """Names of the topics by number, after the changes of the options."""
        old = model.topic_names
        names = {} if self.clear else {k: old[k] for k in range(len(old)) if is_named(old, k)}
        for key, name in mapping_option("set", self.set or {}).items():
            (topic,) = lntm.models.find_topics(old, [key], "set")
            if name in (None, ""):
                names.pop(topic, None)
            else:
                names[topic] = name
        return names
