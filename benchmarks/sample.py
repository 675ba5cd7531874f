"""Summaries of series of measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

# With fewer than `_ENOUGH_FOR_P999` measurements, the 99.9th percentile means nothing.
_ENOUGH_FOR_P999 = 1000


def percentile(ordered: Sequence[int], share: float) -> int:
    """Return the least m in `ordered` such that at least a fraction `share` of `ordered` is <= m.

    `ordered` is sorted and not empty.
    """
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table that a benchmark prints. The fields are the keys of ``poolsvc bench --json``.

    Attributes
    ----------
    workload, kind, bytes, system
        What was measured: the workload, the kind of memory, the bytes of an array, and the system that sent the array.
    p50_us, p99_us, p999_us
        Percentiles in microseconds; None if there are not enough measurements.
    per_second
        Arrays per second. Except for Ray and Dask, the time between two arrays counts, too.
    samples
        The number of measurements.
    cpu_us
        For a stream: microseconds of CPU time for each frame, in all processes together; None: not measured.
    service_share
        For a stream: the share of one CPU that the service used; None: there is no service, or it was not measured.
    rounds, p50_us_range, per_second_range
        The number of rounds, and the least and the greatest value of `p50_us` and of `per_second` in a round; None:
        there was one round. With several rounds the other figures are medians.
    """

    workload: str
    kind: str
    bytes: int
    system: str
    p50_us: float | None
    p99_us: float | None
    p999_us: float | None
    per_second: float
    samples: int
    cpu_us: float | None = None
    service_share: float | None = None
    rounds: int | None = None
    p50_us_range: tuple[float, float] | None = None
    per_second_range: tuple[float, float] | None = None

    def with_cpu(self, cpu_us: float, service_share: float | None) -> Result:
        """Return a copy with the CPU time."""
        return replace(self, cpu_us=cpu_us, service_share=service_share)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        for name in ("p999_us", "cpu_us", "service_share", "rounds", "p50_us_range", "per_second_range"):
            if fields[name] is None:
                del fields[name]
        return fields


def summarize(
    workload: str, kind: str, nbytes: int, system: str, *, samples: Sequence[int], elapsed_ns: int, count: int = 0
) -> Result:
    """Summarize measurements in nanoseconds.

    Parameters
    ----------
    workload, kind, nbytes, system
        See `Result`.
    samples
        The measurements.
    elapsed_ns
        The total time in nanoseconds.
    count
        The number of arrays sent in `elapsed_ns`; 0: as many arrays as there are measurements.
    """
    ordered = sorted(samples)
    at = {share: percentile(ordered, share) / 1e3 if ordered else None for share in (0.5, 0.99, 0.999)}
    return Result(
        workload,
        kind,
        nbytes,
        system,
        at[0.5],
        at[0.99],
        at[0.999] if len(ordered) >= _ENOUGH_FOR_P999 else None,
        (count or len(ordered)) * 1e9 / elapsed_ns if elapsed_ns else 0.0,
        count or len(ordered),
    )
