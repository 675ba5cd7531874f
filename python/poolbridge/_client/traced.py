"""Contains the classes that a client with a tracer uses. Their methods call the tracer.

Each class is a subclass of the class that a client without a tracer uses. A client without a tracer does not use this
module's classes, so tracing costs such a client nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, ClassVar, TypeVar, cast

from poolbridge._client.aclient import AsyncClient
from poolbridge._client.borrowed import AsyncBorrowedArrays, BorrowedArrays
from poolbridge._client.channel import AsyncChannel, Channel
from poolbridge._client.client import Client
from poolbridge._client.entries import PoolInfo
from poolbridge._client.frame import AsyncFrame, Frame
from poolbridge._client.lease import AsyncLease, Lease
from poolbridge._client.publisher import AsyncPublisher, Publisher
from poolbridge._client.subscription import AsyncSubscription, Subscription
from poolbridge._client.tracing import Operation

_F = TypeVar("_F", bound=Callable[..., Any])


def _nothing(_operation: Operation, _of: Any, _result: Any) -> None:
    """Do nothing, for operations that have no results to write into the `Operation`."""


def _traced(method: _F, begin: Callable[..., Operation], end: Callable[[Operation, Any, Any], None] = _nothing) -> _F:
    """Return a method that calls `method` in a ``with`` block of the tracer's context manager; see `Tracer.trace`.

    Parameters
    ----------
    method
        The method of the usual class, which calls no tracer. The method may be a coroutine function.
    begin
        A function that makes the `Operation` from the arguments of the call.
    end
        A function that writes the results into the `Operation`. The other arguments are the object whose method was
        called, and the value that `method` returned.
    """

    def arguments(operation: Operation, given: dict[str, Any]) -> dict[str, Any]:
        return given if operation.name != "publish" or operation.meta is None else {**given, "meta": operation.meta}

    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def call_async(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            operation, ended = begin(self, *args, **kwargs), None
            operation.concurrent = True
            with _tracer(self).trace(operation):
                try:
                    result = await method(self, *args, **arguments(operation, kwargs))
                    end(operation, self, result)
                except StopAsyncIteration as stop:  # the end of the iteration is no error of the operation
                    ended = stop
            if ended is not None:
                try:
                    raise ended
                finally:
                    del ended  # its traceback refers to this stack frame
            return result

        return cast("_F", call_async)

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        operation, ended = begin(self, *args, **kwargs), None
        with _tracer(self).trace(operation):
            try:
                result = method(self, *args, **arguments(operation, kwargs))
                end(operation, self, result)
            except StopIteration as stop:
                ended = stop
        if ended is not None:
            try:
                raise ended
            finally:
                del ended
        return result

    return cast("_F", call)


def _tracer(of: Any) -> Any:
    """Return the tracer of a client, or of an object that belongs to a client."""
    state = getattr(of, "_lease_state", None)
    return (of._session if state is None else state.session).tracer  # noqa: SLF001 - of one family


# Operations, and their results


def _allocates(client: Any, *_args: Any, pool: PoolInfo | str | None = None, **_options: Any) -> Operation:
    chosen = client._default_pool if pool is None else pool  # noqa: SLF001
    return Operation("allocate", pool=chosen.name if isinstance(chosen, PoolInfo) else chosen)


def _gets(_client: Any, name: str, *_args: Any, **_options: Any) -> Operation:
    return Operation("get", buffer=name)


def _leases(_client: Any, *_args: Any, **_options: Any) -> Operation:
    return Operation("lease")


def _puts(client: Any, array: Any, name: str, *, pool: PoolInfo | str | None = None, **_options: Any) -> Operation:
    operation = _allocates(client, pool=pool)
    operation.name, operation.buffer, operation.nbytes = "publish", name, _bytes_of(array)
    return operation


def _leased(operation: Operation, _client: Any, lease: Any) -> None:
    operation.pool, operation.buffer, operation.nbytes = lease.pool, lease.name, lease.nbytes


def _names(lease: Any, name: str, **_options: Any) -> Operation:
    return Operation("publish", pool=lease.pool, buffer=name, nbytes=lease.nbytes)


def _releases(lease: Any, **_options: Any) -> Operation:
    return Operation("release", pool=lease.pool, buffer=lease.name, nbytes=lease.nbytes)


def _releases_frame(frame: Any, *_args: Any, **_options: Any) -> Operation:
    channel = frame._consumer.channel.name  # noqa: SLF001
    return Operation("release", channel=channel, pool=frame.pool, nbytes=frame.nbytes, seq=frame.seq)


def _publishes(channel: Any, array: Any, *, meta: Mapping[str, str] | None = None, **_options: Any) -> Operation:
    texts = _texts_of(meta)
    return Operation("publish", channel=channel.name, pool=channel.pool, nbytes=_bytes_of(array), meta=texts)


def _texts_of(meta: Any) -> dict[str, str] | None:
    """Return the texts to which the tracer may add; None if `meta` is no mapping, which the operation then refuses."""
    return {} if meta is None else dict(meta) if isinstance(meta, Mapping) else None


def _published(operation: Operation, _channel: Any, number: int) -> None:
    operation.seq = number


def _loans(publisher: Any, *_args: Any, **_options: Any) -> Operation:
    return Operation("allocate", channel=publisher._channel.name, nbytes=publisher._description.nbytes)  # noqa: SLF001


def _publishes_loan(publisher: Any, *, meta: Mapping[str, str] | None = None, **_options: Any) -> Operation:
    operation = _loans(publisher)
    operation.name, operation.meta = "publish", _texts_of(meta)
    return operation


def _receives(of: Any, *_args: Any, **_options: Any) -> Operation:
    channel = of._consumer.channel if of._consumer is not None else None  # noqa: SLF001
    return Operation("receive", channel=channel.name if channel is not None else None)


def _receives_async(subscription: Any, *_args: Any, **_options: Any) -> Operation:
    return Operation("receive", channel=subscription._name)  # noqa: SLF001


def _received(operation: Operation, _subscription: Any, frame: Any) -> None:
    if frame is not None:
        operation.pool, operation.nbytes = frame.pool, frame.nbytes
        operation.seq, operation.dropped, operation.meta = frame.seq, frame.dropped, frame.meta


def _borrowed(operation: Operation, arrays: Any, array: Any) -> None:
    operation.channel, operation.nbytes = arrays._consumer.channel.name, _bytes_of(array)  # noqa: SLF001
    operation.seq, operation.dropped, operation.meta = arrays.seq, arrays.dropped, arrays.meta


def _bytes_of(array: Any) -> int | None:
    nbytes = getattr(array, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else None


# Blocking


class TracedLease(Lease):
    """A lease of a client with a tracer."""

    publish = _traced(Lease.publish, _names)
    release = _traced(Lease.release, _releases)


class TracedFrame(Frame):
    """A frame of a client with a tracer."""

    _lease_type: ClassVar = TracedLease

    release = _traced(Frame.release, _releases_frame)
    _exit = _traced(Frame.__exit__, _releases_frame)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.released:
            self._exit(kind, error, trace)


class TracedPublisher(Publisher):
    """A publisher of a client with a tracer."""

    loan = _traced(Publisher.loan, _loans)
    _publish = _traced(Publisher.publish, _publishes_loan, _published)

    def publish(
        self, meta: Mapping[str, str] | None = None, *, timeout: float | None = None, stream: Any = None
    ) -> int:
        """See `Publisher.publish`."""
        return self._publish(meta=meta, timeout=timeout, stream=stream)


class TracedChannel(Channel):
    """A channel of a client with a tracer."""

    _publisher_type: ClassVar = TracedPublisher

    publish = _traced(Channel.publish, _publishes, _published)


class TracedArrays(BorrowedArrays):
    """Borrowed arrays of a client with a tracer."""

    __next__ = _traced(BorrowedArrays.__next__, _receives, _borrowed)


class TracedSubscription(Subscription):
    """A subscription of a client with a tracer."""

    _frame_type: ClassVar = TracedFrame
    _arrays_type: ClassVar = TracedArrays

    _take = _traced(Subscription._take, _receives, _received)  # noqa: SLF001


class TracedClient(Client):
    """A client with a tracer."""

    _lease_type: ClassVar = TracedLease
    _channel_type: ClassVar = TracedChannel
    _subscription_type: ClassVar = TracedSubscription

    allocate = _traced(Client.allocate, _allocates, _leased)
    get = _traced(Client.get, _gets, _leased)
    lease = _traced(Client.lease, _leases, _leased)
    put = _traced(Client.put, _puts, _leased)


# Asynchronous


class TracedAsyncLease(AsyncLease):
    """A lease of an asyncio client with a tracer."""

    publish = _traced(AsyncLease.publish, _names)
    release = _traced(AsyncLease.release, _releases)


class TracedAsyncFrame(AsyncFrame):
    """A frame of an asyncio client with a tracer."""

    _lease_type: ClassVar = TracedAsyncLease

    release = _traced(AsyncFrame.release, _releases_frame)
    _exit = _traced(AsyncFrame.__aexit__, _releases_frame)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.released:
            await self._exit(kind, error, trace)


class TracedAsyncPublisher(AsyncPublisher):
    """A publisher of an asyncio client with a tracer."""

    loan = _traced(AsyncPublisher.loan, _loans)
    _publish = _traced(AsyncPublisher.publish, _publishes_loan, _published)

    async def publish(
        self, meta: Mapping[str, str] | None = None, *, timeout: float | None = None, stream: Any = None
    ) -> int:
        """See `AsyncPublisher.publish`."""
        return await self._publish(meta=meta, timeout=timeout, stream=stream)


class TracedAsyncChannel(AsyncChannel):
    """A channel of an asyncio client with a tracer."""

    _publisher_type: ClassVar = TracedAsyncPublisher

    publish = _traced(AsyncChannel.publish, _publishes, _published)


class TracedAsyncArrays(AsyncBorrowedArrays):
    """Borrowed arrays of an asyncio client with a tracer."""

    __anext__ = _traced(AsyncBorrowedArrays.__anext__, _receives, _borrowed)


class TracedAsyncSubscription(AsyncSubscription):
    """A subscription of an asyncio client with a tracer."""

    _frame_type: ClassVar = TracedAsyncFrame
    _arrays_type: ClassVar = TracedAsyncArrays

    receive = _traced(AsyncSubscription.receive, _receives_async, _received)


class TracedAsyncClient(AsyncClient):
    """An asyncio client with a tracer."""

    _lease_type: ClassVar = TracedAsyncLease
    _channel_type: ClassVar = TracedAsyncChannel
    _subscription_type: ClassVar = TracedAsyncSubscription

    allocate = _traced(AsyncClient.allocate, _allocates, _leased)
    get = _traced(AsyncClient.get, _gets, _leased)
    lease = _traced(AsyncClient.lease, _leases, _leased)
    put = _traced(AsyncClient.put, _puts, _leased)
