"""Frames: what a subscriber gets of a channel."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from poolbridge._client import operations as _operations
from poolbridge._client.lease import AsyncLease, BaseLease, Lease
from poolbridge._sys.errors import FrameSettledError, InvalidArgumentError

if TYPE_CHECKING:
    from poolbridge import _native
    from poolbridge._session.consumer import Consumer
    from poolbridge._session.flow import AsyncRun, Run
    from poolbridge._session.lease_state import LeaseState


_RELEASED: Final = "acknowledged before, by its release"


class BaseFrame(BaseLease):
    """A read lease on a buffer that came through a channel: an array, as a lease is.

    It is *acknowledged* when the consumer is done with it: in a queue nobody else gets it, in a broadcast it holds no
    producer back, and another frame comes in its place. Asking for the next frame does that, `ack`, and the end of the
    frame's ``with`` block. In a queue `requeue` gives it back instead, and so does a block that an exception leaves.

    It is *released* when its memory may be used again: by `release`, which acknowledges it too, or when the last of the
    arrays made from it and the frame itself are gone. When iteration goes on to the next frame, or at the end of the
    frame's ``with`` block, the frame counts as gone; `lease` keeps it while iteration goes on.
    """

    def __init__(self, state: LeaseState, consumer: Consumer, frame: _native.Frame) -> None:
        super().__init__(state)
        self._consumer = consumer
        # Not the frame itself: it may keep an array that was made for others.
        self._seq, self._time, self._meta, self._dropped = frame.number, frame.time, frame.meta, frame.missed
        self._kept = False
        self._settled = ""  # what has settled it, if this object did

    @property
    def _needed(self) -> bool:
        """Whether arrays of it are alive, as far as can be told."""
        return bool(self._lease_state.tokens) or self._lease_state.unaccounted

    def _pass(self) -> None:
        """Let go of it because iteration goes on or its block ends; arrays and leases of it live on."""
        state = self._lease_state
        if state.released or state.unaccounted:
            return
        if self._kept or state.tokens:
            self._lease_state = state.ended_twin()
        else:
            state.end()

    @property
    def seq(self) -> int:
        """The frame's number in its channel, counted from 1."""
        return self._seq

    @property
    def time(self) -> float:
        """When it was sent, in seconds since 1970, as `time.time` counts."""
        return self._time / 1e9

    @property
    def time_ns(self) -> int:
        """When it was sent, in nanoseconds since 1970, as `time.time_ns` counts."""
        return self._time

    @property
    def meta(self) -> dict[str, str]:
        """What the sender said about it."""
        return self._meta

    @property
    def dropped(self) -> int:
        """How many frames this subscriber has missed since the last one that it got."""
        return self._dropped

    def _settle(self, *, back: bool) -> None:
        if back and not self._consumer.queue:
            raise InvalidArgumentError(
                "no frame is given back to a broadcast, where every subscriber has its own: release it"
            )
        state = self._lease_state
        state.session.check_usable()
        if not self._consumer.settle(state.grant, back=back):
            raise FrameSettledError(f"frame {self.seq} was {self._before()}")
        self._settled = "given back before, by requeue()" if back else "acknowledged before, by ack()"

    def _before(self) -> str:
        """Say what settled the frame before, and what to do about it."""
        if self._consumer.auto and not self._settled:
            return (
                "acknowledged before, because the program asked for the next frame: to acknowledge or give back frames "
                'at another time, subscribe with ack="manual"'
            )
        how = self._settled or "acknowledged or given back before"
        return f"{how}: acknowledge or give back each frame once, and leave out the second call"

    def _leave(self, error: BaseException | None) -> bool:
        """Settle it at the end of its block; True if its lease can end at once, which settles it, too."""
        state, back = self._lease_state, error is not None and self._consumer.queue
        self._settled = self._settled or f"{'given back' if back else 'acknowledged'} before, by the end of its block"
        if not self._needed:
            return True
        self._consumer.settle(state.grant, back=back)
        if error is None:
            self._pass()
        else:
            state.unused_after(error, failed=False)
        return False

    def _state(self) -> str:
        return f"frame {self.seq}, {super()._state()}"


def pass_on(frame: BaseFrame) -> None:
    """Let go of a frame because its subscription goes on to the next."""
    frame._pass()  # noqa: SLF001 - of one family


class Frame(BaseFrame):
    """A frame of a blocking `Client`. As a context manager it is acknowledged and let go of at the end of the block.

    That releases it, unless arrays of it are alive: then it is released when the last of them is gone. If an exception
    leaves the block, a frame of a queue goes back to it.
    """

    def __init__(self, run: Run, state: LeaseState, consumer: Consumer, frame: _native.Frame) -> None:
        super().__init__(state, consumer, frame)
        self._run = run

    @property
    def lease(self) -> Lease:
        """The frame as a plain lease, which keeps it for longer than its turn in an iteration."""
        self._kept = True
        return Lease(self._run, self._lease_state)

    def wait(self, timeout: float | None = None) -> None:
        """Wait on the CPU until the content is complete; see `Lease.wait`."""
        self._run(_operations.wait(self._lease_state, timeout))

    def release(self, *, force: bool = False) -> None:
        """End the lease now, which acknowledges the frame if it is not settled; see `Lease.release`.

        Parameters
        ----------
        force
            Do it although arrays are alive: the caller vouches that none is used any more.
        """
        self._lease_state.release(failed=False, force=force)
        self._settled = self._settled or _RELEASED

    def ack(self) -> None:
        """Acknowledge the frame: in a queue nobody else gets it, in a broadcast it holds no producer back.

        The frame and arrays of it live on. It works after the subscription has ended, too.

        Raises
        ------
        FrameSettledError
            It was acknowledged, by `release` or by asking for the next frame too, or given back before.
        ClosedError
            The session has ended, which gave back what was not acknowledged.
        """
        self._settle(back=False)

    def requeue(self) -> None:
        """Give the frame back to its queue, in its place: another consumer gets it, or this one again.

        The frame and arrays of it live on.

        Raises
        ------
        InvalidArgumentError
            The channel is a broadcast.
        FrameSettledError, ClosedError
            See `ack`.
        """
        self._settle(back=True)

    def __enter__(self) -> Self:
        self._lease_state.check_usable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.released and self._leave(error):
            self._lease_state.release(failed=error is not None and self._consumer.queue)


class AsyncFrame(BaseFrame):
    """A frame of an `AsyncClient`. As an asynchronous context manager it is let go of as a `Frame` is."""

    def __init__(self, run: AsyncRun, state: LeaseState, consumer: Consumer, frame: _native.Frame) -> None:
        super().__init__(state, consumer, frame)
        self._run = run

    @property
    def lease(self) -> AsyncLease:
        """The frame as a plain lease, which keeps it for longer than its turn in an iteration."""
        self._kept = True
        return AsyncLease(self._run, self._lease_state)

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until the content is complete; see `Lease.wait`."""
        await self._run(_operations.wait(self._lease_state, timeout))

    async def release(self, *, force: bool = False) -> None:
        """End the lease now; see `Frame.release`."""
        await self._run(_operations.release(self._lease_state, failed=False, force=force))
        self._settled = self._settled or _RELEASED

    async def ack(self) -> None:
        """Acknowledge the frame; see `Frame.ack`."""
        self._settle(back=False)

    async def requeue(self) -> None:
        """Give the frame back to its queue; see `Frame.requeue`."""
        self._settle(back=True)

    async def __aenter__(self) -> Self:
        self._lease_state.check_usable()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.released and self._leave(error):
            failed = error is not None and self._consumer.queue
            await self._run(_operations.release(self._lease_state, failed=failed, force=False))
