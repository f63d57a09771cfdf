"""Loops that were compiled beforehand: what ``NUMBA_CACHE_DIR`` holds is read, and never written.

numba keeps compiled code only where it may also write. An image's file system is read-only, so without this
each start would compile everything anew. numba takes such code only for the processor it was compiled for:
an image sets ``NUMBA_CPU_NAME``, when it is built and when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.core.caching


class BakedCacheLocator(numba.core.caching.UserProvidedCacheLocator):
    """``NUMBA_CACHE_DIR``, whether or not it can be written to."""

    def ensure_cache_path(self) -> None:
        """Nothing to make sure of."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiler(function: _Function) -> _Function:
    """``function``, compiled beforehand; what wasn't is compiled when it is called, and not kept."""
    settings: Any = numba.config
    settings.CACHE_LOCATOR_CLASSES = f"{__name__}.{BakedCacheLocator.__name__}"
    found: Any = numba.njit(nogil=True, cache=True)(function)
    found._cache.save_overload = _keep_nothing
    return cast("_Function", found)


def _keep_nothing(_signature: object, _compiled: object) -> None:
    pass
