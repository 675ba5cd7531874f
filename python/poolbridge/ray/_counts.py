"""Counts the arrays that this process sent and received, and the reasons why some arrays were copied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from poolbridge._sys.counts import NONE, Count, PathCounts

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

    sent_in_place: Count = NONE
    sent_copied: Count = NONE
    sent_by_ray: Count = NONE
    received_in_place: Count = NONE
    received_by_nixl: Count = NONE
    received_moved: Count = NONE
    received_by_ray: Count = NONE
    reasons: dict[str, int] = field(default_factory=dict)


_WARNED: Final = ("sent_by_ray", "received_by_ray")


class Counts(PathCounts[Path]):
    """The counts of this process. Thread-safe."""

    def add(self, path: Path, nbytes: int, what: object, reason: str = "", *, loud: bool = False) -> None:
        """Count one array that went by `path`, and log it; see `PathCounts.say`."""
        self.count(path, nbytes)
        why = f": {reason}" if reason else ""
        text = f"ray: {what} {path.replace('_', ' ')}, {nbytes} bytes{why}"
        self.say(text, reason, loud=loud or path in _WARNED)


COUNTS: Final = Counts()


def stats() -> Stats:
    """Return how many arrays this process sent and received since it started, and in which way.

    Each actor is a process of its own, so it has its own counts.

    Returns
    -------
    Stats
        The present counts.
    """
    of, reasons = COUNTS.read()
    return Stats(**of, reasons=reasons)
