"""GPU memory that one process owns and many processes use, without a copy.

The service, ``poolsvc serve``, owns pools of memory. `connect` gives a `Client`, which leases buffers from the pools. A
`Lease` is an array: NumPy, CuPy, PyTorch, JAX and Numba use its memory in place. One process writes and publishes it::

    import numpy as np
    import poolbridge

    with poolbridge.connect() as client:
        client.create_pool("frames", kind="host", max_bytes="16MiB", exist_ok=True)
        lease = client.allocate((480, 640), "float32")
        np.asarray(lease)[:] = 1.0
        lease.publish("frame", keep=True, replace=True)

Another process uses the same memory::

    with poolbridge.connect() as client:
        array = client.get_array("frame")

A `Channel` carries a stream of buffers from producers to consumers::

    channel = client.create_channel("camera")  # in the producer
    channel.publish(np.ones((480, 640), "float32"))
    for frame in client.subscribe("camera"):  # in each consumer
        print(np.asarray(frame).mean())

`serve` runs a service for one script, notebook or test. `connect_async` gives an `AsyncClient` for asyncio. Errors of
poolbridge are `PoolbridgeError`. ``help(poolbridge.connect)``, ``help(poolbridge.Client)`` and so on show one name.
"""

import typing as _typing

from poolbridge._array.leaseview import LeaseView
from poolbridge._client.aclient import AsyncClient, connect_async
from poolbridge._client.borrowed import AsyncBorrowedArrays, BorrowedArrays
from poolbridge._client.channel import AsyncChannel, Channel
from poolbridge._client.client import Client
from poolbridge._client.connect import connect
from poolbridge._client.frame import AsyncFrame, Frame
from poolbridge._client.lease import AsyncLease, BaseLease, Lease
from poolbridge._client.listing import BufferInfo, ChannelInfo, HistoryEvent, LeaseInfo, NameInfo, SessionInfo
from poolbridge._client.paths import default_path
from poolbridge._client.pool import Pool, PoolStats, ServiceStats
from poolbridge._client.promise import Promise
from poolbridge._client.publisher import AsyncPublisher, Publisher
from poolbridge._client.serve import Service, serve
from poolbridge._client.subscription import AsyncSubscription, Subscription
from poolbridge._memory.legacyhandle import LegacyHandle, OpenedMemory
from poolbridge._order.event import Event
from poolbridge._sys.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BusyError,
    ClientClosedError,
    ClosedError,
    ConnectionLostError,
    DeviceMemoryError,
    DeviceNotVisibleError,
    DriverError,
    EventUnavailableError,
    ForkError,
    FrameSettledError,
    InternalError,
    InvalidArgumentError,
    LeaseInUseError,
    LeaseReleasedError,
    NotFoundError,
    OwnerDiedError,
    PeerAccessError,
    PoolbridgeError,
    PoolLimitError,
    ProducerDiedError,
    ProtocolError,
    ReadOnlyWarning,
    RequestCancelledError,
    SecondContextError,
    ServiceNotRunningError,
    ServiceProgramError,
    ServiceStalledError,
    ServiceStartError,
    ServiceStartTimeoutError,
    SocketFolderError,
    SocketInUseError,
    StaleError,
    UnavailableError,
    UnsupportedError,
    VersionError,
    WaitTimeoutError,
)
from poolbridge._sys.literals import AckMode, ChannelMode, FullPolicy, Kind, Library
from poolbridge._sys.release import release as _release

if _typing.TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name):  # noqa: ANN001, ANN202 - hidden from type checkers, for which there are no other names
        if name != "__version__":
            raise AttributeError(f"module 'poolbridge' has no attribute {name!r}")
        return _release()


__all__ = [
    "AccessDeniedError",
    "AckMode",
    "AlreadyExistsError",
    "AsyncBorrowedArrays",
    "AsyncChannel",
    "AsyncClient",
    "AsyncFrame",
    "AsyncLease",
    "AsyncPublisher",
    "AsyncSubscription",
    "BaseLease",
    "BorrowedArrays",
    "BufferInfo",
    "BusyError",
    "Channel",
    "ChannelInfo",
    "ChannelMode",
    "Client",
    "ClientClosedError",
    "ClosedError",
    "ConnectionLostError",
    "DeviceMemoryError",
    "DeviceNotVisibleError",
    "DriverError",
    "Event",
    "EventUnavailableError",
    "ForkError",
    "Frame",
    "FrameSettledError",
    "FullPolicy",
    "HistoryEvent",
    "InternalError",
    "InvalidArgumentError",
    "Kind",
    "Lease",
    "LeaseInUseError",
    "LeaseInfo",
    "LeaseReleasedError",
    "LeaseView",
    "LegacyHandle",
    "Library",
    "NameInfo",
    "NotFoundError",
    "OpenedMemory",
    "OwnerDiedError",
    "PeerAccessError",
    "Pool",
    "PoolLimitError",
    "PoolStats",
    "PoolbridgeError",
    "ProducerDiedError",
    "Promise",
    "ProtocolError",
    "Publisher",
    "ReadOnlyWarning",
    "RequestCancelledError",
    "SecondContextError",
    "Service",
    "ServiceNotRunningError",
    "ServiceProgramError",
    "ServiceStalledError",
    "ServiceStartError",
    "ServiceStartTimeoutError",
    "ServiceStats",
    "SessionInfo",
    "SocketFolderError",
    "SocketInUseError",
    "StaleError",
    "Subscription",
    "UnavailableError",
    "UnsupportedError",
    "VersionError",
    "WaitTimeoutError",
    "__version__",
    "connect",
    "connect_async",
    "default_path",
    "serve",
]


def _sign() -> None:
    """Set ``__module__`` of the public classes and functions to ``poolbridge``, for tracebacks and pickles."""
    for name in __all__:
        value = globals().get(name)
        if str(getattr(value, "__module__", "")).startswith("poolbridge._"):
            value.__module__ = "poolbridge"


_sign()
