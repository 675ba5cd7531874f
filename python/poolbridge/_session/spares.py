"""Keeps spares, which are leases that came back from channels, for later frames. Releases unused spares."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from msgspec import UNSET, structs

from poolbridge._session.lease_state import LeaseState
from poolbridge._wire.messages import Fence, Grant
from poolbridge.errors import (
    PoolbridgeError,
)

if TYPE_CHECKING:
    from poolbridge._memory.tensor import Description
    from poolbridge._session.producer import Producer
    from poolbridge._session.session import Session
    from poolbridge._session.session_members import SessionMembers


# The constants below are numbers of seconds, except `_MORE`.
# The session releases the spares of a pool when the program has allocated nothing in the pool for `_IDLE` seconds.
_IDLE: Final = 1.0
# When the service asks for memory of a pool, the session releases leases that come back in the next `_WANTED` seconds.
_WANTED: Final = 1.0
# Of each pool, the session keeps at most n + `_MORE` spares. The number n is the sum of the capacities of the
# channels of the pool in which the session is a producer.
_MORE: Final = 2
# While the program allocates nothing, a thread checks again and again whether blocks came back. The pauses between the
# checks grow from `_REST` to `_LONGEST_REST`.
_REST: Final = 0.5
_LONGEST_REST: Final = 1.0
# `_LOOK` is how long the thread waits for blocks to come back, while the service wants memory. It is also the pause
# between two checks of fences: the thread must check fences again and again, because a GPU wakes no thread when it
# writes a word.
_LOOK: Final = 10e-3
# When an allocation has found no room in a pool, each allocation in the next `_FULL` seconds first waits for a block to
# come back from a channel. The allocation asks the service only if no channel has a block that fits.
_FULL: Final = 5.0
# `_GLANCE` is the pause between two checks of fences while the client closes, and between two waits for blocks while
# the service wants memory.
_GLANCE: Final = 1e-3


class Spare:
    """A write lease that a channel has, or that came back from a channel.

    Parameters
    ----------
    state
        The lease's state from the lease's last use.
    fences
        Fences that must be reached before the memory is written again or the lease is released.

    Attributes
    ----------
    description
        The description of the buffer that the service has. So only an allocation with this description may use the
        lease again.
    reusable
        Whether the session can keep the lease for the next frame. True if the lease came from an allocation, because
        then the buffer can have no other lease and no name.
    """

    __slots__ = ("_memory", "_pool", "description", "fences", "grant", "reusable")

    def __init__(self, state: LeaseState, fences: tuple[Fence, ...]) -> None:
        self.grant = state.grant
        self.fences = fences
        self.reusable = state.allocated
        self._pool = state.pool
        self._memory = state.memory
        self.description = state.description

    def hold(self, session: Session) -> LeaseState:
        """Make a `LeaseState`, as if the service had granted the lease now."""
        grant = self.grant
        if self.fences != grant.wt or grant.ev:
            grant = structs.replace(grant, wt=self.fences, x=UNSET, ev=b"")
        state = LeaseState(session, grant, self._pool, self._memory)
        state.allocated = True
        return state


class Asking:
    """An allocation in `pool` that the service has not answered yet.

    Attributes
    ----------
    waits
        Whether the allocation waits for memory. If so, the session releases leases of the pool that come back, except
        one that fits `description`.
    came
        The lease that fits and came back; None if none did.
    """

    __slots__ = ("__weakref__", "came", "description", "pool", "waits")

    def __init__(self, pool: int, description: Description, *, waits: bool) -> None:
        self.pool = pool
        self.description = description
        self.waits = waits
        self.came: Spare | None = None


class Spares:
    """The spares of one session. The session's lock guards the spares.

    Parameters
    ----------
    session
        The session.
    """

    def __init__(self, session: SessionMembers) -> None:
        self._session = session
        self._kept: dict[int, deque[Spare]] = {}  # by pool, the oldest first
        self._closing = False  # whether the client is closed
        self._leaving: list[Spare] = []  # spares to release when their fences are reached
        # The spares that allocations got before the spares' fences were reached, with these fences; by lease id.
        self._granted: dict[int, tuple[Spare, tuple[Fence, ...]]] = {}
        self._used: dict[int, float] = {}  # by pool: the monotonic time of the last allocation in the pool
        self._wanted: dict[int, float] = {}  # by pool: the time until which leases that come back are released
        self._asking: WeakSet[Asking] = WeakSet()
        self._full: dict[int, float] = {}  # by pool: until when the session assumes that the pool is full
        self._asked: set[int] = set()  # timelines whose pages were requested
        self._rest = _REST
        self._thread: threading.Thread | None = None
        self._bell = threading.Event()

    def __len__(self) -> int:
        return sum(map(len, self._kept.values())) + len(self._leaving)

    def disown(self, spare: Spare) -> None:
        """Give up a lease. The block stays mapped until this session's streams have done their work on the block."""
        own = self._session.timelines.own
        fences = tuple([fence for fence in spare.fences if own is not None and fence.tl == own.id])
        self._session.disown(spare.grant, fences)

    # The spares of pools

    def take(self, pool: int, description: Description, *, at_once: bool = False) -> Spare | None:
        """Remove a spare with this description from a pool and return it; return None if there is no such spare.

        If `at_once` is true, take only a spare whose fences are reached, so that its memory can be written now.
        """
        self._used[pool] = time.monotonic()
        self._rest = _REST
        spare = self._find(pool, description, at_once=at_once)
        if spare is None:
            self.collect(pool)
            spare = self._find(pool, description, at_once=at_once)
        if spare is not None and spare.fences:
            self._narrow(spare)
            if spare.fences:
                self._granted[spare.grant.id] = spare, spare.fences
                self._session.timelines.pin(spare.fences)
        return spare

    def _find(self, pool: int, description: Description, *, at_once: bool) -> Spare | None:
        kept = self._kept.get(pool)
        for place, spare in enumerate(kept or ()):
            if spare.description != description:
                continue
            if at_once and spare.fences:
                self._narrow(spare)
                if spare.fences:
                    continue
            del kept[place]  # type: ignore[union-attr] # there is one in it
            return spare
        return None

    def collect(self, pool: int) -> None:
        """Collect the leases that came back from the channels of a pool."""
        for producer in list(self._session.producers.values()):
            if producer.channel.pl == pool:
                producer.collect()
                if producer.over and not producer.loans and not self._session.returns.uses(producer):
                    self._session.retire(producer)

    def is_full(self, pool: int) -> bool:
        """Whether an allocation has found no room in a pool within the last `_FULL` seconds."""
        return self._full.get(pool, 0) > time.monotonic()

    def note_full(self, pool: int) -> None:
        """Note that a pool has no room."""
        self._full[pool] = time.monotonic() + _FULL

    def lender(self, pool: int, description: Description) -> Producer | None:
        """Return the producer that has published the blocks that an allocation may wait for.

        A producer fits if its channel has a reusable lease with this description. Return None if no producer or several
        producers fit, or if the service wants memory of the pool.
        """
        if self._is_wanted(pool):
            return None
        lenders = [
            producer
            for producer in list(self._session.producers.values())  # copies: other threads publish and open channels
            if producer.channel.pl == pool
            and any(spare.reusable and spare.description == description for spare in list(producer.loans.values()))
        ]
        return lenders[0] if len(lenders) == 1 else None

    def ask(self, asking: Asking) -> None:
        """Collect leases that come back to a pool, for the allocation `asking`, until `asked` is called.

        If the allocation waits for memory, release the spares of the pool and the leases that come back, except one
        that the allocation can use.
        """
        self._asking.add(asking)
        self.collect(asking.pool)
        self._tidy(time.monotonic())
        if self._lending():
            self._bell.set()
            self.watch()

    def asked(self, asking: Asking) -> Spare | None:
        """Undo `Spares.ask`, because the allocation has ended. Return the lease that came back for it and is unused."""
        self._asking.discard(asking)
        unused, asking.came = asking.came, None
        return unused

    def put(self, spare: Spare) -> None:
        """Keep `spare`, which came back, for later frames. If the session cannot keep the lease, release it."""
        self.published(spare.grant)
        pool, now = spare.grant.pl, time.monotonic()
        if spare.reusable and not self._closing and not self._is_wanted(pool):
            kept = self._kept.setdefault(pool, deque())
            kept.append(spare)
            if len(kept) > _MORE and len(kept) > self._most(pool):
                self._leaving.append(kept.popleft())
        else:
            self._leaving.append(spare)
        if self._leaving:
            self._tidy(now)
            self._bell.set()
        self.watch()

    def take_back(self, grant: Grant, fences: tuple[Fence, ...]) -> bool:
        """Take back a spare that the user got and released without publishing. Release it when its fences are reached.

        Return False if the lease was no spare, or if its fences are reached already. Then the caller releases it.
        """
        spare, _ = self._granted.get(grant.id, (None, ()))
        self.published(grant)
        if spare is None:
            return False
        self._narrow(spare)
        if not spare.fences:
            return False
        spare.fences = (*spare.fences, *fences)
        self._leaving.append(spare)
        self._bell.set()
        self.watch()
        return True

    def published(self, grant: Grant) -> None:
        """Forget the fences of a lease in `_granted`.

        After a publication they are not needed: when the lease's new fence is reached, they are reached, too.
        """
        granted = self._granted.pop(grant.id, None)
        if granted is not None:
            self._session.timelines.unpin(granted[1])

    def want(self, pool: int) -> None:
        """Release a pool's spares and, for `_WANTED` seconds, leases that come back: the service wants memory."""
        self._wanted[pool] = time.monotonic() + _WANTED
        self._bell.set()
        self.watch()

    def release_within(self, seconds: float) -> None:
        """Release all spares, because the client closes. Wait at most `seconds` for the work of GPUs on the spares."""
        deadline = time.monotonic() + seconds
        while not self._session.release_spares() and time.monotonic() < deadline:
            time.sleep(_GLANCE)  # a GPU does not wake threads

    def release_all(self) -> bool:
        """Release all spares whose fences are reached. Return False if spares remain."""
        for producer in list(self._session.producers.values()):
            producer.collect()
        for kept in self._kept.values():
            self._leaving.extend(kept)
            kept.clear()
        self._tidy(time.monotonic())
        return not self._leaving

    def close(self) -> None:
        """Release all spares, each when its fences are reached, and keep none any more, because the client closes."""
        self._closing = True
        self.release_all()
        self._bell.set()
        self.watch()

    def end(self) -> None:
        """Give up all spares, because the session has ended."""
        for kept in (*self._kept.values(), self._leaving):
            for spare in kept:
                self.disown(spare)
            kept.clear()
        self._bell.set()

    # Internals

    def _is_used(self, pool: int, now: float) -> bool:
        return now - self._used.get(pool, 0) < _IDLE and not self._is_wanted(pool)

    def _is_wanted(self, pool: int) -> bool:
        """Whether the service wants memory of a pool, for other clients or for an allocation of this client."""
        if self._asking and any(one.pool == pool and one.waits for one in list(self._asking)):
            return True
        return self._others_want(pool)

    def _others_want(self, pool: int) -> bool:
        return bool(self._wanted) and self._wanted.get(pool, 0) > time.monotonic()

    def _is_sought(self, pool: int) -> bool:
        """Whether an allocation in a pool waits for the service's answer, or the service wants memory of the pool."""
        return any(one.pool == pool for one in list(self._asking)) or self._others_want(pool)

    def _hand(self, spare: Spare) -> bool:
        """Give a lease to an allocation that fits and waits for the service's answer; return False if there is none."""
        if self._asking and spare.reusable and not self._others_want(spare.grant.pl):
            for one in list(self._asking):
                if one.came is None and one.pool == spare.grant.pl and one.description == spare.description:
                    one.came = spare
                    return True
        return False

    def _most(self, pool: int) -> int:
        return _MORE + sum(one.channel.cp for one in list(self._session.producers.values()) if one.channel.pl == pool)

    def _narrow(self, spare: Spare) -> None:
        """Remove those fences of a spare that are reached."""
        if spare.fences:
            spare.fences = tuple([fence for fence in spare.fences if not self._reached(fence)])

    def _reached(self, fence: Fence) -> bool:
        timelines, core = self._session.timelines, self._session.core
        if timelines.unknown(core.epoch, (fence,)):
            self._ask(fence.tl)
            return False
        page = timelines.page(fence.tl)
        return page is None or page.reached(fence.wd, fence.v)

    def _ask(self, timeline: int) -> None:
        if timeline not in self._asked:
            self._asked.add(timeline)
            self._session.learn_timeline(timeline, self._learned)

    def _learned(self, timeline: int) -> None:
        self._asked.discard(timeline)
        self._bell.set()

    def _tidy(self, now: float) -> None:
        """Move the spares of unused pools to `_leaving`. Release the spares in `_leaving` whose fences are reached."""
        for pool, kept in self._kept.items():
            if kept and not self._is_used(pool, now):
                self._leaving.extend(kept)
                kept.clear()
        stay = []
        for spare in self._leaving:
            self._narrow(spare)
            if spare.fences:
                stay.append(spare)
            elif not self._hand(spare):
                self._session.end_spare(spare.grant)
        self._leaving = stay

    def watch(self) -> None:
        """Start the thread that collects and releases spares, unless this thread runs already."""
        if self._thread is None and self._session.ended is None and (self._leaving or not self._closing):
            self._thread = threading.Thread(target=self._run, name="poolbridge-spares", daemon=True)
            self._thread.start()

    def _soon(self, now: float) -> float | None:
        """Return after how many seconds the thread has work to do; None if the thread has no work.

        The thread stays alive while the program allocates in pools, even if no spare is left: to keep the thread costs
        less than to start it again and again.
        """
        if self._leaving or self._asking or any(until > now for until in self._wanted.values()):
            return _LOOK
        ends = [end for used in self._used.values() if (end := used + _IDLE) > now]
        if ends:
            return max(min(ends) - now, _LOOK)
        if not self._lending():
            return None
        rest, self._rest = self._rest, min(2 * self._rest, _LONGEST_REST)
        return rest

    def _lending(self) -> set[int]:
        """Return the ids of the pools of the blocks that this session has published and not got back."""
        return {producer.channel.pl for producer in list(self._session.producers.values()) if producer.loans}

    def _run(self) -> None:
        try:
            while (seconds := self._turn()) is not None:
                wanted = self._wanting()
                for producer in wanted:
                    producer.await_back(_LOOK / len(wanted))
                self._bell.wait(_GLANCE if wanted else seconds)
                self._bell.clear()
        except PoolbridgeError:
            pass  # the session has ended
        finally:
            if self._thread is threading.current_thread():
                self._thread = None  # also after an exception, so that `watch` can start another thread

    def _turn(self) -> float | None:
        with self._session.lock:
            now = time.monotonic()
            for pool in self._lending():
                if now - self._used.get(pool, 0) >= _IDLE:  # if a pool is in use, its allocations collect leases
                    self.collect(pool)
            self._tidy(now)
            seconds = self._soon(now) if self._session.ended is None else None
            if seconds is None:
                self._thread = None
            return seconds

    def _wanting(self) -> list[Producer]:
        """Return each producer whose blocks have not all come back, if memory of the blocks' pool is sought."""
        return [
            producer
            for producer in list(self._session.producers.values())
            if producer.loans and self._is_sought(producer.channel.pl)
        ]
