"""Further sections of a report page: a title, and a function that returns the contents."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, refuse_other_owner
from torch_lntm.inference import ThetaDraws
from torch_lntm.models import TopicModel
from torch_lntm.models.topic_table import TopicSummary
from torch_lntm.reports.prevalence import CorpusSummary
from torch_lntm.reports.scores import Score

_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, eq=False)
class PageData:
    """Contents of a report page, given to the functions of further sections.

    Attributes:
        model: The fitted model.
        corpus: The documents of the page: a random sample of a large corpus.
        draws: Draws of the documents' topic proportions.
        summary: Posterior means of the documents, shares of the topics, and prevalence by column.
        topics: The topics, the largest first.
        names: Name of each topic, by its number. A topic without a name has its first words.
        scores: The scores of the page.
        settings: The settings of the fit, by name.
        level: Probability of every interval on the page.
    """

    model: TopicModel
    corpus: Corpus
    draws: ThetaDraws
    summary: CorpusSummary
    topics: Sequence[TopicSummary]
    names: Sequence[str]
    scores: Sequence[Score]
    settings: Mapping[str, Any]
    level: float


@dataclass(frozen=True)
class Table:
    """A table in a section of the report. All cells are text or numbers, and are escaped.

    Attributes:
        header: Title of each column.
        rows: A cell for each column. Numbers are rounded to 4 digits; None is an empty cell.
        caption: A sentence under the table.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""

    @property
    def cells(self) -> list[list[tuple[str, bool]]]:
        """Text of each cell, and whether it is a number."""
        return [[_cell(value) for value in row] for row in self.rows]


@dataclass(frozen=True)
class Picture:
    """A picture in a section of the report. The page embeds the picture and runs no script in it.

    Attributes:
        image: A Matplotlib figure, or the bytes of a PNG or SVG file.
        description: The picture in words, for screen readers.
        caption: A sentence under the picture.
    """

    image: Any
    description: str
    caption: str = ""

    @property
    def address(self) -> str:
        """The picture as a data address.

        Raises:
            ConfigError: The image is of another type or format.
        """
        image = self.image
        if hasattr(image, "savefig"):
            import matplotlib

            file = io.BytesIO()
            # Equal figures give equal pages, and words stay text.
            with matplotlib.rc_context({"svg.hashsalt": "torch_lntm", "svg.fonttype": "none"}):
                image.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
            image = file.getvalue()
        if not isinstance(image, bytes) or not (image.startswith(_PNG) or b"<svg" in image[:2000]):
            raise ConfigError(
                f"the picture {self.description!r:.60} is {image!r:.20}; expected a Matplotlib "
                "figure, or the bytes of a PNG or SVG file"
            )
        kind = "png" if image.startswith(_PNG) else "svg+xml"
        return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


#: Contents of a section: a paragraph of plain text, a table, or a picture.
Block = str | Table | Picture


class Section(NamedTuple):
    """A further section of the report page.

    Attributes:
        title: Title of the section.
        contents: Function of the :class:`PageData`. It returns a paragraph, a :class:`Table`, a
            :class:`Picture`, or a list of them. Every text is escaped: the page shows HTML tags as
            text.

    Example:
        >>> def longest(page):
        ...     return f"The longest document has {page.corpus.lengths.max()} words."
        >>> section = lntm.reports.Section("Longest document", longest)
        >>> lntm.report(result, train, "page.html", sections=[section]).name
        'page.html'
    """

    title: str
    contents: Callable[[PageData], Block | Iterable[Block]]


#: The sections of every page, by title.
_REGISTERED: dict[str, Section] = {}


def register_section(title: str, contents: Any = None) -> Any:
    """Add a section to every report page, including pages of ``torch-lntm report --plugin``.

    Args:
        title: Title of the section.
        contents: Function of the page's data; see :class:`Section`. ``register_section`` is a
            decorator if the function is left out.

    Returns:
        The function.

    Raises:
        ConfigError: The title is empty, of another type or belongs to another function, or the
            contents cannot be called.
    """
    if contents is None:
        return lambda function: register_section(title, function)
    section = check_section((title, contents))
    owner = _REGISTERED[title].contents if title in _REGISTERED else None
    refuse_other_owner("section title", title, owner, contents)
    _REGISTERED[title] = section
    return contents


def check_section(section: Any) -> Section:
    """The section of a pair of a title and a function.

    Raises:
        ConfigError: The section is of another type.
    """
    if isinstance(section, tuple) and len(section) == 2:
        title, contents = section
        if isinstance(title, str) and title.strip() and callable(contents):
            return Section(title, contents)
    raise ConfigError(
        f"section {section!r:.80}; expected a title and a function, "
        "lntm.reports.Section(title, function)"
    )


def render_sections(
    sections: Iterable[Section | tuple[str, Any]], page: PageData
) -> list[tuple[str, list[Block]]]:
    """Title and contents of the registered sections and of further ones.

    Args:
        sections: Sections of this page alone.
        page: The page's data.

    Raises:
        ConfigError: A section is of another type, or its function returns a value of another type.
    """
    chosen = [*_REGISTERED.values(), *map(check_section, sections)]
    return [(title, _blocks(title, contents(page))) for title, contents in chosen]


def _blocks(title: str, contents: Any) -> list[Block]:
    """The blocks of a section."""
    single = isinstance(contents, Block) or not isinstance(contents, Iterable)
    blocks = [contents] if single else [*contents]
    wrong = next((block for block in blocks if not isinstance(block, Block)), None)
    if wrong is not None:
        raise ConfigError(
            f"the section {title!r:.60} returned {type(wrong).__name__}; expected text, a "
            "lntm.reports.Table or a lntm.reports.Picture, or a list of them"
        )
    return blocks


def _cell(value: Any) -> tuple[str, bool]:
    """A value as a table shows it, and whether it is a number."""
    value = value.item() if getattr(value, "ndim", None) == 0 else value  # of torch and numpy
    if isinstance(value, bool) or not isinstance(value, Real):
        return "" if value is None else str(value), False
    if isinstance(value, Integral):
        return f"{value:,}", True
    return (f"{value:.4g}" if math.isfinite(value) else "–"), True
