"""Methods of the parts of a model: which class defines them, and how a module runs them."""

from __future__ import annotations

from typing import Any

from torch import nn


def is_up_to_date(part: object, method: str, *related: str) -> bool:
    """Whether a part of a model defines a method at least as recently as related methods.

    A class that overrides its base's mean, say, must not inherit the base's draw of parameters.
    "Recent" means late in the line of subclasses.

    Args:
        part: A prior, topics or words.
        method: Name of the method.
        *related: Names of the related methods.
    """
    classes = type(part).__mro__

    def defined_at(name: str) -> int:
        return next((i for i, cls in enumerate(classes) if name in vars(cls)), len(classes))

    return defined_at(method) < len(classes) and all(
        defined_at(method) <= defined_at(other) for other in related
    )


class Method(nn.Module):
    """A method of a module as a module, for ``functional_call``.

    Args:
        part: The module. Names of its parameters begin with ``part.`` here.
        method: Name of the method.
    """

    def __init__(self, part: nn.Module, method: str) -> None:
        super().__init__()
        self.part, self.method = part, method

    def forward(self, *args: Any) -> Any:
        """Result of the method."""
        return getattr(self.part, self.method)(*args)
