"""The worker of ``poolsvc bench``: a Python process that takes part in a measurement of this command.

Tasks and answers are those of `_libraries.tasks`. An acknowledgement within a task is one byte on a socket that the
worker inherits.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import poolbridge
from poolbridge._bench.arrays import number_of, preferred_consumer, put_number, stream_of
from poolbridge._libraries import consumers as _consumers
from poolbridge._libraries.tasks import serve

if TYPE_CHECKING:
    from poolbridge._client.client import Client

_ACK = b"\1"
_FAILED = b"\0"
_TIMEOUT = 60.0
_WARM_UP = 100
# In a stream without pauses, a consumer checks the number of only one frame in `_CHECKED` frames.
_CHECKED = 16


class BenchWorker:
    """Carries out tasks.

    Parameters
    ----------
    path
        Path of the service's socket.
    acknowledge
        The socket for acknowledgements.
    """

    def __init__(self, path: str, acknowledge: socket.socket) -> None:
        self._path = path
        self._acknowledge = acknowledge
        self._client: Client | None = None

    @property
    def _connected(self) -> Client:
        if self._client is None:
            self._client = poolbridge.connect(self._path, wait=_TIMEOUT)
        return self._client

    def probe(self, task: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Report the libraries, kinds of memory and GPUs that this interpreter can use."""
        return {"python": sys.version.split()[0], **_consumers.probe()}

    def consume(self, task: dict[str, Any]) -> dict[str, Any]:
        """Make an array of each buffer, and acknowledge each buffer.

        The buffers' names are the task's prefix followed by 0, 1, and so on. A buffer without elements is the last
        buffer. The first bytes of an array on the CPU hold the array's number, which the worker checks.
        """
        client, take, acknowledge = self._connected, _consumers.load(task["consumer"]).take, self._acknowledge.send
        prefix, count = task["prefix"], 0
        acknowledge(_ACK)
        while True:
            lease = client.get(f"{prefix}{count}", timeout=_TIMEOUT)
            if not lease.size:
                break
            array = take(lease)
            if lease.kind == "host" and number_of(array) != count:
                raise AssertionError(f"buffer {count} has the number {number_of(array)}")
            acknowledge(_ACK)
            del array, lease
            count += 1
        lease.release()
        return {"count": count}

    def frames(self, task: dict[str, Any]) -> dict[str, Any]:
        """Make an array of each frame of a channel until the channel is closed; answer with the times of the frames.

        The worker acknowledges the first frame, which tells the producer that this consumer is ready. The answer has no
        time of the first frame. If the task's ``each`` is true, the worker checks the number of every frame. Frames on
        a GPU have no number.
        """
        client, acknowledge, each, clock = self._connected, self._acknowledge.send, task["each"], time.monotonic_ns
        consumer = _consumers.load(task["consumer"])
        on_device = task["on_device"]
        stamps: list[int] = []
        append = stamps.append
        frames = client.subscribe(task["channel"], credit=task["credit"], oldest=True, timeout=_TIMEOUT)
        frames.spin = task["spin"] or None
        stream = stream_of(consumer) if on_device else None
        take: Callable[[Any], Any] = partial(consumer.take, stream=stream)
        arrays = (take(frame) for frame in frames) if task["leases"] else frames.arrays(take, stream=stream)
        for array in arrays:
            append(clock())
            count = len(stamps)
            if not on_device and (each or count % _CHECKED == 1) and number_of(array) != count - 1:
                raise AssertionError(f"frame {count - 1} has the number {number_of(array)}")
            if count == 1:
                acknowledge(_ACK)
            del array
        return {"samples": stamps[1:]}

    def publish(self, task: dict[str, Any]) -> dict[str, Any]:
        """Publish frames for some seconds and close the channel; answer with the time of each frame."""
        client, pause, clock = self._connected, task["pause"], time.monotonic_ns
        channel = client.open_channel(task["channel"], timeout=_TIMEOUT)
        wrap = stream = None
        if on_device := client.open_pool(channel.pool, timeout=_TIMEOUT).kind not in {"host", "pinned"}:
            library = _consumers.load(preferred_consumer())
            stream = stream_of(library)
            wrap = partial(library.take, stream=stream)
        publisher = channel.publisher(task["bytes"], "uint8", wrap=wrap)
        # The first loan opens the pool and starts CUDA in this process, so it is not measured.
        publisher.loan(_TIMEOUT, stream=stream)
        stamps: list[int] = []
        until = clock() + int(task["seconds"] * 1e9)
        while len(stamps) < task["most"] and (clock() < until or len(stamps) < task["least"]):
            if pause:
                time.sleep(pause)
            array = publisher.loan(_TIMEOUT, stream=stream)
            if not on_device:
                put_number(array, len(stamps) + 1)
            stamps.append(clock())
            publisher.publish(timeout=_TIMEOUT)
        del array
        publisher.close()
        channel.close()
        return {"samples": stamps}

    def allocate(self, task: dict[str, Any]) -> dict[str, Any]:
        """Measure for some seconds the time to allocate and release a buffer."""
        client, shape = self._connected, (task["bytes"],)
        pool = client.open_pool(task["pool"], timeout=_TIMEOUT)
        for _ in range(_WARM_UP):
            client.allocate(shape, "uint8", pool=pool).release()
        samples: list[int] = []
        begun = time.perf_counter_ns()
        until = begun + int(task["seconds"] * 1e9)
        while (start := time.perf_counter_ns()) < until:
            client.allocate(shape, "uint8", pool=pool).release()
            samples.append(time.perf_counter_ns() - start)
        return {"samples": samples, "elapsed": time.perf_counter_ns() - begun}

    def connect(self, task: dict[str, Any]) -> dict[str, Any]:
        """Measure how long it takes to connect and make an array of a published buffer.

        The array library is imported before, because this import takes longer than the rest.
        """
        library = _consumers.load(task["consumer"])
        library.version()  # imports it
        take = library.take
        samples: list[int] = []
        begun = time.perf_counter_ns()
        for _ in range(task["count"]):
            start = time.perf_counter_ns()
            client = poolbridge.connect(self._path)
            array = take(client.get(task["name"]))
            samples.append(time.perf_counter_ns() - start)
            del array
            client.close()
        return {"samples": samples, "elapsed": time.perf_counter_ns() - begun}

    def carry_out(self, task: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Carry out one task and return its answer."""
        try:
            return _TASKS[task](self, arguments)
        except Exception:
            self._acknowledge.send(_FAILED)  # tells the process that waits for an acknowledgement to read the answer
            raise

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()
        self._acknowledge.close()


_TASKS: Final[dict[str, Callable[[BenchWorker, dict[str, Any]], dict[str, Any]]]] = {
    "probe": BenchWorker.probe,
    "consume": BenchWorker.consume,
    "frames": BenchWorker.frames,
    "publish": BenchWorker.publish,
    "allocate": BenchWorker.allocate,
    "connect": BenchWorker.connect,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the tasks on standard input."""
    parser = argparse.ArgumentParser(
        prog="python -m poolbridge.bench",
        description="Carry out the tasks of `poolsvc bench`, one JSON object a line.",
    )
    parser.add_argument("--socket", required=True, help="the service's socket")
    parser.add_argument("--acks", metavar="FD", type=int, required=True, help="the socket for acknowledgements")
    given = parser.parse_args(arguments)
    worker = BenchWorker(given.socket, socket.socket(fileno=given.acks))
    try:
        serve(worker.carry_out)
    finally:
        worker.close()
    return 0
