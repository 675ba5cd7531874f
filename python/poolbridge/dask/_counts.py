"""Counts of the ways that a worker's arrays took to other processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from poolbridge._sys.log import LOG

ZERO_COPY: Final = "zero-copy"
COPIED: Final = "copied on the node"
MOVED: Final = "moved by Dask"


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """Counts of one worker, since its plugin was set up. `counts` returns them.

    Attributes
    ----------
    zero_copy, zero_copy_bytes
        Arrays that this worker sent as a description of their buffer, and bytes of their elements.
    copied, copied_bytes
        Arrays that this worker first copied into its pool, because of ``copy_from``, and then sent in the same way. An
        array that is sent again is not copied again, and counts as zero-copy.
    moved, moved_bytes
        Arrays whose bytes Dask moved.
    received, received_bytes
        Arrays of other workers that this worker got in place.
    failed
        Descriptions whose buffer this worker could not lease. Dask then fetched the data once more.
    reasons
        Number of arrays by way and reason, such as ``{"moved by Dask: not in a lease": 3}``.
    """

    zero_copy: int = 0
    zero_copy_bytes: int = 0
    copied: int = 0
    copied_bytes: int = 0
    moved: int = 0
    moved_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    failed: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


class Counts:
    """Counts the ways of one worker's arrays, and logs each way and reason when it comes up first. Thread-safe.

    Parameters
    ----------
    announce
        Called with the sentence that is logged, for Dask's own log of events.
    """

    def __init__(self, announce: Callable[[str], object]) -> None:
        self._announce = announce
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._reasons: dict[str, int] = {}

    def sent(self, way: str, reason: str, nbytes: int, detail: object = "", *, expected: bool) -> None:
        """Count an array that goes to another process. What is not `expected` is logged as a warning."""
        key = {ZERO_COPY: "zero_copy", COPIED: "copied", MOVED: "moved"}[way]
        self._count(key, f"{way}: {reason}", nbytes, detail, logging.INFO if expected else logging.WARNING)

    def received(self, nbytes: int) -> None:
        """Count an array that came in place."""
        self._count("received", "received in place", nbytes, "", logging.INFO)

    def failed(self, error: BaseException) -> None:
        """Count a description whose buffer could not be leased."""
        self._count("failed", f"not received in place: {type(error).__name__}", 0, error, logging.WARNING)

    def degraded(self, reason: str, detail: object) -> None:
        """Count something that was made in ordinary memory, because the program allows that."""
        self._count("", f"not in the pool: {reason}", 0, detail, logging.WARNING)

    def _count(self, key: str, reason: str, nbytes: int, detail: object, level: int) -> None:
        with self._lock:
            if key:
                self._numbers[key] = self._numbers.get(key, 0) + 1
            if nbytes:
                self._numbers[f"{key}_bytes"] = self._numbers.get(f"{key}_bytes", 0) + nbytes
            first = reason not in self._reasons
            self._reasons[reason] = self._reasons.get(reason, 0) + 1
        if first:
            text = f"arrays of this Dask worker: {reason}" + (f" ({detail})" if str(detail) else "")
            LOG.log(level, "%s; counted from now on, and not logged again", text)
            self._announce(text)

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as plain data: the fields of `WorkerCounts`."""
        with self._lock:
            return {**self._numbers, "reasons": dict(self._reasons)}
