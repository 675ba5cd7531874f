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
from typing import TYPE_CHECKING, Final

from msgspec import UnsetType

from poolbridge._wire import received_errors as _received_errors
from poolbridge._wire.limits import MAX_QUERY, VERSION
from poolbridge._wire.messages import Envelope, Hello, HelloReply
from poolbridge._wire.packet import decode, encode
from poolbridge._wire.transport import Transport
from poolbridge.errors import ConnectionLostError

if TYPE_CHECKING:
    from poolbridge._memory.session_blocks import SessionBlock
    from poolbridge._session.core import Core

# How many seconds a session waits for a service that has its state. The guard of a service holds its socket, so that
# connections wait.
_RESUME_SECONDS: Final = 10.0
# How many seconds the socket may be without a listener: then the guard is gone, too.
ABSENT_SECONDS: Final = 0.5


def take_up(core: Core, dial: Callable[[float], socket.socket | float], idle: list[SessionBlock]) -> socket.socket:
    """Connect to a service that has the session, and put into the outbox what it needs to be sent again.

    Append to `idle` the blocks that the service recalls and that no lease needs.

    Raises
    ------
    ConnectionLostError
        No service has the session.
    """
    deadline = time.monotonic() + _RESUME_SECONDS
    while True:
        now = time.monotonic()
        if now > deadline:
            raise ConnectionLostError(f"no service took over within {_RESUME_SECONDS:.0f} seconds")
        sock = dial(now)
        if isinstance(sock, float):
            time.sleep(sock)
            continue
        try:
            done = _hello(core, sock, deadline, idle)
        except ConnectionLostError:
            sock.close()
            time.sleep(0.002)
            continue
        except BaseException:
            sock.close()
            raise
        core.unconfirmed.again(core.outbox, core.awaited(), done)
        return sock


def _hello(core: Core, sock: socket.socket, deadline: float, idle: list[SessionBlock]) -> int:
    transport = Transport(sock)
    request = Hello(versions=(VERSION,), features=core.features, resume=core.session_id, token=core.unconfirmed.token)
    request.number = MAX_QUERY
    try:
        sock.send(encode(request))
    except OSError as error:
        raise ConnectionLostError(str(error)) from None
    while time.monotonic() < deadline:
        select.select([sock], [], [], deadline - time.monotonic())
        came = transport.receive()
        if came is None:
            continue
        data, descriptors = came
        envelope = decode(data, Envelope, checked=True)
        if envelope.number != MAX_QUERY:
            idle += core.receive(data, descriptors)
            continue
        descriptors.close()
        if not isinstance(envelope.error, UnsetType):
            raise _received_errors.exception(envelope.error.code, envelope.error.message)
        reply = decode(data, HelloReply)
        return reply.done
    raise ConnectionLostError("the service that took over does not answer")
