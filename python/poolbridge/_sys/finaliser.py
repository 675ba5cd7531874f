"""Makes finalisers that do nothing, and so raise no errors, while the interpreter ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

_T = TypeVar("_T")


def while_running(finalise: Callable[[_T], None]) -> Callable[[_T], None]:
    """Make a ``__del__`` that does nothing while the interpreter ends.

    While the interpreter ends, Python may have set the global names of modules to None, even the name `sys`. So the
    returned function uses no global name.
    """
    ending = sys.is_finalizing

    @wraps(finalise)
    def finalise_while_running(self: _T) -> None:
        if not ending():
            finalise(self)

    return finalise_while_running
