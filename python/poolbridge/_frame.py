"""Frames: what a subscriber gets of a channel."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from poolbridge import _operations
from poolbridge._errors import InvalidArgumentError
from poolbridge._lease import AsyncLease, BaseLease, Lease

if TYPE_CHECKING:
    from poolbridge import _channel_messages
    from poolbridge._aclient import AsyncClient
    from poolbridge._client import Client
    from poolbridge._feed import Feed
    from poolbridge._hold import Hold


class BaseFrame(BaseLease):
    """A read lease on a buffer that came through a channel: an array, as a lease is.

    Arrays made from it keep it alive. It is released, which gives its place in the credit to the next frame, when the
    last of them and the frame itself are gone, or by `release`. When iteration goes on to the next frame, or at the end
    of the frame's ``with`` block, it counts as gone; `lease` keeps it while iteration goes on.
    """

    def __init__(self, hold: Hold, notice: _channel_messages.Frame, feed: Feed) -> None:
        super().__init__(hold)
        self._notice = notice
        self._feed = feed
        self._kept = False

    @property
    def _needed(self) -> bool:
        """Whether arrays of it are alive, as far as can be told."""
        return bool(self._hold.tokens) or self._hold.unaccounted

    def _pass(self) -> None:
        """Let go of it because iteration goes on or its block ends; arrays and leases of it live on."""
        hold = self._hold
        if hold.released or hold.unaccounted:
            return
        if self._kept or hold.tokens:
            self._hold = hold.ended_twin()
        else:
            hold.end()

    @property
    def seq(self) -> int:
        """The frame's number in its channel, counted from 1."""
        return self._notice.sq

    @property
    def time(self) -> float:
        """When it was sent, in seconds since 1970, as `time.time` counts."""
        return self._notice.ts / 1e9

    @property
    def time_ns(self) -> int:
        """When it was sent, in nanoseconds since 1970, as `time.time_ns` counts."""
        return self._notice.ts

    @property
    def meta(self) -> dict[str, str]:
        """What the sender said about it."""
        return self._notice.mt

    @property
    def dropped(self) -> int:
        """How many frames this subscriber has missed since the last one that it got."""
        return self._notice.dr

    def _check_queue(self) -> None:
        if not self._feed.queue:
            raise InvalidArgumentError("a frame is given back to a queue; this channel is a broadcast: release it")

    def _state(self) -> str:
        return f"frame {self.seq}, {super()._state()}"


class Frame(BaseFrame):
    """A frame of a blocking `Client`. As a context manager it is let go of at the end of the block.

    That releases it, unless arrays of it are alive: then it is released when the last of them is gone. If an exception
    leaves the block, a frame of a queue goes back to it.
    """

    def __init__(self, client: Client, hold: Hold, notice: _channel_messages.Frame, feed: Feed) -> None:
        super().__init__(hold, notice, feed)
        self._client = client

    @property
    def lease(self) -> Lease:
        """The frame as a plain lease, which keeps it for longer than its turn in an iteration."""
        self._kept = True
        return Lease(self._client, self._hold)

    def wait(self, timeout: float | None = None) -> None:
        """Wait on the CPU until the content is complete; see `Lease.wait`."""
        self._client._run(_operations.wait(self._hold, timeout))  # noqa: SLF001

    def release(self, *, force: bool = False) -> None:
        """End the lease now, which in a queue acknowledges the frame; see `Lease.release`.

        Parameters
        ----------
        force
            Do it although arrays are alive: the caller vouches that none is used any more.
        """
        self._hold.release(failed=False, force=force)

    def give_back(self, *, force: bool = False) -> None:
        """Give the frame back to its queue, in its place, for another consumer.

        Raises
        ------
        InvalidArgumentError
            The channel is no queue.
        """
        self._check_queue()
        self._hold.release(failed=True, force=force)

    def __enter__(self) -> Self:
        self._hold.check_usable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.released:
            return
        if error is None and self._needed:
            self._pass()
        elif error is None:
            self.release()
        elif self._hold.unused_after(error, failed=self._feed.queue):
            self._hold.release(failed=self._feed.queue)


class AsyncFrame(BaseFrame):
    """A frame of an `AsyncClient`. As an asynchronous context manager it is let go of as a `Frame` is."""

    def __init__(self, client: AsyncClient, hold: Hold, notice: _channel_messages.Frame, feed: Feed) -> None:
        super().__init__(hold, notice, feed)
        self._client = client

    @property
    def lease(self) -> AsyncLease:
        """The frame as a plain lease, which keeps it for longer than its turn in an iteration."""
        self._kept = True
        return AsyncLease(self._client, self._hold)

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until the content is complete; see `Lease.wait`."""
        await self._client._run(_operations.wait(self._hold, timeout))  # noqa: SLF001

    async def release(self, *, force: bool = False) -> None:
        """End the lease now; see `Frame.release`."""
        await self._client._run(_operations.release(self._hold, failed=False, force=force))  # noqa: SLF001

    async def give_back(self, *, force: bool = False) -> None:
        """Give the frame back to its queue; see `Frame.give_back`."""
        self._check_queue()
        await self._client._run(_operations.release(self._hold, failed=True, force=force))  # noqa: SLF001

    async def __aenter__(self) -> Self:
        self._hold.check_usable()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.released:
            return
        if error is None and self._needed:
            self._pass()
        elif error is None:
            await self.release()
        elif self._hold.unused_after(error, failed=self._feed.queue):
            await self._client._run(  # noqa: SLF001
                _operations.release(self._hold, failed=self._feed.queue, force=False)
            )
