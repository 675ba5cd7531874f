"""Channels: named, bounded queues of buffers between producers and consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from poolbridge._client import channel_operations as _channel_operations
from poolbridge._client.publisher import AsyncPublisher, Publisher
from poolbridge._memory import tensor as _tensor
from poolbridge._sys.errors import ClosedError, NotFoundError

if TYPE_CHECKING:
    from poolbridge._session.flow import AsyncRun, Run
    from poolbridge._session.session import Session
    from poolbridge._sys.literals import ChannelMode, FullPolicy
    from poolbridge._wire import messages as _messages


class BaseChannel:
    """A named, bounded queue of buffers of one pool. Made by a client, never directly."""

    def __init__(self, info: _messages.Channel, pool: str) -> None:
        self._info = info
        self._pool_name = pool

    @property
    def id(self) -> int:
        """Never reused within one life of the service."""
        return self._info.id

    @property
    def name(self) -> str:
        """Its name."""
        return self._info.nm

    @property
    def pool(self) -> str:
        """Name of the pool whose buffers it carries."""
        return self._pool_name

    @property
    def mode(self) -> ChannelMode:
        """``"broadcast"``: every subscriber gets every frame. ``"queue"``: each frame goes to one."""
        return cast("ChannelMode", self._info.md)

    @property
    def capacity(self) -> int:
        """How many frames it keeps."""
        return self._info.cp

    @property
    def full(self) -> FullPolicy:
        """What happens when it is full: ``"block"``, ``"drop-oldest"``, ``"latest"`` or ``"fail"``."""
        return cast("FullPolicy", self._info.fl)

    def __repr__(self) -> str:
        return (
            f"<poolbridge.{type(self).__name__} {self.name!r}, {self.mode} of {self.capacity} frames, "
            f"full: {self.full}, pool {self.pool!r}>"
        )


def info_of(channel: BaseChannel) -> _messages.Channel:
    """Give what the service said of a channel, which is not for users."""
    return channel._info  # noqa: SLF001 - of one family


class Channel(BaseChannel):
    """A channel of a blocking `Client`. Thread-safe."""

    def __init__(self, session: Session, run: Run, info: _messages.Channel, pool: str) -> None:
        super().__init__(info, pool)
        self._session = session
        self._run = run

    def publish(
        self,
        array: Any,
        *,
        meta: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stream: Any = None,
        event: Any = None,
    ) -> int:
        """Put a frame into the channel.

        A write lease of the channel's pool, or an array that lives in one, is transferred as it is: the lease ends,
        and what was made from it must not be used any more; see `Lease.publish`. Any other array is copied once, on the
        GPU where it is on one. Work queued on the GPU is not waited for: consumers wait for it on their streams.

        Parameters
        ----------
        array
            A lease, or an array of any library that speaks DLPack or ``__cuda_array_interface__``, or NumPy's.
        meta
            What consumers are told about the frame: at most 16 texts by texts of at most 256 bytes each.
        timeout
            Seconds to wait for room in the channel, and in the pool for a copy; None: no limit.
        stream
            A stream that writes the content, besides those that arrays were made for by DLPack: a handle, or an
            object of CuPy, PyTorch or cuda.core. For an array that is copied, the stream that it is ready on.
        event
            For what is transferred as it is: an interprocess event, recorded after all work on it, for consumers who
            speak those; see `Lease.publish`. A fence says the same.

        Returns
        -------
        int
            The frame's number in the channel, counted from 1.

        Raises
        ------
        WaitTimeoutError
            The channel stayed full; the message names who is behind. The lease lives on.
        PoolLimitError
            The channel is full and is to fail, or there is no room for a copy. The lease lives on.
        ClosedError
            The channel was closed. The lease lives on.
        InvalidArgumentError
            It is no array, such as a tuple of arrays; the event is none for other processes; or the array has to be
            copied, which no event can go with.
        """
        flow = _channel_operations.publish(
            self._session,
            self._info,
            array,
            meta=meta,
            timeout=timeout,
            stream=stream,
            event=event,
        )
        return self._run(flow)

    def publisher(
        self, shape: int | Iterable[int], dtype: Any = "float32", *, wrap: Callable[[Any], Any] | None = None
    ) -> Publisher:
        """Make a publisher of frames of one shape, whose arrays are made once and used again: the fastest way to send.

        It is for memory of the CPU. ``subscribe(…).arrays()`` is its counterpart.

        Parameters
        ----------
        shape, dtype
            See `Client.allocate`.
        wrap
            Makes an array of a lease: ``torch.from_dlpack``, for example. Left out: `numpy.asarray`.

        Raises
        ------
        InvalidArgumentError
            A shape or dtype that cannot be.
        """
        return Publisher(self._session, self._run, self._info, _tensor.describe(shape, dtype), wrap)

    def close(self) -> None:
        """Close the channel for all: subscribers get the frames that were sent, and then the end.

        A `publish` that waits for room fails. Frames that nobody is subscribed to are gone. Nothing happens if the
        channel was closed before, or is gone with its pool or with the service.

        Raises
        ------
        AccessDeniedError
            Another user has made it.
        """
        try:
            self._run(_channel_operations.close(self._session, self._info))
        except (NotFoundError, ClosedError):
            pass  # by somebody else, or gone


class AsyncChannel(BaseChannel):
    """A channel of an `AsyncClient`."""

    def __init__(self, session: Session, run: AsyncRun, info: _messages.Channel, pool: str) -> None:
        super().__init__(info, pool)
        self._session = session
        self._run = run

    async def publish(
        self,
        array: Any,
        *,
        meta: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stream: Any = None,
        event: Any = None,
    ) -> int:
        """Put a frame into the channel; see `Channel.publish`."""
        flow = _channel_operations.publish(
            self._session,
            self._info,
            array,
            meta=meta,
            timeout=timeout,
            stream=stream,
            event=event,
        )
        return await self._run(flow)

    def publisher(
        self, shape: int | Iterable[int], dtype: Any = "float32", *, wrap: Callable[[Any], Any] | None = None
    ) -> AsyncPublisher:
        """Make a publisher of frames of one shape; see `Channel.publisher`."""
        return AsyncPublisher(self._session, self._run, self._info, _tensor.describe(shape, dtype), wrap)

    async def close(self) -> None:
        """Close the channel for all; see `Channel.close`."""
        try:
            await self._run(_channel_operations.close(self._session, self._info))
        except (NotFoundError, ClosedError):
            pass  # see `Channel.close`
