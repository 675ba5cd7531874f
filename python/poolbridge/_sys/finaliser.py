"""Makes finalisers that do nothing, and so raise no errors, while the interpreter ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from types import MethodType
from typing import Any, TypeVar, cast

from poolbridge._sys.native import NATIVE

_T = TypeVar("_T")


def while_running(finalise: Callable[[_T], None]) -> Callable[[_T], None]:
    """Make a ``__del__`` that does nothing while the interpreter ends.

    While the interpreter ends, Python may have set the global names of modules to None, even the name `sys`. So the
    returned function uses no global name.

    If `finalise` raises an error, the native module calls it again, because a signal handler may have ended it
    halfway, or before its first step. So no step of Python code comes between CPython and this second call.
    """
    ending = sys.is_finalizing

    if NATIVE is not None:
        bind: Any = property(partial(MethodType, partial(NATIVE.call_again, ending, finalise)))
        return cast("Callable[[_T], None]", bind)

    @wraps(finalise)
    def finalise_while_running(self: _T) -> None:
        if not ending():
            finalise(self)

    return finalise_while_running
