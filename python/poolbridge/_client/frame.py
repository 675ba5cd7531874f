"""Defines frames: a frame is a buffer that a subscriber gets from a channel."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from poolbridge._client import operations as _operations
from poolbridge._client.lease import AsyncLease, BaseLease, Lease
from poolbridge._client.tracing import Operation
from poolbridge._wire.meta import unpack_meta
from poolbridge.errors import (
    FrameSettledError,
    InvalidArgumentError,
)

if TYPE_CHECKING:
    from poolbridge import _native
    from poolbridge._session.consumer import Consumer
    from poolbridge._session.flow import AsyncRun, Run
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._wire.meta import MetaValue


_RELEASED: Final = "acknowledged before, by its release"


class BaseFrame(BaseLease):
    """A read lease on a buffer that came through a channel. A frame is an array, as every lease is.

    A program *acknowledges* a frame to say that it has processed the frame. When a frame of a queue is acknowledged, no
    other consumer gets the frame. When a frame of a broadcast is acknowledged, no producer waits for this consumer to
    process the frame. `ack`, `release` and the end of the frame's ``with`` block acknowledge a frame. With
    ``ack="auto"``, the call for the next frame also acknowledges the frame. For a frame of a queue, `requeue` gives the
    frame back to the queue instead of acknowledging it. An exception that leaves the ``with`` block also gives the
    frame back to the queue.

    When a frame is *released*, the producer may use the frame's memory again. `release` releases the frame at once.
    Otherwise the frame is released when the frame object and the last array made from the frame are gone. The frame
    object counts as gone at the end of its ``with`` block and, with ``ack="auto"``, when iteration moves to the next
    frame. The property `lease` returns a lease that stays valid even when the frame object counts as gone.
    """

    def __init__(self, run: Any, state: LeaseState, consumer: Consumer, frame: _native.Frame) -> None:
        super().__init__(run, state)
        self._consumer = consumer
        # This object copies these values and does not keep `frame`. The native frame may refer to an array that
        # `Subscription.arrays` uses for other frames too, and this object must not keep that array alive.
        self._seq, self._time, self._dropped = frame.number, frame.time, frame.missed
        self._meta: bytes | dict[str, MetaValue] = frame.meta  # bytes until the program asks
        self._delivery = frame.delivery
        self._kept = False
        self._settled = ""  # how this object settled the frame; "": not settled

    def _releases(self) -> Operation:
        channel = self._consumer.channel.name
        return Operation("release", channel=channel, pool=self.pool, nbytes=self.nbytes, seq=self.seq)

    @property
    def _needed(self) -> bool:
        """Whether arrays that were made from the frame are alive, or may be alive."""
        return bool(self._lease_state.tokens) or self._lease_state.unaccounted

    def _pass(self) -> None:
        """End this object, but not the frame's arrays. Called when iteration continues or the ``with`` block ends."""
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
        """When the frame was published, in seconds since 1970, as `time.time` counts."""
        return self._time / 1e9

    @property
    def time_ns(self) -> int:
        """When the frame was published, in nanoseconds since 1970, as `time.time_ns` counts."""
        return self._time

    @property
    def meta(self) -> dict[str, MetaValue]:
        """What the producer published about the frame, by key; see `Channel.publish`."""
        if isinstance(self._meta, bytes):
            self._meta = unpack_meta(self._meta)
        return self._meta

    @property
    def dropped(self) -> int:
        """How many frames this subscriber missed between the previous frame and this frame.

        In a queue, this is the number of frames that the channel dropped between the previous frame that any subscriber
        took and this frame. No subscriber got the dropped frames.
        """
        return self._dropped

    @property
    def delivery(self) -> int:
        """How often subscribers have got this frame of a queue, with this time: 1 for the first. In a broadcast: 1.

        A frame comes again if it is requeued, or if its subscriber ends before it acknowledges the frame. The argument
        ``max_deliveries`` of `Client.create_channel` sets a bound.
        """
        return self._delivery

    def _settle(self, *, back: bool) -> None:
        if back and not self._consumer.queue:
            raise InvalidArgumentError(
                "a frame of a broadcast cannot be requeued, because every subscriber gets it: release it"
            )
        state = self._lease_state
        state.session.check_usable()
        if not self._consumer.settle(state.grant, back=back):
            raise FrameSettledError(f"frame {self.seq} was {self._before()}")
        self._settled = "requeued before, by requeue()" if back else "acknowledged before, by ack()"

    def _before(self) -> str:
        """Return the end of an error text: how the frame was acknowledged or requeued before, and what to do now."""
        if self._consumer.auto and not self._settled:
            return (
                "acknowledged before, because the program asked for the next frame: to acknowledge or requeue frames "
                'at another time, subscribe with ack="manual"'
            )
        how = self._settled or "acknowledged or requeued before"
        return f"{how}: acknowledge or requeue each frame once, and leave out the second call"

    def _leave(self, error: BaseException | None) -> bool:
        """End the ``with`` block: acknowledge or requeue the frame. True: the caller has to release the lease."""
        state, back = self._lease_state, error is not None and self._consumer.queue
        self._settled = self._settled or f"{'requeued' if back else 'acknowledged'} before, by the end of its block"
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
    """End a frame object, because its subscription moves to the next frame. The frame's arrays stay valid."""
    frame._pass()  # noqa: SLF001 - of one family


class Frame(BaseFrame):
    """A frame of a blocking `Client`. The end of its ``with`` block acknowledges and releases the frame.

    If arrays made from the frame are alive at the end of the block, the frame is released when the last of these arrays
    is gone. If an exception leaves the block, the block does not acknowledge a frame of a queue but gives it back to
    the queue.
    """

    _run: Run

    @property
    def lease(self) -> Lease:
        """The frame as a read lease that stays usable when iteration moves to the next frame."""
        self._kept = True
        return Lease(self._run, self._lease_state)

    def wait(self, timeout: float | None = None) -> None:
        """Wait on the CPU until the content is complete; see `Lease.wait`."""
        self._run(_operations.wait(self._lease_state, timeout))

    def release(self, *, force: bool = False) -> None:
        """End the frame's lease now. Also acknowledge the frame, unless it was acknowledged or requeued before.

        Parameters
        ----------
        force
            End the lease although arrays made from the frame are alive, or may be alive. The caller guarantees that no
            array is used any more.

        Raises
        ------
        LeaseInUseError, LeaseReleasedError
            See `Lease.release`.
        """
        if self._lease_state.session.tracer is None:  # the usual case, without a context manager
            self._end(force)
        else:
            with self._ending():
                self._end(force)

    def _end(self, force: bool) -> None:
        self._lease_state.release(failed=False, force=_operations.check_flag(force, "force"))
        self._settled = self._settled or _RELEASED

    def ack(self) -> None:
        """Acknowledge the frame: say that the program has processed it. A queue then gives it to no other consumer.

        The frame and its arrays stay usable. The program can also acknowledge a frame after the subscription was
        closed.

        Raises
        ------
        FrameSettledError
            The frame was requeued or acknowledged before. `release` and, with ``ack="auto"``, the call for the next
            frame also acknowledge a frame.
        ClosedError
            The session has ended. The end of the session requeued the frames that were not acknowledged.
        """
        self._settle(back=False)

    def requeue(self) -> None:
        """Give the frame back to its old place in the queue. Another consumer, or this consumer again, gets the frame.

        The frame and its arrays stay usable.

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
        if self.released:
            return
        if self._lease_state.session.tracer is None:
            self._end_block(error)
        else:
            with self._ending():
                self._end_block(error)

    def _end_block(self, error: BaseException | None) -> None:
        if self._leave(error):
            self._lease_state.release(failed=error is not None and self._consumer.queue)


class AsyncFrame(BaseFrame):
    """A frame of an `AsyncClient`. Its ``async with`` block ends in the same way as the ``with`` block of a `Frame`."""

    _run: AsyncRun

    @property
    def lease(self) -> AsyncLease:
        """The frame as a read lease that stays usable when iteration moves to the next frame."""
        self._kept = True
        return AsyncLease(self._run, self._lease_state)

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until the content is complete; see `Lease.wait`."""
        await self._run(_operations.wait(self._lease_state, timeout))

    async def release(self, *, force: bool = False) -> None:
        """End the lease now; see `Frame.release`."""
        with self._ending():
            await self._run(_operations.release(self._lease_state, failed=False, force=force))
            self._settled = self._settled or _RELEASED

    async def ack(self) -> None:
        """Acknowledge the frame; see `Frame.ack`."""
        self._settle(back=False)

    async def requeue(self) -> None:
        """Give the frame back to its old place in the queue; see `Frame.requeue`."""
        self._settle(back=True)

    async def __aenter__(self) -> Self:
        self._lease_state.check_usable()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.released:
            with self._ending():
                if self._leave(error):
                    failed = error is not None and self._consumer.queue
                    await self._run(_operations.release(self._lease_state, failed=failed, force=False))
