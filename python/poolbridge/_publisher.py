"""Arrays to write that are made once for each block, and published as frames."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from poolbridge import _order, _process
from poolbridge._channel_operations import check_meta
from poolbridge._errors import (
    ClosedError,
    DeviceMemoryError,
    ForkError,
    InvalidArgumentError,
    LeaseReleasedError,
    PoolLimitError,
    WaitTimeoutError,
)
from poolbridge._lease import AsyncLease, Lease
from poolbridge._operations import Do, Flow, allocate
from poolbridge._sharedproducer import Sending, SharedProducer, deliver, pack_meta, producer_of
from poolbridge._spares import Shelf, Spare

if TYPE_CHECKING:
    from poolbridge._aclient import AsyncClient
    from poolbridge._client import Client
    from poolbridge._hold import Hold
    from poolbridge._messages import Channel as ChannelInfo
    from poolbridge._session import Session
    from poolbridge._tensor import Description


# How many buffers more than it needs a publisher of frames of at most so many bytes has. It looks for those that came
# back once in several frames then, which takes less time.
_MORE: Final = 4
_SMALL: Final = 256 << 10


class BasePublisher(ABC):
    """What the blocking and the asyncio publisher have in common."""

    def __init__(
        self, session: Session, channel: ChannelInfo, description: Description, wrap: Callable[[Any], Any] | None
    ) -> None:
        if not channel.sm:
            raise InvalidArgumentError(
                f"the frames of channel {channel.nm!r} go through the service: create it with shared=True, or allocate "
                "a lease for each frame and publish that"
            )
        self._session = session
        self._channel = channel
        self._description = description
        self._wrap = np.asarray if wrap is None else wrap
        self._shelf = Shelf(channel.pl, _MORE if description.nbytes <= _SMALL else 0)
        self._described = 0, b""
        self._closed = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis of an array."""
        return self._description.shape

    @property
    def dtype_name(self) -> str:
        """The name of the type of the elements."""
        return self._description.element.name

    def _loaned(self) -> Any:
        """Give the array that is on loan, or one of a lease that came back; None: the service has to be asked."""
        if self._closed or _process.pid != self._session.pid:
            self._check_usable()
        shelf = self._shelf
        spare = shelf.loaned
        if spare is None:
            if not shelf.free and self._session.collect_for(shelf) <= 1 + _MORE - shelf.more and shelf.more:
                return None
            spare = self._take()
        return None if spare is None else spare.array

    def _take(self) -> Spare | None:
        shelf = self._shelf
        try:
            shelf.loaned = shelf.free.popleft()
        except IndexError:
            pass  # there is none, or it was wanted back in this moment
        return shelf.loaned

    def _check_usable(self) -> None:
        self._session.check_usable()
        if self._closed:
            raise ClosedError(f"this publisher of channel {self._channel.nm!r} was closed")

    def _allocate(self, timeout: float | None) -> Flow[Any]:
        """Lease a buffer, and give an array of it."""
        session, channel = self._session, self._channel
        producer = yield from producer_of(session, channel)
        lease = partial(allocate, session, self._description, channel.pl, at_once=True)
        hold = None
        if self._shelf.free:
            try:
                hold = yield from lease(timeout=0.0)
                self._shelf.more -= 1
            except (PoolLimitError, DeviceMemoryError):
                self._shelf.more = 0  # it does without
                if (spare := self._take()) is not None:
                    return spare.array
        if hold is None:
            hold = yield from lease(timeout=timeout)
        try:
            pool = hold.memory.pool
            if not pool.on_cpu:
                raise InvalidArgumentError(
                    f"a publisher's arrays are written by the CPU, and pool {hold.pool.nm!r} is in memory of "
                    f"{pool.device_name}: allocate a lease for each frame and publish that"
                )
            yield Do(partial(_order.before_cpu, hold))
            array = self._make(hold)
        except BaseException:
            hold.end()
            raise
        spare = Spare(hold, ())
        spare.shelf, spare.array = self._shelf, array
        self._shelf.producer, self._described = producer, producer.describe(self._description)
        hold.released = True
        session.lent(hold, None, apart=False)
        session.lend_to(self._shelf, spare)
        return array

    def _make(self, hold: Hold) -> Any:
        twin = self._session.lend(hold)
        twin.written = {}  # it is written again and again
        try:
            array = self._wrap(self._lease(twin))
        finally:
            twin.released = True
        if not twin.tokens and not twin.unaccounted:
            raise InvalidArgumentError("wrap= made a copy: expected an array of the memory of the lease it was given")
        return array

    @abstractmethod
    def _lease(self, twin: Hold) -> Any:
        """Make the lease that `wrap` is given."""

    def _publish_at_once(self, meta: Mapping[str, str] | None) -> int | _LoanSending:
        """Publish the loan if there is room; give the frame's number, or what goes on trying."""
        shelf, producer = self._shelf, self._shelf.producer
        spare = shelf.loaned
        if spare is None or producer is None:
            self._check_usable()
            raise LeaseReleasedError("there is no array to publish: call loan() first, once for each frame")
        texts = pack_meta(check_meta(meta)) if meta else b""
        shelf.loaned = None
        result: Any = None
        try:
            result = _publish(producer, spare, self._described, texts, 0.0)
        except (ClosedError, ForkError):
            pass  # what goes on trying says why
        except BaseException:
            if not spare.gone:
                self._session.return_spare(spare)
            raise
        return result if type(result) is int else _LoanSending(producer, spare, self._described, texts)

    def _deliver(self, sending: _LoanSending, timeout: float | None) -> Flow[int]:
        """Publish the loan, waiting for room; it stays on loan if there is none."""
        try:
            return (yield from deliver(sending, timeout))
        except (WaitTimeoutError, PoolLimitError, ClosedError):
            if not sending.spare.gone:
                self._session.lend_to(self._shelf, sending.spare)
            raise
        except BaseException:
            sending.give_up()
            raise

    def _close(self) -> None:
        self._closed = True
        self._session.drop_shelf(self._shelf)

    def __del__(self) -> None:
        if not sys.is_finalizing() and not getattr(self, "_closed", True) and _process.pid == self._session.pid:
            self._session.drop_shelf(self._shelf)

    def __repr__(self) -> str:
        return (
            f"<poolbridge.{type(self).__name__} of {self.dtype_name}{list(self.shape)} "
            f"in channel {self._channel.nm!r}{', closed' if self._closed else ''}>"
        )


def _publish(
    producer: SharedProducer, spare: Spare, described: tuple[int, bytes], texts: bytes, seconds: float | None
) -> Any:
    """Publish a publisher's lease, or give what came instead; see `poolbridge._native.Producer.publish`."""
    grant = spare.grant
    producer.loans[grant.bl] = spare  # before: another thread may see it come back
    result: Any = None
    try:
        result = producer.native.publish(grant.bl, grant.bf, grant.n, *described, texts, 0, 0, None, seconds)
    finally:
        if type(result) is not int:
            producer.loans.pop(grant.bl, None)
    return result


class _LoanSending(Sending):
    """The frame of a publisher's lease."""

    def __init__(self, producer: SharedProducer, spare: Spare, described: tuple[int, bytes], texts: bytes) -> None:
        super().__init__(producer)
        self.spare = spare
        self._described = described
        self._texts = texts

    def _try(self, seconds: float | None) -> Any:
        return _publish(self.producer, self.spare, self._described, self._texts, seconds)

    def _end(self) -> None:
        if not self.spare.gone:
            self.producer.session.return_spare(self.spare)


class Publisher(BasePublisher):
    """Publishes frames of one shape from arrays that are made once and used again: the fastest way to send.

    `loan` gives an array to write, `publish` makes it the channel's next frame. An array is only good until then: its
    memory is the consumers', and comes back with a later `loan`. For one thread at a time; a context manager. Made by
    `Channel.publisher`.
    """

    def __init__(
        self,
        client: Client,
        channel: ChannelInfo,
        description: Description,
        wrap: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(client._session, channel, description, wrap)  # noqa: SLF001 - of one family
        self._client = client

    def _lease(self, twin: Hold) -> Lease:
        return Lease(self._client, twin)

    def loan(self, timeout: float | None = None) -> Any:
        """Give an array of a buffer that nobody uses; the same one until it is published.

        Parameters
        ----------
        timeout
            Seconds to wait for room in the pool; None: no limit.

        Returns
        -------
        array
            What ``wrap`` made, by default a `numpy.ndarray`. Its content is undefined: often an older frame.

        Raises
        ------
        PoolLimitError, DeviceMemoryError
            There is no room in the pool or on the machine.
        InvalidArgumentError
            The pool's memory is a GPU's, or ``wrap`` made a copy.
        ClosedError
            The publisher was closed.
        """
        array = self._loaned()
        if array is not None:
            return array
        return self._client._run(self._allocate(timeout))  # noqa: SLF001

    def publish(self, meta: Mapping[str, str] | None = None, *, timeout: float | None = None) -> int:
        """Put the array that was given last into the channel. It must not be written any more.

        Parameters
        ----------
        meta
            See `Channel.publish`.
        timeout
            Seconds to wait for room in the channel; None: no limit.

        Returns
        -------
        int
            The frame's number in the channel, counted from 1.

        Raises
        ------
        LeaseReleasedError
            There is no array: `loan` gives one for each frame.
        WaitTimeoutError, PoolLimitError
            The channel stayed full, or is full and is to fail. The array stays on loan.
        ClosedError
            The channel was shut, or the publisher closed.
        InvalidArgumentError
            `meta` is too large.
        """
        result = self._publish_at_once(meta)
        if isinstance(result, int):
            return result
        return self._client._run(self._deliver(result, timeout))  # noqa: SLF001

    def close(self) -> None:
        """Give back what is not in the channel. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncPublisher(BasePublisher):
    """Publishes frames of one shape from arrays that are made once; see `Publisher`."""

    def __init__(
        self,
        client: AsyncClient,
        channel: ChannelInfo,
        description: Description,
        wrap: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(client._session, channel, description, wrap)  # noqa: SLF001 - of one family
        self._client = client

    def _lease(self, twin: Hold) -> AsyncLease:
        return AsyncLease(self._client, twin)

    async def loan(self, timeout: float | None = None) -> Any:
        """Give an array of a buffer that nobody uses; see `Publisher.loan`."""
        array = self._loaned()
        if array is not None:
            return array
        return await self._client._run(self._allocate(timeout))  # noqa: SLF001

    async def publish(self, meta: Mapping[str, str] | None = None, *, timeout: float | None = None) -> int:
        """Put the array that was given last into the channel; see `Publisher.publish`."""
        result = self._publish_at_once(meta)
        if isinstance(result, int):
            return result
        return await self._client._run(self._deliver(result, timeout))  # noqa: SLF001

    async def close(self) -> None:
        """Give back what is not in the channel. Idempotent."""
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
