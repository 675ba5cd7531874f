"""The socket: packets and descriptors in, packets out, nothing lost and nothing leaked."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Iterable, Sequence

from poolbridge._errors import SESSION_LOST, ConnectionLostError, PoolbridgeError, ProtocolError
from poolbridge._packet import MAX_FDS, MAX_PACKET
from poolbridge._ring import MARKED, Ring

_INT = array.array("i").itemsize
# Plain numbers: an operation on the flags themselves takes half a microsecond.
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_RECEIVE_FLAGS = int(socket.MSG_CMSG_CLOEXEC)
_DATA_TRUNCATED = int(socket.MSG_TRUNC)
_CONTROL_TRUNCATED = int(socket.MSG_CTRUNC)
# Room for more than the protocol allows: what comes in surplus is then seen, closed and refused.
_CONTROL = socket.CMSG_SPACE((MAX_FDS + 2) * _INT)

# How many packets are taken out of the ring at a time.
_AT_ONCE = 64

# Packets of one byte, which no message is: there is something in the ring; the next packets come through it again.
_LOOK = b"\xc0"
_BACK = b"\xc3"


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


NONE = Descriptors()
"""What comes with a packet of the ring; there is nothing in it that anybody could take."""


class Transport:
    """A connected ``SOCK_SEQPACKET`` socket, never blocking, and in time a ring beside it.

    Each direction is one sequence of packets, whichever way they come. One thread at a time may send, and one receive.

    Parameters
    ----------
    sock
        The socket; owned from now on.

    Attributes
    ----------
    ring
        The ring, once there is one.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        # Kept: to make it anew for each packet takes longer than to read one.
        self._buffer = memoryview(bytearray(MAX_PACKET + 1))
        self.ring: Ring | None = None
        # What is sent, and what is received, goes over the socket for now.
        self._aside = deque((_BACK,))  # what is still to be sent before packets go through the ring, or nothing
        self._over = True
        # Over the socket, behind what the ring still has: a packet, or why none will come.
        self._came: tuple[bytes, Descriptors] | None = None
        self._failure: PoolbridgeError | None = None

    def use(self, ring: Ring) -> None:
        """Send through a ring, and receive from it once the service says so."""
        self.ring = ring

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
        ring = self.ring
        if ring is not None:
            try:
                return self._send_through(ring, packets)
            except PoolbridgeError:
                raise
            except BaseException:
                # A signal handler's, perhaps: what the ring has got does not wait for the next packet.
                ring.publish()
                self._send(_LOOK)
                raise
        while packets:
            if not self._send_first(packets):
                return False
        return True

    def _send_through(self, ring: Ring, packets: deque[bytes]) -> bool:
        while packets:
            if self._aside and ring.drained:
                self._send_first(self._aside)
            if not self._aside:
                while packets:
                    if not ring.put(packets[0]):
                        # What it has no room for goes another way.
                        ring.mark()
                        self._aside.append(_BACK)
                        break
                    # Neither a call nor a jump back is between this and what `put` does last: no signal comes between,
                    # and no packet is sent twice.
                    del packets[0]
                if ring.publish():
                    self._send(_LOOK)  # the reader of a full socket does not sleep
                if not packets:
                    break
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

    def _send(self, packet: bytes) -> None:
        """Send a packet that may be sent too often, but not too rarely, unless the socket's buffer is full."""
        try:
            self._sock.send(packet, _SEND_FLAGS)
        except BlockingIOError:
            pass
        except OSError as error:
            raise _gone(error) from error

    def receive(self, *, readable: bool = False) -> tuple[Sequence[bytes], Descriptors] | None:
        """Receive packets that the ring has, or one with its descriptors, which are close-on-exec.

        Parameters
        ----------
        readable
            The socket is known to have something: it is read even if the ring has something too.

        Returns
        -------
        tuple or None
            The packets, in order, and what came with them; None if none is there yet.

        Raises
        ------
        ConnectionLostError
            The service closed the connection.
        ProtocolError
            Data or descriptors were truncated, or too many descriptors came; all are closed. Or the ring is corrupt.
        """
        if readable and self.ring is not None and self._came is None and self._failure is None:
            self._look()
        while True:
            if self._over:
                came, self._came = self._came, None
                packet = came or self._receive()
                # Asked for once the packet is there: another thread may have begun to use a ring meanwhile.
                ring = self.ring
                if packet is None:
                    return None
                data, descriptors = packet
                if ring is None or data not in {_LOOK, _BACK}:
                    return (data,), descriptors
                descriptors.close()
                self._over = data != _BACK
                continue
            assert self.ring is not None  # noqa: S101 - for the type checker: only with one it is not over the socket
            taken = self.ring.take(_AT_ONCE)
            if taken:
                if taken[-1] == MARKED:
                    self._over = True
                    taken.pop()
                    if not taken:
                        continue
                return taken, NONE
            if self._failure is not None:
                raise self._failure
            if self._came is not None:
                raise ProtocolError("a packet came over the socket that should have come through the ring")
            if not self._look():
                return None

    def _look(self) -> bool:
        """Read the socket while packets come through the ring; False if it has nothing."""
        try:
            came = self._receive()
        except PoolbridgeError as error:
            self._failure = error  # what the ring still has comes before
            return True
        if came is None:
            return False
        if came[0] == _LOOK:
            came[1].close()
        else:
            self._came = came
        return True

    def _receive(self) -> tuple[bytes, Descriptors] | None:
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

    @property
    def through(self) -> bool:
        """Whether packets come through the ring."""
        return self.ring is not None and not self._over

    def waiting(self) -> bool:
        """Whether a packet is known to be there, which costs no system call to know."""
        ring = self.ring
        return ring is not None and not self._over and ring.some()

    def sleep(self) -> bool:
        """Say that the socket is about to be waited for; False if there is something to receive."""
        ring = self.ring
        if self._came is not None or self._failure is not None:
            return False
        return ring is None or self._over or ring.sleep()

    def wake(self) -> None:
        """Say that the socket is not waited for any more."""
        if self.ring is not None:
            self.ring.wake()

    def shutdown(self) -> None:
        """End the connection, which wakes all that wait for it; the descriptor stays. Idempotent."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the service was faster, or it is closed already

    def close(self) -> None:
        """Close the socket and the ring. Idempotent; nobody may wait for them any more."""
        self._sock.close()
        came, self._came = self._came, None
        if came is not None:
            came[1].close()
        ring, self.ring = self.ring, None
        if ring is not None:
            ring.close()


def _gone(error: OSError) -> ConnectionLostError:
    return ConnectionLostError(f"the service is gone ({error.strerror}): {SESSION_LOST}")


def _rights(control: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _INT])
    return list(fds)
