"""GPU memory that one process owns and many processes use, without a copy.

The service, ``poolsvc serve``, owns pools of memory. `connect` gives a `Client`, which leases buffers from the pools.
NumPy, CuPy, PyTorch, JAX and Numba take a `Lease` as an array, as in ``np.asarray(lease)``, and use its memory without
a copy. One process writes a lease and publishes it::

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
poolbridge are subclasses of `PoolbridgeError`. ``help(poolbridge.Client)`` shows the documentation of one name.
"""

import typing as _typing

from poolbridge._array.leaseview import LeaseView as LeaseView
from poolbridge._client.aclient import AsyncClient as AsyncClient
from poolbridge._client.aconnect import connect_async as connect_async
from poolbridge._client.arena import Arena as Arena, AsyncArena as AsyncArena, BaseArena as BaseArena
from poolbridge._client.borrowed import AsyncBorrowedArrays as AsyncBorrowedArrays, BorrowedArrays as BorrowedArrays
from poolbridge._client.channel import AsyncChannel as AsyncChannel, Channel as Channel
from poolbridge._client.client import Client as Client
from poolbridge._client.connect import connect as connect
from poolbridge._client.entries import (
    BufferInfo as BufferInfo,
    ChannelInfo as ChannelInfo,
    HistoryEvent as HistoryEvent,
    LeaseInfo as LeaseInfo,
    MemberInfo as MemberInfo,
    NameInfo as NameInfo,
    PoolInfo as PoolInfo,
    PoolStats as PoolStats,
    ServiceStats as ServiceStats,
    SessionInfo as SessionInfo,
)
from poolbridge._client.frame import AsyncFrame as AsyncFrame, Frame as Frame
from poolbridge._client.lease import AsyncLease as AsyncLease, BaseLease as BaseLease, Lease as Lease
from poolbridge._client.paths import default_path as default_path
from poolbridge._client.promise import Promise as Promise
from poolbridge._client.publisher import AsyncPublisher as AsyncPublisher, Publisher as Publisher
from poolbridge._client.serve import Service as Service, serve as serve
from poolbridge._client.session_stats import (
    ChannelCounts as ChannelCounts,
    SessionStats as SessionStats,
    Waits as Waits,
)
from poolbridge._client.subscription import AsyncSubscription as AsyncSubscription, Subscription as Subscription
from poolbridge._client.tracing import (
    NvtxTracer as NvtxTracer,
    OpenTelemetryTracer as OpenTelemetryTracer,
    Operation as Operation,
    Tracer as Tracer,
)
from poolbridge._memory.legacyhandle import LegacyHandle as LegacyHandle, OpenedMemory as OpenedMemory
from poolbridge._order.event import Event as Event
from poolbridge._sys.literals import (
    AckMode as AckMode,
    ChannelMode as ChannelMode,
    FullPolicy as FullPolicy,
    Kind as Kind,
    Library as Library,
    NoProducers as NoProducers,
)
from poolbridge._sys.version import version as _version
from poolbridge._wire.meta import MetaValue as MetaValue
from poolbridge.errors import (
    AccessDeniedError as AccessDeniedError,
    AlreadyExistsError as AlreadyExistsError,
    BusyError as BusyError,
    ClientClosedError as ClientClosedError,
    ClosedError as ClosedError,
    ConnectionLostError as ConnectionLostError,
    ContentFailedError as ContentFailedError,
    DeviceMemoryError as DeviceMemoryError,
    DeviceNotVisibleError as DeviceNotVisibleError,
    DriverError as DriverError,
    EventUnavailableError as EventUnavailableError,
    ForkError as ForkError,
    FrameCorruptError as FrameCorruptError,
    FrameSettledError as FrameSettledError,
    InternalError as InternalError,
    InvalidArgumentError as InvalidArgumentError,
    LeaseInUseError as LeaseInUseError,
    LeaseReleasedError as LeaseReleasedError,
    MetadataMismatchError as MetadataMismatchError,
    NoProducersError as NoProducersError,
    NotFoundError as NotFoundError,
    OwnerDiedError as OwnerDiedError,
    PeerAccessError as PeerAccessError,
    PoolbridgeError as PoolbridgeError,
    PoolLimitError as PoolLimitError,
    ProducerDiedError as ProducerDiedError,
    ProtocolError as ProtocolError,
    ReadOnlyWarning as ReadOnlyWarning,
    RequestCancelledError as RequestCancelledError,
    SecondContextError as SecondContextError,
    ServiceNotRunningError as ServiceNotRunningError,
    ServiceProgramError as ServiceProgramError,
    ServiceStalledError as ServiceStalledError,
    ServiceStartError as ServiceStartError,
    ServiceStartTimeoutError as ServiceStartTimeoutError,
    SocketFolderError as SocketFolderError,
    SocketInUseError as SocketInUseError,
    StaleError as StaleError,
    StreamCaptureError as StreamCaptureError,
    UnavailableError as UnavailableError,
    UnsupportedError as UnsupportedError,
    VersionError as VersionError,
    WaitTimeoutError as WaitTimeoutError,
)

if _typing.TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name):  # noqa: ANN001, ANN202 - hidden from type checkers, for which there are no other names
        if name != "__version__":
            raise AttributeError(f"module 'poolbridge' has no attribute {name!r}")
        return _version()
