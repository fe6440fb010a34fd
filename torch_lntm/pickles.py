"""Pickles with the version of the library."""

from __future__ import annotations

from typing import Any

from torch_lntm import __version__
from torch_lntm.errors import ConfigError

_VERSION_KEY = "_pickled_by"


class VersionedPickle:
    """Base class of objects whose pickles only load in the same version of the library.

    A pickle holds an object's internals, and their layout changes between versions. Loading checks
    the version before it reads the rest of the pickle. Put this class first among the base classes.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Instructions for ``pickle`` and ``copy`` to rebuild the object."""
        return _empty_object, (type(self), __version__), self.__getstate__()

    def __setstate__(self, state: Any) -> None:
        """Restore the content of a pickle.

        Raises:
            ConfigError: The pickle holds no version, because an early version made it.
        """
        if self.__dict__.pop(_VERSION_KEY, None) is None:
            raise _version_error(type(self), "before its pickles named a version")
        super().__setstate__(state)  # type: ignore[misc]


def _empty_object(kind: type[Any], version: str) -> Any:
    """Object without content, for a pickle of this version.

    Raises:
        ConfigError: The pickle comes from a different version.
    """
    if version != __version__:
        raise _version_error(kind, version)
    instance = object.__new__(kind)
    instance.__dict__[_VERSION_KEY] = version
    return instance


def _version_error(kind: type, version: str) -> ConfigError:
    return ConfigError(
        f"this {kind.__name__} was pickled by torch_lntm {version}, and this is {__version__}; "
        "a pickle loads in the same version only. Fit it again, or load it with the version that "
        "pickled it and save the model by lntm.save_model, which later versions read"
    )
