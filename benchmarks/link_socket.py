"""Sends pickled arrays through a Unix socket."""

from __future__ import annotations

import pickle
import socket
import struct
from multiprocessing.context import SpawnContext
from typing import Any

from link import Link, numbered

from poolbridge._bench.arrays import HEAD, number_of

_LENGTHS = struct.Struct("<QQ")
_SOCKET_BUFFER = 1 << 20


class SocketLink(Link):
    """Sends each array by pickle protocol 5: a pickled description, and then the bytes, which pickle does not copy."""

    name = "pickle through a Unix socket"
    kind = "host"

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        super().__init__(context, nbytes, depth)
        self._producer, self._consumer = socket.socketpair()
        for end in (self._producer, self._consumer):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        self._array: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None, "_producer": None}

    def open_to_send(self) -> None:
        """Make the data."""
        self._array = numbered(self.nbytes)

    def send(self, number: int) -> None:
        """Send the lengths of the array's description and bytes, and then the description and the bytes."""
        self._array[: HEAD.itemsize].view(HEAD)[0] = number
        buffers: list[pickle.PickleBuffer] = []
        text = pickle.dumps(self._array, protocol=5, buffer_callback=buffers.append)
        body = buffers[0].raw()
        head = _LENGTHS.pack(len(text), body.nbytes) + text
        sent = self._producer.sendmsg([head, body])
        if sent < len(head):
            self._producer.sendall(head[sent:])
            sent = len(head)
        if sent < len(head) + body.nbytes:
            self._producer.sendall(body[sent - len(head) :])

    def finish(self) -> None:
        """Close the end that sends."""
        self._producer.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close both ends."""
        self._producer.close()
        self._consumer.close()

    def receive(self) -> tuple[int, Any] | None:
        """Read the lengths, and then the description and the bytes, each into its own buffer."""
        lengths = bytearray(_LENGTHS.size)
        if not self._fill(lengths):
            return None
        text, body = (bytearray(length) for length in _LENGTHS.unpack(lengths))
        self._fill(text)
        self._fill(body)
        array = pickle.loads(text, buffers=[body])  # noqa: S301 - our own process wrote it
        return number_of(array), array

    def _fill(self, part: bytearray) -> bool:
        view = memoryview(part)
        while view:
            count = self._consumer.recv_into(view, 0, socket.MSG_WAITALL)
            if not count:
                return False
            view = view[count:]
        return True

    def leave(self) -> None:
        """Close the consumer's end."""
        self._consumer.close()
