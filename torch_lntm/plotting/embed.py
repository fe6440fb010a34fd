"""Figures as SVG for a web page: text stays text, and equal figures give equal bytes."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from torch_lntm.plotting import style
from torch_lntm.plotting.lines import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Matplotlib's settings, and the metadata that it leaves out.
_SETTINGS: dict[str, Any] = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

#: Colours of figures that are the page's own, which differ in light and dark themes.
_THEMED = {
    **{colour: f"var(--g{i})" for i, colour in enumerate(COLOURS[:6])},
    style.NEGATIVE: "var(--g0)",
    style.POSITIVE: "var(--g1)",
    style.NEUTRAL: "var(--quiet)",
    style.GRID: "var(--rule)",
    "#ffffff": "var(--paper)",
    "#000000": "var(--ink)",
}


def to_svg(figure: Figure, name: str, title: str, description: str = "") -> str:
    """A figure as an SVG element.

    Args:
        figure: The figure.
        name: Name of the picture, which differs from those of the page's other pictures.
        title: What the picture is, for screen readers.
        description: What it shows, for screen readers.
    """
    import matplotlib

    file = io.BytesIO()
    settings: Any = _SETTINGS | {"svg.hashsalt": name}
    with matplotlib.rc_context(settings):
        figure.savefig(file, format="svg", metadata=_NO_METADATA)
    root = ElementTree.fromstring(file.getvalue())
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]  # in a page, names have no namespace
        found = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if element.tag == "g":
            found.pop("id", None)
        found.pop("target", None)  # a link opens here
        element.attrib = {key: _shortened(value) for key, value in found.items()}
        element.tail = None
        if element.tag == "style" or not (element.text or "").strip():
            element.text = None  # a style would apply to the whole page
    _add(root, "desc", description).set("id", f"{name}-description")
    _add(root, "title", title).set("id", f"{name}-picture")
    labels = f"{name}-picture {name}-description"
    root.attrib |= {"class": "picture", "role": "group", "aria-labelledby": labels}
    return ElementTree.tostring(root, encoding="unicode")


def _add(parent: ElementTree.Element, tag: str, text: str) -> ElementTree.Element:
    element = ElementTree.Element(tag)
    element.text = text
    parent.insert(0, element)
    return element


def _shortened(value: str) -> str:
    """An attribute with coordinates of one decimal, without the font, in the page's colours."""
    value = re.sub(r"\d+\.\d\d+", lambda found: f"{float(found[0]):.1f}", value)
    value = re.sub(r"#[0-9a-f]{6}\b", lambda found: _THEMED.get(found[0], found[0]), value)
    return re.sub(r"font-family: [^;]*;|\s*\n", " ", value).strip()
