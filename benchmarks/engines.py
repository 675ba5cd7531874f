"""Measures arrays from actor to actor of Ray and from worker to worker of Dask, with poolbridge and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sample import Result, summarize

from poolbridge.errors import UnavailableError

SIZES = (1 << 20, 64 << 20)
_OURS = "poolbridge"
_A_SECOND = 30  # approximate number of large arrays that each way carries in a second
_Seconds = tuple[list[float], list[float]]


def measure_engines(skip: Callable[[str, str, str], None], sizes: Sequence[int], *, seconds: float) -> Iterator[Result]:
    """Measure transfers on one node, from the call that makes an array to the result of the call that reads the array.

    For Dask, the time does not include the call that makes the array. Each engine sends arrays in two ways, with
    poolbridge and without, and this function measures the two ways alternately.

    Parameters
    ----------
    skip
        Called with the kind of memory, the engine and the reason if an engine cannot run.
    sizes
        Bytes of the arrays.
    seconds
        The approximate time of one measurement.
    """
    count = max(2, round(seconds * _A_SECOND))
    for engine, alone, run in (("Ray", "Ray's object store", _ray), ("Dask", "Dask alone", _dask)):
        try:
            for nbytes, ways in run(sizes, count):
                for system, each in zip((alone, _OURS), ways, strict=True):
                    samples = [round(one * 1e9) for one in each]
                    workload = f"engines/{engine.lower()}"
                    yield summarize(workload, "host", nbytes, system, samples=samples, elapsed_ns=sum(samples))
        except (ImportError, UnavailableError) as error:
            skip("host", engine, str(error))


def _ray(sizes: Sequence[int], count: int) -> Iterator[tuple[int, _Seconds]]:
    import ray_actors

    with ray_actors.cluster("near") as (ray, transport):
        for nbytes in sizes:
            yield nbytes, ray_actors.compare(ray, transport, nbytes, count)


def _dask(sizes: Sequence[int], count: int) -> Iterator[tuple[int, _Seconds]]:
    import dask_workers

    with dask_workers.cluster(8 * max(sizes)) as (client, sender, receiver):
        for nbytes in sizes:
            dask_workers.measure(client, sender, receiver, nbytes, times=3)  # map memory and make connections
            yield nbytes, dask_workers.measure(client, sender, receiver, nbytes, times=count)
