"""A session's part in channels: its members, and the leases that channels have."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from poolbridge._session.session_memory import SessionMemory
from poolbridge._session.spares import Asking, Shelf, Spare, Spares
from poolbridge._sys.errors import NotFoundError, ProtocolError, StaleError
from poolbridge._wire.messages import Leave, Timeline, TimelineReply

if TYPE_CHECKING:
    from poolbridge._memory.session_blocks import SessionBlock
    from poolbridge._session.calls import Call
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.producer import Producer
    from poolbridge._wire.messages import Fence, Grant, Request
    from poolbridge._wire.transport import Descriptors


class SessionMembers(SessionMemory):
    """What one session does in channels.

    Attributes
    ----------
    producers
        Its producers, by the id of the channel.
    joining
        Set once the session has a producer, by the id of a channel in which it is about to have one.
    spares
        The leases that came back from channels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.producers: dict[int, Producer] = {}
        self.joining: dict[int, threading.Event] = {}
        self.spares = Spares(self)

    @abstractmethod
    def check_usable(self) -> None:
        """Raise if the session cannot be used."""

    @abstractmethod
    def _released(self, idle: SessionBlock | None) -> None:
        """Unmap a block that is wanted back, and send what is to be sent. The lock is held."""

    @abstractmethod
    def leave_to_arrays(self, lender: LeaseState) -> None:
        """Have a lease end with the arrays whose memory `lender` keeps mapped. The lock is held."""

    def tell(self, request: Request) -> None:
        """Send a request that wants no reply."""
        with self.lock:
            if self.ended is None:
                self.core.tell(request)
                self._flush()

    # Members

    def take_seat(self, number: int) -> Descriptors:
        """Give the files that came with the reply to a `Join` of that number; the caller closes them."""
        with self.lock:
            descriptors = self.core.seats.pop(number, None)
        if descriptors is None:
            self.check_usable()
            raise ProtocolError("the files of a member of a channel did not come with it")
        return descriptors

    def add_member(self, member: Any) -> None:
        """Have a member hear of those of the other role."""
        with self.lock:
            self.check_usable()
            self.core.members.append(member)

    def leave(self, member: Any) -> None:
        """End the part of a member."""
        with self.lock:
            self._leave(member)

    def retire(self, producer: Producer) -> None:
        """End the part of a producer whose channel was closed. The lock is held."""
        if self.producers.get(producer.channel.id) is producer:
            del self.producers[producer.channel.id]
        self._leave(producer)

    def _leave(self, member: Any) -> None:
        if member not in self.core.members:
            return
        self.core.members.remove(member)
        try:
            member.leave()
        finally:  # nobody would say it later
            if self.ended is None:
                self.core.tell(Leave(ch=member.channel.id, mb=member.member))
                self._flush()

    def _end_members(self) -> None:
        """End the part of all members, because the session ends. The lock is held."""
        with ExitStack() as rest:  # whatever fails, all the rest is done
            rest.callback(self.spares.end)
            rest.callback(self.producers.clear)
            for member in reversed(self.core.members):
                rest.callback(self._leave, member)
                rest.callback(member.end)
            if self.ended is None and self.producers:
                self.spares.release_all()

    # Leases that channels have

    def own(self, grant: Grant) -> None:
        """Keep a block mapped for the channel that is about to have its lease."""
        with self.lock:
            block = self.core.blocks.get(grant.bl)
            if block is not None:
                block.leases += 1

    def unown(self, grant: Grant) -> None:
        """Undo `own`: the channel does not have it."""
        with self.lock:
            self.disown(grant)

    def disown(self, grant: Grant, fences: tuple[Fence, ...] = ()) -> None:
        """Keep a block mapped no more for a lease that nobody here has, but for `fences`. The lock is held."""
        self._released(self.core.forget(grant, fences))

    def take_spare(self, pool: int, nbytes: int, *, at_once: bool = False) -> Spare | None:
        """Give a lease of a pool that came back, of just as many bytes, or None; see `Spares.take`."""
        with self.lock:
            return self.spares.take(pool, nbytes, at_once=at_once)

    def lender(self, pool: int, nbytes: int, shelf: Shelf | None = None) -> Producer | None:
        """Give the producer whose blocks an allocation may wait for; see `Spares.lender`."""
        with self.lock:
            return self.spares.lender(pool, nbytes, shelf)

    def asks(self, asking: Asking) -> None:
        """Release what comes back in a pool for an allocation that waits at the service; see `Spares.ask`."""
        with self.lock:
            if self.ended is None:
                self.spares.ask(asking)

    def return_spare(self, spare: Spare) -> None:
        """Put a lease back to those that came back."""
        with self.lock:
            if self.ended is None:
                self.spares.put(spare)
            else:
                self.disown(spare.grant)

    def lend_to(self, shelf: Shelf, spare: Spare) -> None:
        """Put a lease on loan to a publisher."""
        with self.lock:
            self.spares.lend_to(shelf, spare)

    def collect_for(self, shelf: Shelf) -> int:
        """Take what has come back to a publisher; give how many leases it has then."""
        with self.lock:
            return self.spares.collect_for(shelf)

    def drop_shelf(self, shelf: Shelf) -> None:
        """Release a publisher's leases; never waits, never raises."""
        self.lock.later(partial(self._drop_shelf, shelf))

    def _drop_shelf(self, shelf: Shelf) -> None:
        self.spares.drop_shelf(shelf)

    def lose_spare(self, grant: Grant) -> None:
        """Release a publisher's lease that nobody has any more; never waits, never raises."""
        self.lock.later(partial(self._lose_spare, grant))

    def _lose_spare(self, grant: Grant) -> None:
        if self.ended is None:
            self.end_spare(grant)
        else:
            self.disown(grant)

    def end_spare(self, grant: Grant) -> None:
        """Release a lease that came back. The lock is held."""
        self._released(self.core.release(grant, (), failed=False))

    def release_spares(self) -> bool:
        """Release all that came back, before the session ends; False if work on some of it is under way."""
        with self.lock:
            return self.ended is not None or self.spares.release_all()

    # Timelines

    def learn_timeline(self, timeline: int, then: Callable[[int], None]) -> None:
        """Ask for a timeline's page; `then` is called once it is mapped or refused. Never waits. The lock is held."""
        if self.ended is not None:
            return
        made: list[Call] = []
        made.append(self.core.start(Timeline(tl=timeline), TimelineReply, partial(self._learned, timeline, made, then)))
        self._flush()

    def _learned(self, timeline: int, made: list[Call], then: Callable[[int], None]) -> None:
        # The thread that received the answer holds the lock.
        call = made[0]
        if call.error is None:
            self._adopt(timeline, own=False)
        elif isinstance(call.error, (NotFoundError, StaleError)):
            self.timelines.add_gone(timeline)
        then(timeline)

    @abstractmethod
    def _adopt(self, timeline: int, *, own: bool) -> None:
        """Map the page of a timeline that the service has sent. The lock is held."""
