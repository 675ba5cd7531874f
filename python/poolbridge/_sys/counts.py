"""Counts the arrays that went in different ways, and the reasons why some arrays were copied; for Ray and Dask."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from poolbridge._sys.log import LOG

_Path = TypeVar("_Path", bound=str)


@dataclass(frozen=True, slots=True)
class Count:
    """The number of arrays, and their bytes.

    Attributes
    ----------
    arrays, nbytes
        The number of arrays, and the bytes of all these arrays.
    """

    arrays: int = 0
    nbytes: int = 0


NONE: Final = Count()


class PathCounts(Generic[_Path]):
    """Counts, by the way that each array went. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrays: Counter[_Path] = Counter()
        self._nbytes: Counter[_Path] = Counter()
        self._reasons: Counter[str] = Counter()

    def count(self, path: _Path, nbytes: int) -> None:
        """Count one array that went by `path`."""
        with self._lock:
            self._arrays[path] += 1
            self._nbytes[path] += nbytes

    def say(self, text: str, reason: str, *, loud: bool) -> bool:
        """Count a reason; log `text` at INFO or WARNING if the reason is new, else DEBUG. Return whether it is new."""
        with self._lock:
            new = bool(reason) and reason not in self._reasons
            if reason:
                self._reasons[reason] += 1
        LOG.log(logging.DEBUG if not new else logging.WARNING if loud else logging.INFO, "%s", text)
        return new

    def read(self) -> tuple[dict[_Path, Count], dict[str, int]]:
        """Return the present counts, and how often each reason occurred."""
        with self._lock:
            of = {path: Count(count, self._nbytes[path]) for path, count in self._arrays.items()}
            return of, dict(self._reasons)
