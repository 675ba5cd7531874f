"""Counts the arrays that a worker sent and received, and the reasons why some arrays were copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from poolbridge._sys.counts import NONE, Count, PathCounts

Path = Literal["sent_in_place", "sent_copied", "sent_by_dask", "received_in_place", "received_by_dask", "failed"]


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

    sent_in_place: Count = NONE
    sent_copied: Count = NONE
    sent_by_dask: Count = NONE
    received_in_place: Count = NONE
    received_by_dask: Count = NONE
    failed: Count = NONE
    reasons: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_snapshot(cls, snapshot: dict[str, Any]) -> Stats:
        """Make a `Stats` from `snapshot`, which `Counts.snapshot` returned in a worker."""
        of = {path: Count(**count) for path, count in snapshot.items() if path != "reasons"}
        return cls(**of, reasons=dict(snapshot["reasons"]))


class Counts(PathCounts[Path]):
    """The counts of one worker, and the reasons why arrays did not go in place. Thread-safe.

    Parameters
    ----------
    announce
        `Counts` calls this function with a text for each new reason. The function writes the text to Dask's log of
        events.
    """

    def __init__(self, announce: Callable[[str], object]) -> None:
        super().__init__()
        self._announce = announce

    def add(self, path: Path, nbytes: int, reason: str = "", detail: object = "", *, loud: bool = False) -> None:
        """Count one array that went by `path`, and log it; see `PathCounts.say`."""
        self.count(path, nbytes)
        self._say(f"array {path.replace('_', ' ')}, {nbytes} bytes", reason, detail, loud=loud)

    def degraded(self, reason: str, detail: object = "") -> None:
        """Count the reason why poolbridge could not make an array in the pool and made it in ordinary memory."""
        self._say("made in ordinary memory", f"not in the pool: {reason}", detail, loud=True)

    def _say(self, what: str, reason: str, detail: object, *, loud: bool) -> None:
        text = what + (f": {reason}" if reason else "") + (f" ({detail})" if str(detail) else "")
        if self.say(f"dask: {text}", reason, loud=loud):
            self._announce(text)

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as plain data, from which `Stats.from_snapshot` makes a `Stats`."""
        of, reasons = self.read()
        return {path: asdict(count) for path, count in of.items()} | {"reasons": reasons}
