"""Runs the worker of ``poolsvc verify``, which does the tasks of `TASKS`; see `_libraries.tasks`.

The types in Go with the same names describe the arguments of the tasks. The worker ends at the end of its input.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import poolbridge
from poolbridge._libraries import consumers as _consumers
from poolbridge._libraries.tasks import serve
from poolbridge._verify import (
    contexts as _contexts,
    early as _early,
    handle as _handle,
    mapping as _mapping,
    order as _order,
    stream as _stream,
    transfer as _transfer,
)

if TYPE_CHECKING:
    from poolbridge._client.client import Client
    from poolbridge._client.lease import Lease
    from poolbridge._libraries.consumers import Consumer

TIMEOUT: Final = 60.0


class Worker:
    """Does tasks over one connection. The worker connects when a task first needs the connection.

    Parameters
    ----------
    socket
        Path of the service's socket; None: the default path.
    library
        The array library that the worker uses.
    device
        The GPU to work on; None: the GPU that has the buffer's memory.
    """

    def __init__(self, socket: str | None, library: str, device: str | None) -> None:
        self._socket = socket
        self._library = library
        self._device = device
        self._client: Client | None = None
        self.reading: _order.Reading | None = None
        self.intakes: dict[str, _stream.Intake] = {}

    @property
    def consumer(self) -> Consumer:
        """The library."""
        return _consumers.load(self._library)

    def client(self, timeout: float = TIMEOUT) -> Client:
        """Return the client. The first call connects, and waits until the service runs, up to `timeout`."""
        if self._client is None:
            self._client = poolbridge.connect(self._socket, wait=timeout, device=self._device)
        return self._client

    @contextmanager
    def lease(self, name: str, *, write: bool = False) -> Iterator[Lease]:
        """Lease a buffer. After the block, wait until the service has processed the release."""
        with self.client().get(name, write=write, timeout=TIMEOUT) as lease:
            yield lease
        self.settle()

    def settle(self) -> None:
        """Wait until the service has processed the releases that this worker sent. A release has no reply.

        The service processes a release before later requests. So this method waits for the reply to a later request.
        """
        self.client().stats()

    def disconnect(self) -> None:
        """Close the connection. This unmaps all memory of the service."""
        self.intakes.clear()
        client, self._client = self._client, None
        if client is not None:
            client.close()


def libraries(worker: Worker) -> list[str]:  # noqa: ARG001
    """List the installed array libraries, the preferred library first."""
    return _consumers.installed()


def probe(worker: Worker) -> dict[str, Any]:
    """Report which kinds of memory the worker's library can use; without a library, report this for every library."""
    return {"python": sys.version.split()[0], **_consumers.probe(worker._library or None)}  # noqa: SLF001


TASKS: Final[dict[str, Callable[..., Any]]] = {
    "libraries": libraries,
    "probe": probe,
    "check": _transfer.check,
    "produce": _transfer.produce,
    "both": _transfer.both,
    "peerRead": _order.peer_read,
    "readOnly": _mapping.read_only,
    "openFile": _handle.open_file,
    "descriptor": _handle.descriptor,
    "rounds": _contexts.rounds,
    "queueRead": _order.queue_read,
    "endRead": _order.end_read,
    "wait": _early.wait,
    "publish": _stream.publish,
    "take": _stream.take,
    "releaseKept": _stream.release_kept,
    "leave": _stream.leave,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the tasks on standard input."""
    parser = argparse.ArgumentParser(
        prog="python -m poolbridge.worker",
        description="Carry out the tasks of `poolsvc verify`, one JSON object a line.",
    )
    parser.add_argument("--socket", help="the service's socket (default: as poolbridge.connect() finds it)")
    parser.add_argument("--library", default="", help="the array library to use")
    parser.add_argument("--device", help="the GPU to work on, where it is not the one that has the memory")
    options = parser.parse_args(arguments)
    worker = Worker(options.socket, options.library, options.device)
    warnings.simplefilter("ignore", poolbridge.ReadOnlyWarning)  # the tasks write only what they lease for writing
    try:
        serve(lambda task, given: TASKS[task](worker, **given))
    finally:
        worker.disconnect()
    return 0
