"""The socket: packets and descriptors in, packets out, nothing lost and nothing leaked."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Iterable

from poolbridge._sys.errors import SESSION_LOST, ConnectionLostError, ProtocolError
from poolbridge._wire.packet import MAX_FDS, MAX_PACKET

_INT = array.array("i").itemsize
# Plain numbers: an operation on the flags themselves takes half a microsecond.
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_RECEIVE_FLAGS = int(socket.MSG_CMSG_CLOEXEC)
_DATA_TRUNCATED = int(socket.MSG_TRUNC)
_CONTROL_TRUNCATED = int(socket.MSG_CTRUNC)
# Room for more than the protocol allows: what comes in surplus is then seen, closed and refused.
_CONTROL = socket.CMSG_SPACE((MAX_FDS + 2) * _INT)


class Descriptors:
    """File descriptors that arrived with a packet and that somebody has to take or close."""

    __slots__ = ("_fds",)

    def __init__(self, fds: Iterable[int] = ()) -> None:
        self._fds = list(fds)

    def __len__(self) -> int:
        return len(self._fds)

    def peek(self) -> list[int]:
        """Give all of them, to be used while this is not closed."""
        return list(self._fds)

    def take(self, count: int) -> Descriptors:
        """Split off the first `count` descriptors."""
        taken, self._fds = Descriptors(self._fds[:count]), self._fds[count:]
        return taken

    def one(self) -> int:
        """Give up the only descriptor; the caller closes it.

        Raises
        ------
        ProtocolError
            There is not exactly one; all are closed.
        """
        if len(self._fds) != 1:
            count = len(self._fds)
            self.close()
            raise ProtocolError(f"{count} file descriptors came where one was expected")
        return self._fds.pop()

    def close(self) -> None:
        """Close those that nobody took. Idempotent."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)


class Transport:
    """A connected ``SOCK_SEQPACKET`` socket, never blocking.

    One thread at a time may send, and one receive.

    Parameters
    ----------
    sock
        The socket; owned from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        # Kept: to make it anew for each packet takes longer than to read one.
        self._buffer = memoryview(bytearray(MAX_PACKET + 1))

    def fileno(self) -> int:
        """Give the socket's descriptor, or -1 when closed."""
        return self._sock.fileno()

    def send(self, packets: deque[bytes]) -> bool:
        """Send packets, and take those that were sent off the queue.

        Returns
        -------
        bool
            False if the socket's buffer is full: the others are to be sent later.

        Raises
        ------
        ConnectionLostError
            The service is gone.
        """
        while packets:
            if not self._send_first(packets):
                return False
        return True

    def _send_first(self, packets: deque[bytes]) -> bool:
        """Send the first packet and take it off; False if the socket's buffer is full."""
        packet = packets[0]
        # Taken off and sent by one call in C: whenever a signal comes, it is sent once.
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
        """Receive one packet with its descriptors, which are close-on-exec.

        Returns
        -------
        tuple or None
            The packet, and what came with it; None if none is there yet.

        Raises
        ------
        ConnectionLostError
            The service closed the connection.
        ProtocolError
            Data or descriptors were truncated, or too many descriptors came; all are closed.
        """
        try:
            length, control, flags, _ = self._sock.recvmsg_into([self._buffer], _CONTROL, _RECEIVE_FLAGS)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise _gone(error) from error
        descriptors = Descriptors(_rights(control) if control else ())
        try:
            if flags & _CONTROL_TRUNCATED:
                raise ProtocolError("the control part of a packet was truncated: descriptors were lost")
            if flags & _DATA_TRUNCATED or length > MAX_PACKET:
                raise ProtocolError(f"a packet of more than {MAX_PACKET} bytes arrived")
            if len(descriptors) > MAX_FDS:
                raise ProtocolError(f"{len(descriptors)} descriptors in a packet; the protocol allows {MAX_FDS}")
            if not length:
                raise ConnectionLostError(f"the service closed the connection: {SESSION_LOST}")
        except BaseException:
            descriptors.close()
            raise
        return bytes(self._buffer[:length]), descriptors

    def shutdown(self) -> None:
        """End the connection, which wakes all that wait for it; the descriptor stays. Idempotent."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the service was faster, or it is closed already

    def close(self) -> None:
        """Close the socket. Idempotent; nobody may wait for it any more."""
        self._sock.close()


def _gone(error: OSError) -> ConnectionLostError:
    return ConnectionLostError(f"the service is gone ({error.strerror}): {SESSION_LOST}")


def _rights(control: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _INT])
    return list(fds)
