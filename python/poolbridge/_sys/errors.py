"""What can go wrong, as one tree of exceptions.

Each class also derives from the built-in exception that a program would catch anyway::

    PoolbridgeError
    ├── ProtocolError (ConnectionError)            a malformed packet, or one out of turn
    ├── VersionError (ConnectionError)             no protocol version in common
    ├── UnsupportedError (NotImplementedError)     unknown operation or feature
    ├── InvalidArgumentError (ValueError)          out of range, wrong form, contradiction
    ├── NotFoundError (LookupError)                no such pool, name, buffer or lease
    ├── AlreadyExistsError (FileExistsError)       the name is taken
    ├── PoolLimitError (MemoryError)               a limit would be passed; the message names it
    ├── DeviceMemoryError (MemoryError)            the device or machine is out of memory
    ├── AccessDeniedError (PermissionError)        this user may not do this
    ├── WaitTimeoutError (TimeoutError)            the thing did not appear in time
    │   └── ServiceStartTimeoutError               the service did not appear in time
    ├── BusyError (TimeoutError)                   the buffer is leased in a way that excludes this lease
    ├── RequestCancelledError (RuntimeError)       cancelled by this client
    ├── LeaseReleasedError (ValueError)            the lease has ended
    ├── FrameSettledError (ValueError)             the frame was acknowledged or given back before
    ├── LeaseInUseError (BufferError)              arrays made from the lease are alive
    ├── StaleError (LookupError)                   an id of an earlier use, or of another epoch
    ├── ProducerDiedError (RuntimeError)           the buffer's writer died before finishing
    ├── ClosedError (ConnectionError)              the pool or the service is shutting down
    │   ├── ClientClosedError                      this client was closed
    │   └── ConnectionLostError                    the service went away
    ├── ServiceNotRunningError (ConnectionError)   nobody listens at the socket
    │   ├── ServiceStartTimeoutError
    │   └── ServiceStartError                      the service that was started has ended before it was ready
    │       ├── ServiceProgramError                there is no poolsvc to start
    │       ├── SocketInUseError                   another service listens at the socket
    │       └── SocketFolderError                  no socket can be made there
    ├── ServiceStalledError (TimeoutError)         the service is there and does not answer
    ├── UnavailableError (RuntimeError)            this machine or process cannot do it
    │   ├── DeviceNotVisibleError                  the GPU exists, this process cannot see it
    │   ├── EventUnavailableError                  an interprocess event cannot be opened or made here
    │   ├── OwnerDiedError                         the process that owns the memory is gone
    │   ├── PeerAccessError                        the GPU does not reach the memory of the other one
    │   └── SecondContextError                     not possible in a context beside the primary one
    ├── DriverError (RuntimeError)                 the CUDA driver refused a call
    ├── ForkError (RuntimeError)                   used in a forked child
    └── InternalError (RuntimeError)               a fault of the service

``code`` is the stable code of the wire, or ``""`` for what only this client can find out.

Beside it, `ReadOnlyWarning` is a `UserWarning`.
"""

from __future__ import annotations

from typing import ClassVar


class PoolbridgeError(Exception):
    """The root of all errors that poolbridge raises on its own account."""

    code: ClassVar[str] = ""


class ProtocolError(PoolbridgeError, ConnectionError):
    """A packet was malformed or came out of turn; the connection is closed after it."""

    code = "protocol"


class VersionError(PoolbridgeError, ConnectionError):
    """Client and service share no protocol version."""

    code = "version"


class UnsupportedError(PoolbridgeError, NotImplementedError):
    """The operation or feature is unknown to the other side."""

    code = "unsupported"


class InvalidArgumentError(PoolbridgeError, ValueError):
    """An argument is out of range, of a wrong form, or contradicts another."""

    code = "invalid"


class NotFoundError(PoolbridgeError, LookupError):
    """There is no such pool, name, buffer or lease."""

    code = "not-found"


class AlreadyExistsError(PoolbridgeError, FileExistsError):
    """The name is taken."""

    code = "exists"


class PoolLimitError(PoolbridgeError, MemoryError):
    """A limit of the pool, the session, the user or the service would be passed; the message names it."""

    code = "limit"


class DeviceMemoryError(PoolbridgeError, MemoryError):
    """The device or the machine is out of memory."""

    code = "memory"


class AccessDeniedError(PoolbridgeError, PermissionError):
    """The user that this process runs as may not do this."""

    code = "denied"


class WaitTimeoutError(PoolbridgeError, TimeoutError):
    """The time limit passed before the thing appeared."""

    code = "timeout"


class BusyError(PoolbridgeError, TimeoutError):
    """The buffer stayed leased in a way that excludes this lease."""

    code = "busy"


class RequestCancelledError(PoolbridgeError, RuntimeError):
    """The waiting request was cancelled by this client."""

    code = "cancelled"


class LeaseReleasedError(PoolbridgeError, ValueError):
    """The lease has ended; its memory may belong to somebody else by now."""

    code = "released"


class FrameSettledError(PoolbridgeError, ValueError):
    """The frame was acknowledged or given back before."""

    code = "settled"


class LeaseInUseError(PoolbridgeError, BufferError):
    """Arrays made from the lease are alive, so its memory must not be given back yet."""


class StaleError(PoolbridgeError, LookupError):
    """The id is of an earlier use of the same block, or of another life of the service."""

    code = "stale"


class ProducerDiedError(PoolbridgeError, RuntimeError):
    """The process that wrote the buffer died before finishing: its content is incomplete."""

    code = "failed"


class ClosedError(PoolbridgeError, ConnectionError):
    """The pool is being destroyed, or the service is shutting down."""

    code = "closed"


class ClientClosedError(ClosedError):
    """The client was closed."""


class ConnectionLostError(ClosedError):
    """The service closed the connection or went away."""


class ServiceNotRunningError(PoolbridgeError, ConnectionError):
    """Nobody listens at the socket; the message says where and how to start the service."""


class ServiceStartTimeoutError(ServiceNotRunningError, WaitTimeoutError):
    """The service did not appear within the time that ``connect(wait=…)`` or ``serve(timeout=…)`` allows."""

    code = "timeout"


class ServiceStartError(ServiceNotRunningError):
    """The service that was started has ended before it was ready; the message has what it said."""


class ServiceProgramError(ServiceStartError, FileNotFoundError):
    """There is no ``poolsvc`` to start; the message says where it was looked for, and what to do."""


class SocketInUseError(ServiceStartError):
    """Another service listens at the socket already."""


class SocketFolderError(ServiceStartError):
    """No socket can be made there: the folder cannot be written, or others can write it, or the disk is full."""


class ServiceStalledError(PoolbridgeError, TimeoutError):
    """The service holds the connection open and does not answer."""


class UnavailableError(PoolbridgeError, RuntimeError):
    """Not possible on this machine or in this process; the message says what is missing."""

    code = "unavailable"


class DeviceNotVisibleError(UnavailableError):
    """The memory is on a GPU that this process cannot see."""


class EventUnavailableError(UnavailableError):
    """An interprocess event cannot be opened or made here; the message says why, as far as can be told."""


class OwnerDiedError(UnavailableError):
    """The process that owns the memory is gone, and the legacy handle with it."""


class PeerAccessError(UnavailableError):
    """A GPU does not reach the memory of another one; the message names both."""


class SecondContextError(UnavailableError):
    """A legacy handle opens only in the primary context of its device, and another one is current."""


class DriverError(PoolbridgeError, RuntimeError):
    """The CUDA driver refused a call; the message names the call and the driver's result."""


class ForkError(PoolbridgeError, RuntimeError):
    """A client or lease of the parent was used in a forked child."""


class InternalError(PoolbridgeError, RuntimeError):
    """The service reports a fault of its own."""

    code = "internal"


class ReadOnlyWarning(UserWarning):
    """A library that may write what it is given got memory that is mapped read-only; said once in each process."""


_BY_CODE: dict[str, type[PoolbridgeError]] = {
    error.code: error
    for error in (
        ProtocolError,
        VersionError,
        UnsupportedError,
        InvalidArgumentError,
        NotFoundError,
        AlreadyExistsError,
        PoolLimitError,
        DeviceMemoryError,
        AccessDeniedError,
        WaitTimeoutError,
        BusyError,
        RequestCancelledError,
        LeaseReleasedError,
        FrameSettledError,
        StaleError,
        ProducerDiedError,
        ClosedError,
        UnavailableError,
        InternalError,
    )
}


SESSION_LOST = (
    "this client's leases and subscriptions have ended, what it was writing has failed, and names that it did not keep "
    "are gone; arrays that are alive can still be read. Connect again to go on"
)
"""What it means that the connection is gone, and what to do."""

_SHOWN = 80


def shown(value: object) -> str:
    """Give what an error says of a value that was given: its repr, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"


def from_wire(code: str, message: str) -> PoolbridgeError:
    """Make the exception that stands for an error of the wire.

    Parameters
    ----------
    code
        One of the codes of ``docs/protocol.md``; an unknown one gives a plain `PoolbridgeError`.
    message
        The service's text for people.
    """
    error = _BY_CODE.get(code)
    if error is None:
        return PoolbridgeError(f"{message} (error code {code!r}, which this client does not know)")
    return error(message)
