"""Measures how fast Dask passes arrays, without and with poolbridge: ``python benchmarks/dask_workers.py``.

A task on one worker makes an array; a task on the other worker reads the array's first and last element. The measured
time is the time of the second task, from ``submit`` to the result. This time includes the work of Dask's scheduler and
the transfer of the array.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import distributed
import numpy as np

from poolbridge.dask._plugin import PoolbridgePlugin, empty, stats


def measure(
    client: distributed.Client, sender: str, receiver: str, nbytes: int, *, times: int
) -> tuple[list[float], list[float]]:
    """Send arrays from one worker to another, one at a time: alternately by Dask alone and by poolbridge.

    Parameters
    ----------
    client
        Dask's client.
    sender, receiver
        Addresses of the workers.
    nbytes
        Bytes of each array.
    times
        Number of arrays for each of the two ways.

    Returns
    -------
    tuple of list of float
        The seconds for each array by Dask alone, and the seconds for each array by poolbridge.

    Raises
    ------
    AssertionError
        The receiver has read other values than the sender wrote.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * times):
        pooled = bool(number % 2)
        made = client.submit(_make, nbytes, number, pooled, workers=[sender], pure=False)
        distributed.wait(made)  # type: ignore[no-untyped-call]
        begin = time.perf_counter()
        ends = client.submit(_ends, made, workers=[receiver], pure=False).result()
        seconds[pooled].append(time.perf_counter() - begin)
        if ends != [number % 256] * 2:
            raise AssertionError(f"array {number} has the ends {ends}")
    return seconds


def _make(nbytes: int, number: int, pooled: bool) -> np.ndarray[Any, Any]:
    made = empty(nbytes, "uint8") if pooled else np.empty(nbytes, "uint8")
    made[...] = number % 256
    return made


def _ends(array: np.ndarray[Any, Any]) -> list[int]:
    return [int(array[0]), int(array[-1])]


@contextmanager
def cluster(max_bytes: int) -> Iterator[tuple[distributed.Client, str, str]]:
    """Start two workers with a pool. Yield Dask's client and the addresses of the workers.

    Parameters
    ----------
    max_bytes
        The limit of the pool, in bytes.
    """
    start: Any = distributed.Client
    with start(n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=":0") as client:
        client.register_plugin(PoolbridgePlugin("dask-bench", max_bytes=max_bytes, start=True))
        sender, receiver = client.nthreads()
        yield client, sender, receiver


def main() -> None:
    """Measure both ways, Dask alone and poolbridge, for each size of arrays, and print the medians."""
    parser = argparse.ArgumentParser(prog="python benchmarks/dask_workers.py", description=__doc__)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 64], help="sizes of the arrays in MiB (1 and 64)")
    parser.add_argument("--times", type=int, default=30, help="how many arrays of each size go each way (30)")
    asked = parser.parse_args()
    if min(asked.times, *asked.mib) < 1:
        parser.error("--mib and --times must be 1 or more")
    with cluster(8 * max(asked.mib) << 20) as (client, sender, receiver):
        for nbytes in (mib << 20 for mib in asked.mib):
            measure(client, sender, receiver, nbytes, times=3)  # map memory and make connections before the measurement
            ways = measure(client, sender, receiver, nbytes, times=asked.times)
            for way, seconds in zip(("Dask alone", "poolbridge"), ways, strict=True):
                sys.stdout.write(
                    f"{nbytes >> 20} MiB, {way}: median {statistics.median(seconds) * 1e3:.1f} ms, "
                    f"from {min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f} ms\n"
                )
            sys.stdout.flush()
        sys.stdout.write(f"{stats(client)[receiver]}\n")


if __name__ == "__main__":
    main()
