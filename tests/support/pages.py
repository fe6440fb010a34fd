"""HTML pages, read with the standard parser."""

from __future__ import annotations

from html.parser import HTMLParser

#: Elements without a closing tag.
_VOID = {"meta", "link", "input", "br", "img"}


class Page(HTMLParser):
    """Elements and texts of a page. Elements must be closed in order.

    Attributes:
        elements: ``(tag, attributes)`` of every element, in order.
        texts: ``(tags around it, text)`` of every text.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag}: an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((tuple(self._open), " ".join(data.split())))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    def said(self, *within: str) -> list[str]:
        """The texts directly inside elements of these kinds."""
        return [text for tags, text in self.texts if tags and tags[-1] in within]
