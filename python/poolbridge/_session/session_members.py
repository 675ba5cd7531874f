"""Keeps a session's producers and consumers, and the session's leases that it has passed to channels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from poolbridge._session.returns import Arena, Chunks, Producer, Returns, SessionReturns
from poolbridge._session.tally import SessionTally
from poolbridge._wire.messages import GetTimeline, Leave, Reply, TimelineReply
from poolbridge.errors import (
    BusyError,
    NotFoundError,
    PoolLimitError,
    ProtocolError,
    StaleError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from poolbridge._memory.session_blocks import SessionBlock
    from poolbridge._session.calls import Call
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.returns import Maker
    from poolbridge._sys.deferred import Flag
    from poolbridge._wire.messages import Fence, Grant, Request, Tensor


class SessionMembers(SessionReturns):
    """The part of a session that takes part in channels.

    Attributes
    ----------
    joining
        Flags by channel id. While a thread makes the session join a channel as a producer, other threads wait for the
        channel's flag. The thread sets the flag after the join.
    returns
        The arenas of publishers, and the leases that came back from channels.
    tally
        Counts of what the session has done.
    """

    def __init__(self) -> None:
        super().__init__()
        self.joining: dict[int, Flag] = {}
        self.returns = Returns(self)
        self.tally = SessionTally()

    @abstractmethod
    def check_usable(self) -> None:
        """Raise if the session has ended or belongs to another process."""

    @abstractmethod
    def _released(self, idle: SessionBlock | None) -> None:
        """Unmap `idle`, a recalled block without leases, if there is one. Then send the packets of the outbox.

        The caller holds the lock.
        """

    def tell(self, request: Request) -> None:
        """Send a request to which the service does not reply."""
        with self.lock:
            if self.ended is None:
                self.core.tell(request)
                self._flush()

    # Members

    def seat(self, number: int) -> list[int]:
        """Return the descriptors of the reply to the `Join` request `number`; `add_member` or `unjoin` closes them."""
        with self.lock:
            if number in self.core.seats:
                return self.core.seats[number][1].peek()
        self.check_usable()
        raise ProtocolError("the service admitted a member to a channel and did not send the member's files")

    def add_member(self, member: Any, number: int) -> None:
        """Add a member, made of the seat of the request `number`. From now on, `core` passes it the files of others."""
        with self.lock:
            self.check_usable()
            self.core.seats[number][1].close()
            self.core.members += (member,)
            del self.core.seats[number]  # no signal handler runs between these two steps
            self.tally.joins(member)

    def unjoin(self, number: int) -> None:
        """Give up the seat of a `Join` request, unless `add_member` has used it. Never waits, never raises."""
        self.lock.later(partial(self._unjoin, number))

    def _unjoin(self, number: int) -> None:
        self.core.unjoin(number)
        self._flush()

    def leave(self, member: Any) -> None:
        """Make a member leave its channel."""
        with self.lock:
            self._leave(member)

    def retire(self, producer: Producer) -> None:
        """See `SessionReturns.retire`."""
        if self.producers.get(producer.channel.id) is producer:
            del self.producers[producer.channel.id]
        self._leave(producer)

    def _leave(self, member: Any) -> None:
        if member not in self.core.members:
            return
        self.core.members.remove(member)
        try:
            member.leave()
            self.tally.leaves(member)
        finally:  # tell the service now, because the member is gone from the list
            if self.returns.left(member):
                self.say_left(member)

    def say_left(self, member: Any) -> None:
        """Tell the service that a member has left. The caller holds the lock."""
        if self.ended is None:
            self.core.tell(Leave(channel=member.channel.id, member=member.member))
            self._flush()

    def leave_and_release(self, member: Any, grant: Grant) -> None:
        """See `SessionReturns.leave_and_release`."""
        made: list[Call] = []
        request = Leave(channel=member.channel.id, member=member.member)
        made.append(self.core.start(request, Reply, partial(self._has_left, made, member, grant)))
        self._flush()

    def _has_left(self, made: list[Call], member: Any, grant: Grant) -> None:
        # The thread that has received the reply calls `_has_left`. This thread holds the session's lock.
        if not made:
            return  # the client was closed before this reply came
        if isinstance(made[0].error, BusyError):  # a consumer takes a frame at this moment
            self.leave_and_release(member, grant)
        else:
            self.end_lease(grant)
        made.clear()  # it does not refer to the request any more, which refers to `made`

    def _end_members(self) -> None:
        """Leave all channels, because the session ends. The caller holds the lock."""
        with ExitStack() as rest:  # if one step raises, the other steps still run
            rest.callback(self.producers.clear)
            # The last callback runs first. Producers leave first: a consumer that leaves makes room in the channel, and
            # a call that waits for this room must not publish any more.
            for member in sorted(self.core.members, key=lambda member: str(member.role)):
                rest.callback(self._leave, member)
                rest.callback(member.end)
            if self.ended is None:
                self.returns.close()
            else:
                self.returns.end()

    # Leases that channels have

    def own(self, state: LeaseState) -> None:
        """Count one more lease on a block, because the channel and arrays of the user both need the mapped block."""
        with self.lock:
            block = self.core.blocks.get(state.grant.block)
            if block is not None and not state.counted:
                block.leases += 1
                state.counted = True

    def unown(self, state: LeaseState) -> None:
        """Undo `own` or `Session.keep_mapped`; a second call does nothing. The caller holds the lock."""
        if state.counted:
            idle = self.core.forget(state.grant)
            state.counted = False  # no signal handler runs between the end of `forget` and this step
            self._released(idle)

    def disown(self, grant: Grant, fences: tuple[Fence, ...] = ()) -> None:
        """Count one frame less on a block. The session waits for `fences` before it unmaps the block."""
        self._released(self.core.forget(grant, fences))

    def give_up(self, grant: Grant, fences: tuple[Fence, ...]) -> None:
        """See `SessionReturns.give_up`."""
        self._released(self.core.give_up(grant, fences))

    def reuse_returned(
        self, pool: int, tensor: Tensor, make: Maker, place: tuple[int, int] | None = None
    ) -> LeaseState | None:
        """See `Returns.reuse_returned`: the program allocates in the pool, or shares an array of an arena."""
        with self.lock:
            return self.returns.reuse_returned(pool, tensor, make, place) if self.ended is None else None

    def explain(self, error: BaseException, pool: int) -> None:
        """Add a note to the error of an allocation if arrays of frames that came back keep memory of the pool."""
        if not isinstance(error, PoolLimitError | WaitTimeoutError):
            return
        with self.lock:
            kept = self.returns.kept(pool)
        if kept:
            error.add_note(
                f"poolbridge: {kept} {'frames' if kept > 1 else 'frame'} of the pool came back, and arrays that this "
                "program made of them keep their memory: drop these arrays, or make the pool larger"
            )

    def add_arena(self, chunks: Chunks, arena: Arena) -> None:
        """Let a publisher use an arena; see `Returns.add`."""
        with self.lock:
            self.returns.add(chunks, arena)

    def close_chunks(self, chunks: Chunks) -> None:
        """Let a publisher's arenas go; see `Returns.close_chunks`. Never waits, never raises."""
        self.lock.later(partial(self.returns.close_chunks, chunks))

    def lose_arena(self, arena: Arena) -> None:
        """See `SessionReturns.lose_arena`."""
        self.lock.later(partial(self.returns.leave, arena))

    def end_lease(self, grant: Grant) -> None:
        """See `SessionReturns.end_lease`."""
        self._released(self.core.release(grant, (), failed=False))

    def learn_timeline(self, timeline: int, then: Callable[[int], None]) -> None:
        """See `SessionReturns.learn_timeline`."""
        if self.ended is not None:
            return
        made: list[Call] = []
        made.append(
            self.core.start(GetTimeline(timeline=timeline), TimelineReply, partial(self._learned, timeline, made, then))
        )
        self._flush()

    def _learned(self, timeline: int, made: list[Call], then: Callable[[int], None]) -> None:
        # The thread that has received the reply calls `_learned`. This thread holds the session's lock.
        if not made:
            return  # the rest of an interrupted call
        if not made[0].failed:
            self._adopt(timeline, own=False)
        elif isinstance(made[0].error, (NotFoundError, StaleError)):
            self.timelines.add_gone(timeline)
        then(timeline)
        made.clear()  # it does not refer to the request any more, which refers to `made`

    @abstractmethod
    def _adopt(self, timeline: int, *, own: bool) -> None:
        """Map a timeline's page, which the service has sent. The caller holds the lock."""
