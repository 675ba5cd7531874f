"""Counts the arrays that a worker sent and received, and the reasons why some arrays were copied."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from poolbridge._sys.log import LOG

Path = Literal["sent_in_place", "sent_copied", "sent_by_dask", "received_in_place", "received_by_dask", "failed"]


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


@dataclass(frozen=True, slots=True)
class Stats:
    """How many arrays one worker sent and received, and in which way, since Dask set up the worker's plugin.

    `stats` returns a `Stats` for each worker. An array goes in place if the receiver uses the sender's memory, without
    a copy.

    Attributes
    ----------
    sent_in_place
        Arrays that were already in a lease, and were not copied.
    sent_copied
        Arrays that were copied once, into the pool, because of the option ``copy_from``. An array that is sent again is
        not copied again, and counts as sent in place.
    sent_by_dask
        Arrays whose bytes Dask carried.
    received_in_place
        Arrays that use the sender's memory.
    received_by_dask
        Arrays whose bytes Dask carried from workers with the plugin.
    failed
        Arrays in buffers that other workers described and that this worker could not lease. Dask then fetched the
        bytes.
    reasons
        The number of arrays for each reason why arrays did not go in place.
    """

    sent_in_place: Count = Count()
    sent_copied: Count = Count()
    sent_by_dask: Count = Count()
    received_in_place: Count = Count()
    received_by_dask: Count = Count()
    failed: Count = Count()
    reasons: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_snapshot(cls, snapshot: dict[str, Any]) -> Stats:
        """Make a `Stats` from `snapshot`, which `Counts.snapshot` returned in a worker."""
        of = {path: Count(**count) for path, count in snapshot.items() if path != "reasons"}
        return cls(**of, reasons=dict(snapshot["reasons"]))


class Counts:
    """The counts of one worker, and the reasons why arrays did not go in place. Thread-safe.

    Parameters
    ----------
    announce
        `Counts` calls this function with a text for each new reason. The function writes the text to Dask's log of
        events.
    """

    def __init__(self, announce: Callable[[str], object]) -> None:
        self._announce = announce
        self._lock = threading.Lock()
        self._arrays: Counter[Path] = Counter()
        self._nbytes: Counter[Path] = Counter()
        self._reasons: Counter[str] = Counter()

    def add(self, path: Path, nbytes: int, reason: str = "", detail: object = "", *, loud: bool = False) -> None:
        """Count one array that went by `path`, and log it: at INFO or WARNING if `reason` is new, else at DEBUG."""
        with self._lock:
            self._arrays[path] += 1
            self._nbytes[path] += nbytes
        self._say(f"array {path.replace('_', ' ')}, {nbytes} bytes", reason, detail, loud=loud)

    def degraded(self, reason: str, detail: object = "") -> None:
        """Count the reason why poolbridge could not make an array in the pool and made it in ordinary memory."""
        self._say("made in ordinary memory", f"not in the pool: {reason}", detail, loud=True)

    def _say(self, what: str, reason: str, detail: object, *, loud: bool) -> None:
        with self._lock:
            new = bool(reason) and reason not in self._reasons
            if reason:
                self._reasons[reason] += 1
        text = what + (f": {reason}" if reason else "") + (f" ({detail})" if str(detail) else "")
        LOG.log(logging.DEBUG if not new else logging.WARNING if loud else logging.INFO, "dask: %s", text)
        if new:
            self._announce(text)

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as plain data, from which `Stats.from_snapshot` makes a `Stats`."""
        with self._lock:
            of: dict[str, Any] = {
                path: {"arrays": count, "nbytes": self._nbytes[path]} for path, count in self._arrays.items()
            }
            return of | {"reasons": dict(self._reasons)}
