"""Pickles that name the version of the library that made them."""

from __future__ import annotations

from typing import Any

from torch_lntm import __version__
from torch_lntm.errors import ConfigError

_MADE_BY = "_pickled_by"


class VersionedPickle:
    """A class whose pickles are read by the version of the library that made them, and no other.

    A pickle holds an object's insides, which other versions lay out in another way. The version is
    read first, before anything else that the pickle holds. Put it before other base classes.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """How ``pickle`` and ``copy`` make the object again."""
        return _make, (type(self), __version__), self.__getstate__()

    def __setstate__(self, state: Any) -> None:
        """Take over a pickle's content.

        Raises:
            ConfigError: The pickle is of a version that did not name itself.
        """
        if self.__dict__.pop(_MADE_BY, None) is None:
            raise _refused(type(self), "before its pickles named a version")
        super().__setstate__(state)  # type: ignore[misc]


def _make(kind: type[Any], version: str) -> Any:
    """An object without content, if the pickle is of this version.

    Raises:
        ConfigError: It is of another version.
    """
    if version != __version__:
        raise _refused(kind, version)
    made = object.__new__(kind)
    made.__dict__[_MADE_BY] = version
    return made


def _refused(kind: type, version: str) -> ConfigError:
    return ConfigError(
        f"this {kind.__name__} was pickled by torch_lntm {version}, and this is {__version__}; "
        "pickles are for one version. Fit it again, or load it with the version that pickled it "
        "and keep the model by lntm.save_model, which later versions read"
    )
