"""Counts the arrays that this process sent and received, and the reasons why some arrays were copied."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

from poolbridge._sys.log import LOG

Path = Literal[
    "sent_in_place",
    "sent_copied",
    "sent_by_ray",
    "received_in_place",
    "received_by_nixl",
    "received_moved",
    "received_by_ray",
]


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
    """How many arrays this process sent and received since it started, and in which way; the result of `stats`.

    An array goes in place if the receiver uses the sender's memory, without a copy.

    Attributes
    ----------
    sent_in_place
        Arrays that were already in a lease, and were not copied.
    sent_copied
        Arrays that were copied once, into the pool.
    sent_by_ray
        Arrays that could not be shared, and went through Ray's object store because of ``fallback=True``.
    received_in_place
        Arrays that use the sender's memory.
    received_by_nixl
        Arrays that NIXL has copied from the sender's node into the pool of this node.
    received_moved
        Arrays that a mover, an actor on the sender's node, read, and that Ray's object store carried to this process.
    received_by_ray
        Arrays that the sender had put into Ray's object store.
    reasons
        The number of arrays for each reason why arrays did not go in place.
    """

    sent_in_place: Count = Count()
    sent_copied: Count = Count()
    sent_by_ray: Count = Count()
    received_in_place: Count = Count()
    received_by_nixl: Count = Count()
    received_moved: Count = Count()
    received_by_ray: Count = Count()
    reasons: dict[str, int] = field(default_factory=dict)


_WARNED: Final = ("sent_by_ray", "received_by_ray")


class Counts:
    """The counts of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrays: Counter[Path] = Counter()
        self._nbytes: Counter[Path] = Counter()
        self._reasons: Counter[str] = Counter()

    def add(self, path: Path, nbytes: int, what: object, reason: str = "", *, loud: bool = False) -> None:
        """Count one array that went by `path`, and log it: at INFO or WARNING if `reason` is new, else at DEBUG."""
        with self._lock:
            self._arrays[path] += 1
            self._nbytes[path] += nbytes
            new = bool(reason) and not self._reasons[reason]
            if reason:
                self._reasons[reason] += 1
        level = logging.DEBUG if not new else logging.WARNING if loud or path in _WARNED else logging.INFO
        LOG.log(level, "ray: %s %s, %d bytes%s", what, path.replace("_", " "), nbytes, f": {reason}" if reason else "")

    def read(self) -> Stats:
        """Return the present counts."""
        with self._lock:
            of = {path: Count(count, self._nbytes[path]) for path, count in self._arrays.items()}
            return Stats(**of, reasons=dict(self._reasons))


COUNTS: Final = Counts()


def stats() -> Stats:
    """Return how many arrays this process sent and received since it started, and in which way.

    Each actor is a process of its own, so it has its own counts.

    Returns
    -------
    Stats
        The present counts.
    """
    return COUNTS.read()
