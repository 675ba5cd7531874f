"""Takes a session up again after its service has died: another process has its state, and listens at the same socket.

The service carries out a session's packets in their order, and keeps the number of the last one that changed something.
So the client sends again what comes after it, and all requests whose answers have not come: the service answers those
that it has carried out without doing so again.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import UnsetType

from poolbridge._wire import received_errors as _received_errors
from poolbridge._wire.limits import MAX_QUERY, VERSION
from poolbridge._wire.messages import Envelope, Hello, HelloReply
from poolbridge._wire.packet import decode, encode
from poolbridge._wire.transport import Descriptors, Transport
from poolbridge.errors import ConnectionLostError, PoolbridgeError

if TYPE_CHECKING:
    from poolbridge._session.core import Core

# How many seconds a session waits for a service that has its state. The guard of a service holds its socket, so that
# connections wait.
_RESUME_SECONDS: Final = 10.0
# How many seconds the socket may be without a listener: then the guard is gone, too.
ABSENT_SECONDS: Final = 0.5
_PAUSE: Final = 0.005


class Resumed(NamedTuple):
    """A connection with a service that has the session, the number `done`, and the notices that came meanwhile."""

    sock: socket.socket
    done: int
    came: list[tuple[bytes, Descriptors]]


def connect_again(core: Core, dial: Callable[[float], socket.socket | float], over: Callable[[], bool]) -> Resumed:
    """Connect to a service that has the session; give up when `over` returns True.

    Raises
    ------
    PoolbridgeError
        No service has the session.
    """
    deadline = time.monotonic() + _RESUME_SECONDS
    while not over() and (now := time.monotonic()) < deadline:
        sock = dial(now)
        if isinstance(sock, float):
            time.sleep(sock)
            continue
        came: list[tuple[bytes, Descriptors]] = []
        try:
            return Resumed(sock, _hello(core, sock, deadline, came), came)
        except BaseException as error:
            sock.close()
            for _, descriptors in came:
                descriptors.close()
            # A service that is dying or has no room may have a successor that takes the session.
            if not isinstance(error, PoolbridgeError) or error.code == "stale":
                raise
        time.sleep(_PAUSE)
    raise ConnectionLostError(f"no service took over within {_RESUME_SECONDS:.0f} seconds")


def _hello(core: Core, sock: socket.socket, deadline: float, came: list[tuple[bytes, Descriptors]]) -> int:
    transport = Transport(sock)
    request = Hello(versions=(VERSION,), features=core.features, resume=core.session_id, token=core.unconfirmed.token)
    request.number = MAX_QUERY
    try:
        sock.send(encode(request))
    except OSError as error:
        raise ConnectionLostError(str(error)) from None
    ready = select.poll()
    ready.register(sock, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        ready.poll(left * 1000)
        packet = transport.receive()
        if packet is None:
            continue
        transport.processed()
        data, descriptors = packet
        envelope = decode(data, Envelope, checked=True)
        if envelope.number != MAX_QUERY:
            came.append(packet)
            continue
        descriptors.close()
        if not isinstance(envelope.error, UnsetType):
            raise _received_errors.exception(envelope.error.code, envelope.error.message)
        return decode(data, HelloReply).done
    raise ConnectionLostError("the service that took over does not answer")
