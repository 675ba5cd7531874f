"""Defines the exceptions of poolbridge, which form one tree.

Each class also derives from the built-in exception in parentheses, so that a program can catch errors without importing
poolbridge::

    PoolbridgeError
    ├── ProtocolError (ConnectionError)            a packet is malformed, or came at the wrong time
    ├── VersionError (ConnectionError)             client and service share no protocol version
    ├── UnsupportedError (NotImplementedError)     the operation or feature is unknown
    ├── InvalidArgumentError (ValueError)          an argument is out of range, malformed or contradictory
    ├── NotFoundError (LookupError)                the pool, name or channel does not exist, for this user
    ├── AlreadyExistsError (FileExistsError)       the name is taken
    ├── PoolLimitError (MemoryError)               a limit would be exceeded; the message names the limit
    ├── DeviceMemoryError (MemoryError)            the device or the machine is out of memory
    ├── AccessDeniedError (PermissionError)        this user may not do the operation
    ├── WaitTimeoutError (TimeoutError)            the time limit passed
    │   └── ServiceStartTimeoutError               the service did not appear in time
    ├── BusyError (TimeoutError)                   another lease on the buffer excludes this lease
    ├── RequestCancelledError (RuntimeError)       this client cancelled the request
    ├── LeaseReleasedError (ValueError)            the lease has ended
    ├── FrameSettledError (ValueError)             the frame was acknowledged or requeued already
    ├── LeaseInUseError (BufferError)              arrays made from the lease are alive
    ├── StaleError (LookupError)                   the id is of a buffer that is gone, or of another epoch
    ├── MetadataMismatchError (LookupError)        the name has other content than the program expects
    ├── ContentFailedError (RuntimeError)          the content of the buffer will never be complete
    │   ├── ProducerDiedError                      the writer died before the content was complete
    │   └── FrameCorruptError                      what a producer wrote about a frame cannot be true
    ├── ClosedError (ConnectionError)              the channel, publisher, pool or service is closing or closed
    │   ├── NoProducersError                       every producer has left, and did not close the channel
    │   ├── ClientClosedError                      this client was closed
    │   └── ConnectionLostError                    the service went away
    ├── ServiceNotRunningError (ConnectionError)   no service listens at the socket
    │   ├── ServiceStartTimeoutError
    │   └── ServiceStartError                      the service could not be started, or ended before it was ready
    │       ├── ServiceProgramError                there is no poolsvc to start
    │       ├── SocketInUseError                   another service listens at the socket
    │       └── SocketFolderError                  no socket or log can be made in the folder
    ├── ServiceStalledError (TimeoutError)         the service is connected and does not answer
    ├── UnavailableError (RuntimeError)            this machine or process cannot do the operation
    │   ├── DeviceNotVisibleError                  this process cannot see the GPU
    │   ├── EventUnavailableError                  an interprocess event cannot be opened or made in this process
    │   ├── OwnerDiedError                         the process that owns the memory is gone
    │   ├── PeerAccessError                        a GPU cannot reach the memory of another GPU
    │   └── SecondContextError                     the current CUDA context is not the device's primary context
    ├── StreamCaptureError (RuntimeError)          a stream's work is being captured into a CUDA graph
    ├── DriverError (RuntimeError)                 the CUDA driver refused a call
    ├── ForkError (RuntimeError)                   a forked child used an object of its parent
    └── InternalError (RuntimeError)               the service reports a fault of its own

The class attribute ``code`` of an error is the protocol's code of its class or of a base; ``""`` if neither has one.

`ReadOnlyWarning` is a warning, not an error.
"""

from __future__ import annotations

from typing import ClassVar


class PoolbridgeError(Exception):
    """The base class of all errors that poolbridge defines.

    Attributes
    ----------
    code
        The protocol's code of the class or of a base, the same in every version; ``""`` if neither has one. An
        error that the client finds itself may have one, too.
    """

    code: ClassVar[str] = ""


class ProtocolError(PoolbridgeError, ConnectionError):
    """A packet was malformed or came at the wrong time, or the order of a channel's frames is inconsistent."""

    code = "protocol"


class VersionError(PoolbridgeError, ConnectionError):
    """Client and service share no protocol version."""

    code = "version"


class UnsupportedError(PoolbridgeError, NotImplementedError):
    """The service, this client or an array protocol does not know the operation, feature or type."""

    code = "unsupported"


class InvalidArgumentError(PoolbridgeError, ValueError):
    """An argument is out of range, has a wrong form, or contradicts another argument."""

    code = "invalid"


class NotFoundError(PoolbridgeError, LookupError):
    """The pool, name or channel does not exist, or this user may not know of it."""

    code = "not-found"


class AlreadyExistsError(PoolbridgeError, FileExistsError):
    """The name is taken."""

    code = "exists"


class PoolLimitError(MemoryError, PoolbridgeError):
    """A limit of the pool, session, user, channel or service would be exceeded; the message names the limit."""

    code = "limit"


class DeviceMemoryError(MemoryError, PoolbridgeError):
    """The device or the machine is out of memory."""

    code = "memory"


class AccessDeniedError(PoolbridgeError, PermissionError):
    """The user that this process runs as may not do the operation."""

    code = "denied"


class WaitTimeoutError(PoolbridgeError, TimeoutError):
    """The call waited for something that did not happen within the time limit."""

    code = "timeout"


class BusyError(PoolbridgeError, TimeoutError):
    """Another lease on the buffer excludes this lease, and did not end within the time limit."""

    code = "busy"


class RequestCancelledError(PoolbridgeError, RuntimeError):
    """The client cancelled the request while the request waited at the service."""

    code = "cancelled"


class LeaseReleasedError(PoolbridgeError, ValueError):
    """The lease has ended; another client may use the memory now."""

    code = "released"


class FrameSettledError(PoolbridgeError, ValueError):
    """The frame was acknowledged or requeued already. The error's text says what did this, for example `ack()`."""

    code = "settled"


class LeaseInUseError(PoolbridgeError, BufferError):
    """The lease cannot be released: arrays made from the lease are alive, or may be alive."""


class StaleError(PoolbridgeError, LookupError):
    """The id is of a buffer or timeline that is gone or hidden from this user, or of another run of the service."""

    code = "stale"


class MetadataMismatchError(PoolbridgeError, LookupError):
    """The metadata of a name's content differs from ``expect=``, for example because it is of another model."""


class ContentFailedError(PoolbridgeError, RuntimeError):
    """The content of the buffer will never be complete. The message has the reason, if the producer reported one."""

    code = "content-failed"


class ProducerDiedError(ContentFailedError):
    """The process that wrote the buffer died, or released its lease, before the content was complete."""

    code = "failed"


class FrameCorruptError(ContentFailedError):
    """What a producer wrote about a frame cannot be true, so only this frame cannot be used."""


class ClosedError(PoolbridgeError, ConnectionError):
    """The channel or publisher was closed, the pool is being destroyed, or the service is shutting down."""

    code = "closed"


class NoProducersError(ClosedError):
    """Every producer of the channel has left without closing it, and ``subscribe(no_producers="fail")`` was asked."""


class ClientClosedError(ClosedError):
    """The client was closed."""


class ConnectionLostError(ClosedError):
    """The service closed the connection or went away."""


class ServiceNotRunningError(PoolbridgeError, ConnectionError):
    """No service listens at the socket; the message says where the client looked and how to start the service."""


class ServiceStartTimeoutError(ServiceNotRunningError, WaitTimeoutError):
    """No service listened at the socket within the time that ``connect(wait=…)`` or ``serve(timeout=…)`` allows."""

    code = "timeout"


class ServiceStartError(ServiceNotRunningError):
    """The service could not be started, or ended before it was ready; the message has what the service printed."""


class ServiceProgramError(ServiceStartError, FileNotFoundError):
    """There is no ``poolsvc`` to start; the message says where the client looked, and what to do."""


class SocketInUseError(ServiceStartError):
    """Another service listens at the socket already."""


class SocketFolderError(ServiceStartError):
    """No socket or log can be made in the folder: it is not writable, other users can write it, or the disk is full."""


class ServiceStalledError(PoolbridgeError, TimeoutError):
    """The service keeps the connection open but does not answer in time."""


class UnavailableError(PoolbridgeError, RuntimeError):
    """The operation is not possible on this machine or in this process; the message says what is missing."""

    code = "unavailable"


class DeviceNotVisibleError(UnavailableError):
    """The memory is on a GPU that this process cannot see."""


class EventUnavailableError(UnavailableError):
    """An interprocess event cannot be opened or made in this process; the message has the reason if it is known."""


class OwnerDiedError(UnavailableError):
    """The process that owns the memory is gone, and the memory's legacy handle is no longer valid."""


class PeerAccessError(UnavailableError):
    """A GPU cannot reach the memory of another GPU; the message names both GPUs."""


class SecondContextError(UnavailableError):
    """The driver cannot open a legacy handle: the current CUDA context is not the device's primary context."""


class StreamCaptureError(PoolbridgeError, RuntimeError):
    """The program captures a stream's work into a CUDA graph, and the call is not possible now. It had no effect.

    CUDA forbids the call during the capture, or the call needs a fence that the stream cannot write during the capture.
    End the capture, and call again.
    """


class DriverError(PoolbridgeError, RuntimeError):
    """The CUDA driver refused a call; the message names the call and the driver's result."""


class ForkError(PoolbridgeError, RuntimeError):
    """A forked child used a client or lease of its parent; the child must connect to the service itself."""


class InternalError(PoolbridgeError, RuntimeError):
    """The service reports a fault of its own."""

    code = "internal"


class ReadOnlyWarning(UserWarning):
    """Warns once in each process that an array library got read-only memory, and may try to write this memory."""
