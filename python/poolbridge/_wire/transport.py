"""Sends packets to the service over the socket, and receives packets with file descriptors from the service."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from poolbridge._sys.error_texts import SESSION_LOST, no_descriptor
from poolbridge._wire.limits import MAX_FDS, MAX_PACKET
from poolbridge.errors import (
    ConnectionLostError,
    PoolbridgeError,
    ProtocolError,
)

_INT = array.array("i").itemsize
# The flags are plain integers, because an operation on an enum of `socket` takes half a microsecond.
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_RECEIVE_FLAGS = int(socket.MSG_CMSG_CLOEXEC)
_DATA_TRUNCATED = int(socket.MSG_TRUNC)
_CONTROL_TRUNCATED = int(socket.MSG_CTRUNC)
# The control buffer has space for two descriptors more than the protocol allows. So `receive` sees when a packet has
# too many descriptors, closes all descriptors and refuses the packet.
_CONTROL = socket.CMSG_SPACE((MAX_FDS + 2) * _INT)


class Descriptors:
    """File descriptors that came with a packet. The owner of this object takes the descriptors out or closes them.

    Attributes
    ----------
    fds
        The descriptors. Who gives them to another owner sets ``[]``.
    claimed
        Whether an export of the packet claims the descriptors.
    answered
        Whether the packet is a reply, and its request was settled.
    """

    __slots__ = ("_closed", "answered", "claimed", "fds")

    def __init__(self, fds: Iterable[int] = ()) -> None:
        self.fds = list(fds)
        self._closed = self.claimed = self.answered = False

    def __len__(self) -> int:
        return len(self.fds)

    def peek(self) -> list[int]:
        """Return all descriptors. The descriptors are valid until this object is closed."""
        return list(self.fds)

    def one(self) -> int:
        """Take out the only descriptor. The caller closes the descriptor.

        Raises
        ------
        ProtocolError
            This object does not have exactly one descriptor. `one` has closed all descriptors of this object.
        """
        if len(self.fds) != 1:
            count = len(self.fds)
            self.close()
            raise ProtocolError(f"{count} file descriptors came where one was expected")
        return self.fds.pop()

    @contextmanager
    def lent(self) -> Iterator[int]:
        """Lend the only descriptor to the ``with`` block, and close it. If the block raises, keep it for another try.

        Raises
        ------
        ProtocolError
            See `one`.
        """
        fd = self.one()
        try:
            yield fd
        except BaseException:
            self.fds.append(fd)
            if self._closed:  # another thread has ended the session meanwhile
                self.close()
            raise
        os.close(fd)

    def close(self) -> None:
        """Close the descriptors that were not taken out. Idempotent."""
        self._closed = True
        if self.fds:
            closing = map(os.close, self.fds)
            self.fds = []
            deque(closing, maxlen=0)  # no signal handler runs before all are closed


class Transport:
    """A connected ``SOCK_SEQPACKET`` socket that never blocks.

    One thread at a time may send, and one thread at a time may receive.

    Parameters
    ----------
    sock
        The socket, which this object owns and closes.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        _open.add(self)
        # One buffer for all packets: making a buffer takes longer than reading a packet.
        self._buffer = memoryview(bytearray(MAX_PACKET + 1))
        self.connections = 1  # how many connections this object has had
        self._came: list[Any] = []  # what `recvmsg_into` returned for a packet that is still in the buffer; at most one
        self._packet: tuple[bytes, Descriptors] | None = None  # the same packet

    @property
    def unread(self) -> bool:
        """Whether there is a packet that was received and not processed: a signal handler has interrupted that."""
        return bool(self._came)

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 if the socket is closed."""
        return self._sock.fileno()

    def send(self, packets: deque[bytes], kept: list[bytes] | None = None) -> bool:
        """Send packets, and remove the sent packets from `packets`.

        Each one goes into `kept` first, if it is not the last one there: its sending failed before.

        Returns
        -------
        bool
            False if the socket's buffer is full. The caller must send the remaining packets later.

        Raises
        ------
        ConnectionLostError
            The service is gone.
        """
        while packets:
            packet = packets[0]
            if kept is not None and (not kept or kept[-1] is not packet):
                kept.append(packet)
            if not self._send_first(packets, packet):
                return False
        return True

    def _send_first(self, packets: deque[bytes], packet: bytes) -> bool:
        """Send the first packet and remove it. Return False if the socket's buffer is full."""
        # `next` is a C function, which removes and sends the packet in one call. So no packet is sent twice, even if a
        # signal handler raises an error.
        sending = map(self._sock.send, iter(packets.popleft, None), (_SEND_FLAGS,))
        try:
            next(sending)
        except BlockingIOError:
            packets.appendleft(packet)
            return False
        except OSError as error:
            raise _gone(error) from error
        return True

    def receive(self) -> tuple[bytes, Descriptors] | None:
        """Return the next packet with its descriptors, which are close-on-exec: the same one until `processed`.

        Returns
        -------
        tuple or None
            The packet and its descriptors; None if no packet has arrived.

        Raises
        ------
        ConnectionLostError
            The service closed the connection; or the packet's descriptors were lost, because this process has no free
            descriptor.
        ProtocolError
            The packet or its list of descriptors was too long. `receive` has closed all descriptors of the packet.
        """
        if self._packet is None:
            self._packet = self._receive(self._came)
        return self._packet

    def processed(self) -> None:
        """Let `receive` go on to the next packet."""
        self._packet = None
        del self._came[:]  # no signal handler runs between these two steps

    def _receive(self, came: list[Any]) -> tuple[bytes, Descriptors] | None:
        try:
            if not came:  # `extend` is a C function, so a signal handler that raises after it loses no packet
                came.extend(map(self._sock.recvmsg_into, ([self._buffer],), (_CONTROL,), (_RECEIVE_FLAGS,)))
        except (BlockingIOError, InterruptedError):
            return None
        except ConnectionResetError:  # the kernel says so once, before the packets that the service has sent
            return self._receive(came)
        except OSError as error:
            raise _gone(error) from error
        length, control, flags, _ = came[0]
        descriptors = Descriptors(_rights(control) if control else ())
        try:
            if flags & _CONTROL_TRUNCATED and len(descriptors) <= MAX_FDS:  # there was room for more
                raise ConnectionLostError(
                    f"{no_descriptor()}. Descriptors that the service sent were lost, so the client closed the "
                    f"connection: {SESSION_LOST}"
                )
            if flags & _CONTROL_TRUNCATED:
                raise ProtocolError("the control part of a packet was truncated: descriptors were lost")
            if flags & _DATA_TRUNCATED or length > MAX_PACKET:
                raise ProtocolError(f"a packet of more than {MAX_PACKET} bytes arrived")
            if len(descriptors.fds) > MAX_FDS:
                raise ProtocolError(f"{len(descriptors)} descriptors in a packet; the protocol allows {MAX_FDS}")
            if not length:
                raise ConnectionLostError(f"the service closed the connection: {SESSION_LOST}")
        except PoolbridgeError:
            descriptors.close()
            raise
        return bytes(self._buffer[:length]), descriptors

    def replace(self, sock: socket.socket) -> None:
        """Use another connection, which gets the descriptor of this one."""
        os.dup2(sock.fileno(), self._sock.fileno(), inheritable=False)
        sock.close()
        self._came = []
        self.connections += 1

    def end_sending(self) -> None:
        """End sending. Idempotent.

        The service reads all packets that were sent, then ends the session and closes the connection.
        """
        self._shutdown(socket.SHUT_WR)

    def shutdown(self) -> None:
        """Shut down the connection, but do not close the socket. Threads that wait for it wake up. Idempotent."""
        self._shutdown(socket.SHUT_RDWR)

    def _shutdown(self, how: int) -> None:
        try:
            self._sock.shutdown(how)
        except OSError:
            pass  # the service has closed the connection, or the socket is closed

    def close(self) -> None:
        """Close the socket. The caller makes sure that no thread waits for the socket any more. Idempotent."""
        self._sock.close()


# The transports of this process that may be open.
_open: WeakSet[Transport] = WeakSet()


def _close_inherited() -> None:
    """Close, in a forked child, the sockets of the parent process, so that the connections end with the parent."""
    for transport in list(_open):
        transport.close()
    _open.clear()


os.register_at_fork(after_in_child=_close_inherited)


def _gone(error: OSError) -> ConnectionLostError:
    return ConnectionLostError(f"the service is gone ({error.strerror}): {SESSION_LOST}")


def _rights(control: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _INT])
    return list(fds)
