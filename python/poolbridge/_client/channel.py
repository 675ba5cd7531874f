"""Defines channels: through a channel, producers publish buffers as frames, and consumers take the frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Never, cast

from poolbridge._client import channel_operations as _channel_operations, operations as _operations
from poolbridge._client.copies import Copies, describe_frame
from poolbridge._client.frame import AsyncFrame, Frame
from poolbridge._client.publisher import AsyncPublisher, Publisher
from poolbridge._client.shown import html_of
from poolbridge._client.tracing import Operation, bytes_of, meta_of, published, traced
from poolbridge._session.consumer import claim, map_claimed, receive
from poolbridge.errors import (
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
)

if TYPE_CHECKING:
    from poolbridge._session.flow import AsyncRun, Flow, Run
    from poolbridge._session.session import Session
    from poolbridge._sys.literals import ChannelMode, FullPolicy
    from poolbridge._wire import messages as _messages
    from poolbridge._wire.meta import MetaValue


def _publishes(channel: BaseChannel, array: Any, *, meta: Mapping[str, MetaValue] | None, **_options: Any) -> Operation:
    nbytes, copy = bytes_of(array), meta_of(meta)
    return Operation("publish", channel=channel.name, pool=channel.pool, nbytes=nbytes, meta=copy)


class BaseChannel:
    """A named channel for buffers of one pool. A client makes channels; programs do not call the class."""

    def __init__(self, session: Session, run: Any, info: _messages.ChannelIdentity, pool: str) -> None:
        self._session = session
        self._run = run
        self._info = info
        self._pool_name = pool
        self._copies = Copies(session, info)

    @traced(_publishes, published)
    def _publish(
        self, array: Any, *, meta: Mapping[str, MetaValue] | None, timeout: float | None, stream: Any, event: Any
    ) -> Flow[int]:
        return _channel_operations.publish(
            self._session, self._info, self._copies, array, meta=meta, timeout=timeout, stream=stream, event=event
        )

    def _latest(self, timeout: float | None, frame: type[Frame | AsyncFrame]) -> Flow[Any]:
        seconds = _operations.check_timeout(timeout)
        if self.mode != "broadcast":
            raise InvalidArgumentError(
                f"channel {self.name!r} is a queue, whose frames are each for one consumer: subscribe to take them, or "
                "publish what is only looked at in a broadcast, too"
            )
        consumer = yield from _channel_operations.subscribe(
            self._session, self._info, credit=1, oldest=False, full="latest", ack="auto", no_producers="wait"
        )
        try:
            native = consumer.at_once() or (yield from receive(consumer, seconds))
            if native is None:
                raise ClosedError(f"channel {self.name!r} was closed")
            state = claim(consumer, native) or (yield from map_claimed(consumer, native))
            return frame(self._run, state, consumer, native)
        finally:
            consumer.native.offered = None
            self._session.unsubscribe(consumer)

    @property
    def id(self) -> int:
        """The channel's id, which stays unique until the service is restarted."""
        return self._info.id

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._info.name

    @property
    def pool(self) -> str:
        """Name of the pool whose buffers the channel carries."""
        return self._pool_name

    @property
    def mode(self) -> ChannelMode:
        """``"broadcast"``: every subscriber gets every frame. ``"queue"``: each frame goes to one subscriber."""
        return cast("ChannelMode", self._info.mode)

    @property
    def capacity(self) -> int:
        """How many frames the channel keeps at most."""
        return self._info.capacity

    @property
    def full(self) -> FullPolicy:
        """What happens when the channel is full: ``"block"``, ``"drop-oldest"``, ``"latest"`` or ``"fail"``.

        `Client.create_channel` says what each word means.
        """
        return cast("FullPolicy", self._info.full)

    @property
    def max_deliveries(self) -> int | None:
        """How often subscribers of a queue get a frame that none of them acknowledges; None: without end."""
        return self._info.max_deliveries or None

    def _no_block(self, *_error: object) -> Never:
        raise TypeError(
            "a channel is no context manager, because its close() ends it for all clients, also after an exception: "
            "call channel.close() after the last frame; `with` is for clients, subscriptions and publishers"
        )

    __enter__ = __exit__ = __aenter__ = __aexit__ = _no_block

    def __reduce__(self) -> Never:
        raise TypeError(
            "a channel cannot be copied or sent to another process: send the client and channel.name, for "
            "client.open_channel(name)"
        )

    def __repr__(self) -> str:
        return (
            f"<poolbridge.{type(self).__name__} {self.name!r}, {self.mode} of {self.capacity} frames, "
            f"full: {self.full}, pool {self.pool!r}>"
        )

    def _repr_html_(self) -> str:
        attributes = ("name", "mode", "capacity", "full", "pool")
        return html_of((name, str(getattr(self, name))) for name in attributes)


def info_of(channel: BaseChannel) -> _messages.ChannelIdentity:
    """Return the service's description of a channel, for modules of this package only."""
    return channel._info  # noqa: SLF001 - of one family


def check_service(channel: BaseChannel, session: Session) -> None:
    """Raise an error if a channel is of another service than a session."""
    if channel._session.core.epoch != session.core.epoch:  # noqa: SLF001 - of one family
        raise InvalidArgumentError(f"channel {channel.name!r} is of another service: pass its name, or open it here")


class Channel(BaseChannel):
    """A channel of a blocking `Client`. Thread-safe."""

    _run: Run

    def publish(
        self,
        array: Any,
        meta: Mapping[str, MetaValue] | None = None,
        *,
        timeout: float | None = None,
        stream: Any = None,
        event: Any = None,
    ) -> int:
        """Publish an array, or a dict of arrays, as the channel's next frame.

        If `array` is a write lease of the channel's pool, or an array in the memory of such a lease, the call transfers
        the buffer to the channel without a copy. The transfer ends the lease, and the program must not use the lease's
        arrays any more; `Lease.publish` says which arrays become read-only. An array of an arena is shared without a
        copy if it has at least 64 KiB: see `Client.arena`. Any other array is copied once, on the GPU if the array is
        on the GPU. If copies with the same shape and dtype follow each other within a second, the channel keeps a
        publisher for them, so that only the first one asks the service for memory. The call does not wait for work that
        is queued on the GPU: the consumers' streams wait for this work. Only for work of streams that poolbridge does
        not know, the call itself waits; see `BaseLease.used_on`.

        Parameters
        ----------
        array
            A lease, a NumPy array, or an array of any library that has DLPack or ``__cuda_array_interface__``. Or a
            dict of such arrays, each with its name (1 to 255 bytes of UTF-8 without control characters), or a frame of
            several arrays: they are copied into one frame, and ``frame[name]`` is one of them. A frame has at most
            1,024 arrays, whose names, dtypes and shapes have at most 65,536 bytes.
        meta
            A map for the consumers, which is sent as MessagePack. Keys are str; values are str, int (64 bits), float,
            bool, bytes, None, and lists and dicts of these, at most 8 deep and 8,320 bytes in all. Scalars of NumPy are
            sent as Python's numbers, tuples as lists.
        timeout
            Seconds to wait for a free place in the channel and, if the array is copied, for free memory in the pool; 0:
            do not wait; None, the default: no limit.
        stream
            The stream that writes the content, as a stream handle, or a stream object of CuPy, PyTorch or cuda.core.
            Pass it if DLPack has made no array of the lease for this stream. For an array that is copied: the stream
            whose work completes the array.
        event
            An interprocess event that was recorded after all work on the content, for consumers that use such events;
            see `Lease.publish`. The frame has a fence too. An event is possible only for an array that is not copied.

        Returns
        -------
        int
            The frame's number in the channel, counted from 1.

        Raises
        ------
        WaitTimeoutError
            The channel stayed full for `timeout` seconds; the message says who is behind. The lease stays valid.
        PoolLimitError
            The channel is full and its policy is ``"fail"``, or the pool has not enough memory for a copy. The lease
            stays valid.
        DeviceMemoryError
            The device has not enough memory for a copy.
        ClosedError
            The channel was closed. The lease stays valid.
        LeaseReleasedError
            `array` is a lease that has ended, or is in memory that was published before: what the program writes there
            would be in the earlier frame. Make an array of a new lease for each frame, or use `publisher`.
        InvalidArgumentError
            `array` is no array (a tuple of arrays is no array, either; a dict of arrays is possible), `meta` cannot be
            sent, `event` is no interprocess event, or there is an `event` and the array has to be copied.
        """
        if self._session.tracer is not None:
            return self._run(self._publish(array, meta=meta, timeout=timeout, stream=stream, event=event))
        flow = _channel_operations.publish(
            self._session, self._info, self._copies, array, meta=meta, timeout=timeout, stream=stream, event=event
        )
        return self._run(flow)

    def publisher(
        self,
        shape: int | Iterable[int] | Mapping[str, tuple[int | Iterable[int], Any]],
        dtype: Any = "float32",
        *,
        wrap: Callable[[Any], Any] | None = None,
    ) -> Publisher:
        """Make a publisher of frames of one shape and dtype. A publisher is the fastest way to publish.

        The publisher divides one large buffer, its arena, into chunks. It makes one array for each and uses that array
        for all frames in the chunk. If the memory is on a GPU, streams of the GPU write the arrays. A consumer can use
        `Subscription.arrays`, which also makes one array for each chunk. The publisher gives its memory back when it
        made no loan and published nothing for a second and all its frames have come back, or when another client needs
        memory of the pool; the next loan takes memory again.

        Parameters
        ----------
        shape, dtype
            Shape and element type of every frame; see `Client.allocate`. For frames of several arrays, `shape` is a
            dict with a shape and an element type for each name, such as ``{"image": ((480, 640, 3), "uint8"), "label":
            ((), "int64")}``; then `Publisher.loan` returns a dict of arrays.
        wrap
            A function that makes an array from a lease, such as ``torch.from_dlpack``; None: `numpy.asarray`, for
            memory of the CPU.

        Returns
        -------
        Publisher
            The publisher.

        Raises
        ------
        InvalidArgumentError
            The shape or dtype is not possible.
        """
        return Publisher(self._session, self._run, self._info, describe_frame(shape, dtype), wrap)

    def wait_for_consumers(self, n: int = 1, timeout: float | None = None) -> None:
        """Wait until at least `n` consumers have joined the channel. They get every frame that is published afterwards.

        Parameters
        ----------
        n
            Number of consumers, 1 to 1,024. Those that have left do not count.
        timeout
            Seconds to wait; 0: do not wait; None, the default: no limit.

        Raises
        ------
        WaitTimeoutError
            The channel had fewer consumers during all this time; the message says how many.
        ClosedError
            The channel was closed.
        InvalidArgumentError
            `n` or `timeout` is out of range.
        """
        self._run(_channel_operations.wait_for_consumers(self._info, n, timeout))

    def latest(self, timeout: float | None = None) -> Frame:
        """Take the newest frame of a broadcast, also if this client has taken the frame before.

        The call subscribes for one frame: for every frame, or for frames in a loop, use `Client.subscribe`.

        Parameters
        ----------
        timeout
            Seconds to wait for the first frame; 0: do not wait; None, the default: no limit.

        Returns
        -------
        Frame
            The frame.

        Raises
        ------
        WaitTimeoutError
            No frame came within `timeout`.
        ContentFailedError
            The frame's content will never be complete.
        InvalidArgumentError
            The channel is a queue, or `timeout` is out of range.
        ClosedError
            The channel was closed.
        PoolLimitError
            See `Client.subscribe`.
        """
        frame: Frame = self._run(self._latest(timeout, Frame))
        return frame

    def close(self) -> None:
        """Close the channel for all clients. Subscribers still get the frames that were published before.

        A `publish` that waits for a free place raises `ClosedError`. Frames of a broadcast are lost if the channel has
        no subscriber. A queue waits until every frame is acknowledged: workers can still subscribe to it by its name.
        If it has no subscriber for ten minutes, its frames are lost, and the service notes the event ``frame-lost``
        (``poolsvc serve --limit closed-queue-seconds=N`` changes this time).

        The call does nothing if the channel was closed before, or if the channel's pool was destroyed.

        Raises
        ------
        AccessDeniedError
            Another user made the channel.
        """
        try:
            self._run(_channel_operations.close(self._session, self._info))
        except (NotFoundError, ClosedError):
            pass  # another client has closed the channel, or the channel is gone


class AsyncChannel(BaseChannel):
    """A channel of an `AsyncClient`."""

    _run: AsyncRun

    async def publish(
        self,
        array: Any,
        meta: Mapping[str, MetaValue] | None = None,
        *,
        timeout: float | None = None,
        stream: Any = None,
        event: Any = None,
    ) -> int:
        """Publish an array as the channel's next frame; see `Channel.publish`."""
        return await self._run(self._publish(array, meta=meta, timeout=timeout, stream=stream, event=event))

    def publisher(
        self,
        shape: int | Iterable[int] | Mapping[str, tuple[int | Iterable[int], Any]],
        dtype: Any = "float32",
        *,
        wrap: Callable[[Any], Any] | None = None,
    ) -> AsyncPublisher:
        """Make a publisher of frames of one shape; see `Channel.publisher`."""
        return AsyncPublisher(self._session, self._run, self._info, describe_frame(shape, dtype), wrap)

    async def wait_for_consumers(self, n: int = 1, timeout: float | None = None) -> None:
        """Wait until at least `n` consumers have joined the channel; see `Channel.wait_for_consumers`."""
        await self._run(_channel_operations.wait_for_consumers(self._info, n, timeout))

    async def latest(self, timeout: float | None = None) -> AsyncFrame:
        """Take the newest frame of a broadcast; see `Channel.latest`."""
        frame: AsyncFrame = await self._run(self._latest(timeout, AsyncFrame))
        return frame

    async def close(self) -> None:
        """Close the channel for all clients; see `Channel.close`."""
        try:
            await self._run(_channel_operations.close(self._session, self._info))
        except (NotFoundError, ClosedError):
            pass  # see `Channel.close`
