"""Implements producers. A producer publishes frames in a channel, and takes back blocks that consumers released."""

from __future__ import annotations

import os
import struct
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from itertools import count
from operator import call
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

from poolbridge._memory import layout as _layout
from poolbridge._session.flow import Flow, Sleep
from poolbridge._session.membership import Membership, join, named
from poolbridge._session.returns import Returned
from poolbridge._sys.deferred import Flag
from poolbridge._sys.native import NATIVE
from poolbridge._wire.messages import Fence, Join
from poolbridge.errors import (
    ClosedError,
    ForkError,
    PoolLimitError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from poolbridge import _native
    from poolbridge._memory.tensor import Description
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import ChannelIdentity

# How many packed descriptions a producer keeps. The frames of a channel normally have few different descriptions.
_MOST_DESCRIPTIONS: Final = 256
# After how many seconds a thread that waits for another one to join looks again, in case a signal handler has ended the
# other one just before it set the flag, or the thread of a cancelled task has used the flag up.
_JOINING: Final = 1.0


class Producer(Membership):
    """A session's producer in one channel.

    Attributes
    ----------
    loans
        The leases of published blocks that have not come back from the consumers, by buffer id. Each lease has the
        fences that the next writer of the block must wait for.
    over
        Whether the channel was closed. If so, the producer leaves when all blocks in `loans` have come back.
    left
        Whether the producer has left.
    """

    native: _native.Producer

    def __init__(self, session: Session, channel: ChannelIdentity, native: _native.Producer, member: int) -> None:
        super().__init__(session, channel, "producer", native, member)
        self.outstanding: dict[int, Returned] = {}
        self.over = False
        self.left = False
        self._reclaimed: list[Any] = []  # results of the native `reclaim` that `collect` has not used up
        self._descriptions: dict[tuple[Description, int], tuple[int, bytes]] = {}
        self._ids = count(1)
        self._publishers = count(1)
        self._last: tuple[Description | None, tuple[int, bytes]] = (None, (0, b""))

    def _add(self, seat: int, member: int, fd: int) -> None:
        self.native.add_cursor(seat, member, fd)

    def describe(self, description: Description, base: int = 0) -> tuple[int, bytes]:
        """Return a description's id, and its bytes as they stand in the producer's shared file, the track.

        `base` says at which byte of its block the frame's memory begins.
        """
        last = self._last
        if last[0] is description and not base:
            return last[1]
        known = self._descriptions.get((description, base))
        if known is None:
            if len(self._descriptions) >= _MOST_DESCRIPTIONS:
                self._descriptions.clear()
            known = self._descriptions[description, base] = next(self._ids), _pack_description(description, base)
        if not base:
            self._last = description, known
        return known

    def description_ids(self) -> int:
        """Return the id of the first of many descriptions: those of the chunks of a publisher."""
        return next(self._publishers) << 32

    def await_back(self, seconds: float | None, roused: int | None = None) -> Any:
        """Wait at most `seconds` until chunks or blocks come back from the consumers, and take them.

        Return the `Condition` of the native producer, if it returned one. The caller does not hold the session's lock.

        Blocks are taken only with the lock: a thread that allocates must not miss blocks which another thread has taken
        and not yet released.
        """
        came = None
        if seconds != 0:
            with suppress(ClosedError, ForkError):
                came = self.native.await_back(seconds, self.native.roused if roused is None else roused)
        with self.session.lock:
            taken = self.collect()
        return taken if came is None else came

    def collect(self) -> Any:
        """Take the blocks that came back. The caller holds the session's lock.

        Return the `Condition` of the native producer, if it returned one: the cursor of a consumer is not mapped yet,
        or this member was evicted.
        """
        reclaimed, returns, settles, condition = self._reclaimed, self.session.returns, False, None
        try:
            reclaimed.extend(map(call, (self.native.reclaim,)))  # in C, so that a signal handler cannot lose the result
        except (ClosedError, ForkError):
            pass  # this member has left
        while reclaimed:
            came = reclaimed[0]
            condition = None if came.__class__ is list else came
            while condition is None and came:
                buffer, fences = came[0]
                returned = self.outstanding.get(buffer)
                if returned is not None:  # otherwise this producer has left the channel meanwhile
                    if fences:
                        returned.fences = (*returned.fences, *(Fence(*fence) for fence in fences))
                    settles |= returns.came_back(returned, over=self.over)
                del came[0]  # no signal handler runs between the end of `came_back` and the end of `pop`
                self.outstanding.pop(buffer, None)
            del reclaimed[0]
        if settles:
            returns.settle()
        return condition

    def has(self, lease: Returned) -> bool:
        """Whether this producer has published the frame of a lease. The caller holds the session's lock."""
        buffer = lease.grant.buffer
        try:
            return self.outstanding.get(buffer) is not lease or any(one == buffer for _, one in self.native.in_flight)
        except (ClosedError, ForkError):
            return False

    def leave(self) -> None:
        """Stop publishing, and give up the blocks that have not come back. The caller holds the session's lock."""
        self.native.close()
        self.left = True
        self.session.returns.leave_behind(self)


class Sending(ABC):
    """One frame that is being published.

    Attributes
    ----------
    sent
        Whether the frame is in the channel.
    """

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.sent = False

    @abstractmethod
    def attempt(self, seconds: float | None = 0.0) -> Any:
        """Try to publish the frame, and return the result of `poolbridge._native.Producer.publish`."""


class _LeaseSending(Sending):
    """One frame that is being published, in the buffer of a lease that the user passed."""

    def __init__(
        self,
        producer: Producer,
        state: LeaseState,
        description: Description,
        *,
        fence: Fence | None,
        meta: bytes,
        event: bytes,
    ) -> None:
        super().__init__(producer)
        self._lease_state = state
        self._fence = fence
        self._meta = meta
        self._event = event or None
        self._described = producer.describe(description, state.grant.base)

    def attempt(self, seconds: float | None = 0.0) -> Any:
        """See `Sending.attempt`."""
        producer, state, fence = self.producer, self._lease_state, self._fence
        grant = state.grant
        id_, packed = self._described
        word, value = (0, 0) if fence is None else (fence.word, fence.value)
        fences = () if fence is None else (fence,)
        allocated = state.allocated and state.promise is None
        # `SessionBlock.leases` counts this lease. From now on, the channel has the lease, and this count keeps the
        # block mapped for the channel. If arrays or a promise of this process need the mapped block too, `own` adds 1.
        apart = bool(state.tokens) or state.unaccounted or state.promise is not None
        arrays = ref(state) if apart else None
        # Add the lease before the frame is published, because another thread may get the block back at once.
        lease = producer.outstanding[grant.buffer] = Returned(
            grant, fences, allocated=allocated, arrays=arrays, part_of=state.part_of
        )
        result: Any = None
        try:
            if apart:
                producer.session.own(state)
            result = producer.native.publish(
                grant.block, grant.buffer, grant.nbytes, id_, packed, self._meta, word, value, self._event, seconds
            )
        finally:
            # If the frame is in the channel, no signal handler runs before `owed` is False: these steps call nothing.
            if result.__class__ is int:
                self.sent = True
            elif result is None:
                # After an error, look: a signal handler may have raised it after the frame had entered the channel.
                with producer.session.lock:  # no other thread takes the frame back meanwhile
                    self.sent = producer.has(lease)
            if self.sent:
                state.owed = False
                producer.session.note_sent(state, fence, apart=apart)
            else:
                with producer.session.lock:
                    producer.outstanding.pop(grant.buffer, None)
                    producer.session.unown(state)
        return result


def producer_of(session: Session, channel: ChannelIdentity) -> Flow[Producer]:
    """Return the session's producer in a channel. The first call joins the channel."""
    while (producer := session.producers.get(channel.id)) is None:
        joined, joining = Flag(), session.joining
        try:
            other = joining.setdefault(channel.id, joined)
            if other is not joined:
                if (yield Sleep(other.wait, _JOINING)):
                    other.set()  # for the next thread that waits
                session.check_usable()
                continue
            with named(channel.name):
                session.producers[channel.id] = yield from join(
                    session,
                    Join(channel=channel.id, role="producer"),
                    lambda channel, native, member: Producer(session, channel, native, member),
                )
        finally:
            # No signal handler runs between the next steps, because they call nothing.
            if channel.id in joining and joining[channel.id] is joined:
                del joining[channel.id]
            joined.set()
    return cast("Producer", producer)


def send(
    producer: Producer,
    state: LeaseState,
    description: Description,
    *,
    meta: bytes,
    fence: Fence | None,
    event: bytes,
    timeout: float | None,
) -> Flow[int]:
    """Publish a frame and return its number. If this fails, the lease stays usable."""
    sending = _LeaseSending(producer, state, description, fence=fence, meta=meta, event=event)
    state.released = True
    try:
        number: int = yield from deliver(sending, timeout)
    except BaseException:
        state.released = sending.sent
        raise
    return number


def deliver(sending: Sending, timeout: float | None) -> Flow[int]:
    """Wait until the channel has room, publish a frame and return its number in the channel."""
    producer = sending.producer
    session, channel, condition = producer.session, producer.channel, NATIVE.Condition
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        result = sending.attempt()
        while not isinstance(result, int):
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if result is condition.TIMEOUT:
                if left == 0:
                    raise _too_slow(producer, timeout or 0.0)
                result = yield Sleep(sending.attempt, left, lasting=True)
                continue
            if result is condition.UNKNOWN_MEMBER:
                if not (yield from producer.meets(left)):
                    late = f"consumer {producer.native.unknown[1]} takes part, and has not entered the channel"
                    raise WaitTimeoutError(f"channel {channel.name!r}, after {timeout or 0.0:g} s: {late}")
            elif result is condition.NO_ROOM:
                raise PoolLimitError(
                    f"channel {channel.name!r} is full: it keeps {channel.capacity} frames{_why(producer)}"
                )
            elif result is condition.END:
                producer.over = True
                raise ClosedError(f"channel {channel.name!r} was closed")
            elif result is condition.DESTROYED:
                producer.over = True
                raise producer.destroyed()
            else:
                yield from producer.evicted()
            result = sending.attempt()
    except (ClosedError, ForkError):
        session.check_usable()
        if producer.over:
            raise producer.destroyed() from None
        raise
    return result


def _too_slow(producer: Producer, timeout: float) -> WaitTimeoutError:
    channel = producer.channel
    return WaitTimeoutError(f"channel {channel.name!r} stayed full for {timeout:g} s{_why(producer)}")


def _why(producer: Producer) -> str:
    """Say, for an error text, why the channel is full and what helps."""
    behind, consumers, helps, why = producer.native.behind, producer.native.consumers, "release frames sooner", ""
    if behind is not None:
        own = " (this program)" if behind[1] == os.getpid() else ""
        why = f"; member {behind[0]} of process {behind[1]}{own} is behind"
    elif producer.channel.mode == "queue":
        why = f"; its {consumers} consumer{' is' if consumers == 1 else 's are'} behind"
        if not consumers:
            why, helps = "; it has 0 consumers", "start one (`client.subscribe`)"
    if producer.channel.mode == "broadcast" and producer.channel.full in {"drop-oldest", "latest"}:
        return f'{why}; {helps}, or let that consumer subscribe without `full="block"`, as the channel drops frames'
    return f"{why}; {helps}, or make a channel with a larger capacity, or with a `full` that drops frames"


# The formats of a track


def _pack_description(description: Description, base: int) -> bytes:
    tensor = description.to_wire()
    layout = _layout.encode(description)
    head = struct.pack("<QHHI16s", tensor.offset, len(tensor.shape), bool(tensor.strides), 0, tensor.dtype.encode())
    shape = struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape).ljust(256, b"\0")
    fixed = (head + shape + struct.pack(f"<{len(tensor.strides)}q", *tensor.strides)).ljust(544, b"\0")
    return (fixed + struct.pack("<QQ", base, len(layout))).ljust(576, b"\0") + layout
