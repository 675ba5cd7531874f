"""Measures links: ways to send single arrays, and streams of arrays, between processes without poolbridge."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnContext
from typing import Any, Final

from link import Link
from link_cuda import CudaCoreDescriptorLink, CudaCoreLink, CudaCoreOnceLink
from link_devshm import DeviceSharedMemoryLink, PageLockedSharedMemoryLink
from link_queue import QueueLink
from link_shm import NewSharedMemoryLink, SharedMemoryLink
from link_socket import SocketLink
from link_torch import TorchDeviceLink, TorchFileLink, TorchLink
from sample import Result, summarize

LINKS: Final[tuple[type[Link], ...]] = (
    QueueLink,
    SharedMemoryLink,
    NewSharedMemoryLink,
    SocketLink,
    TorchLink,
    TorchFileLink,
    CudaCoreLink,
    CudaCoreDescriptorLink,
    CudaCoreOnceLink,
    TorchDeviceLink,
    DeviceSharedMemoryLink,
    PageLockedSharedMemoryLink,
)

MOST_COPIED: Final = 64 << 20
"""The size in bytes of the largest array for links that copy. For larger arrays, only the other links are measured."""

_WARM_UP = 30
_MOST = 5_000
_LEAST = 5
_STREAM_BYTES: Final = 64 << 10
_ACK = b"\1"


def consume(link: Link, answers: socket.socket, warm_up: int | None) -> None:
    """Run as the consumer: acknowledge that the link is open, check every array's number, and acknowledge every array.

    For single transfers, `warm_up` is None. For a stream, `warm_up` is the number of arrays in the warm-up: then the
    consumer acknowledges only that the link is open, the end of the warm-up, and the end of the stream.
    """
    link.open_to_receive()
    answers.sendall(_ACK)
    expected = 0
    while (item := link.receive()) is not None:
        number = item[0]
        if number != expected:
            raise AssertionError(f"array {number} came where {expected} was expected")
        expected += 1
        if warm_up is None or expected == warm_up:
            answers.sendall(_ACK)
        del item
        link.received()
    if warm_up is not None:
        answers.sendall(_ACK)
    link.leave()


class Consumer:
    """The spawned consumer process of a link."""

    def __init__(self, context: SpawnContext, link: Link, warm_up: int | None = None) -> None:
        self._answers, theirs = socket.socketpair()
        self._process = context.Process(target=consume, args=(link, theirs, warm_up), daemon=True)
        self._process.start()
        theirs.close()
        self.wait()

    def wait(self) -> None:
        """Wait for an acknowledgement.

        Raises
        ------
        RuntimeError
            The consumer has ended without an acknowledgement.
        """
        if not self._answers.recv(1):
            self._process.join()
            raise RuntimeError(f"the consumer ended with status {self._process.exitcode}")

    def join(self) -> None:
        """Wait for the end of the process."""
        self._process.join()
        self._answers.close()


def hand_over(context: SpawnContext, kind: type[Link], nbytes: int, seconds: float) -> Result:
    """Measure transfers of single arrays. When the consumer acknowledges an array, the producer sends another array."""
    link = kind(context, nbytes, 1)
    link.open_to_send()
    consumer = Consumer(context, link)
    samples: list[int] = []
    begun = time.perf_counter_ns()
    number = 0
    while number < _WARM_UP + _MOST:
        start = time.perf_counter_ns()
        link.send(number)
        consumer.wait()
        end = time.perf_counter_ns()
        number += 1
        # The warm-up has `_WARM_UP` arrays. With a slow link, the warm-up ends after a quarter of `seconds`, but has
        # at least one array.
        if number <= _WARM_UP and (number < 2 or end - begun < seconds * 1e9 / 4):
            first = time.perf_counter_ns()
            continue
        samples.append(end - start)
        if end - first > seconds * 1e9 and len(samples) >= _LEAST:
            break
    elapsed = time.perf_counter_ns() - first
    link.finish()
    consumer.join()
    link.close()
    return summarize("transfer", kind.kind, nbytes, kind.name, samples=samples, elapsed_ns=elapsed)


def stream(context: SpawnContext, kind: type[Link], nbytes: int, depth: int, seconds: float) -> Result:
    """Measure a stream of arrays without pauses, with up to `depth` arrays under way.

    The first ``2 * (depth + 1)`` arrays are the warm-up, which this function does not measure: during the warm-up,
    the consumer loads libraries, starts CUDA and maps memory.
    """
    link = kind(context, nbytes, depth)
    link.open_to_send()
    warm_up = 2 * (depth + 1)
    consumer = Consumer(context, link, warm_up)
    for number in range(warm_up):
        link.send(number)
    consumer.wait()
    number = 0
    begun = time.perf_counter_ns()
    until = begun + int(seconds * 1e9)
    while number < 2 * depth or time.perf_counter_ns() < until:
        link.send(warm_up + number)
        number += 1
    link.finish()
    consumer.wait()
    elapsed = time.perf_counter_ns() - begun
    consumer.join()
    link.close()
    return summarize(
        "stream/go-python/1 consumer", kind.kind, nbytes, kind.name, samples=[], elapsed_ns=elapsed, count=number
    )


def measure(
    kinds: list[str],
    sizes: list[int],
    workloads: list[str],
    skip: Callable[[str, str, str], None],
    *,
    seconds: float,
    depth: int,
) -> Iterator[Result]:
    """Measure every link that can run on this machine.

    Parameters
    ----------
    kinds, sizes, workloads
        The kinds of memory, the sizes of arrays in bytes, and the workloads to measure.
    skip
        Called with the kind of memory, the system that cannot run, and the reason.
    seconds
        The approximate time of each measurement, in seconds.
    depth
        The greatest number of arrays of a stream that may be under way.
    """
    context: Any = multiprocessing.get_context("spawn")
    for link in LINKS:
        if link.kind not in kinds:
            continue
        why = link.missing()
        if why:
            skip(link.kind, link.name, why)
            continue
        streams = "stream" in workloads
        # For a stream, also measure single transfers of arrays of the stream's size, so that the user can compare: if
        # the stream is slower than the single transfers, the measurement of the stream is wrong.
        for nbytes in sorted({*(sizes if "transfer" in workloads else ()), *((_STREAM_BYTES,) if streams else ())}):
            if not (link.copies and nbytes > MOST_COPIED):
                yield hand_over(context, link, nbytes, seconds)
        if streams:
            yield stream(context, link, _STREAM_BYTES, depth, seconds)
