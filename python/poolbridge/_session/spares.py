"""Leases that came back from channels: they are kept for the next frame for a while, and then released."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from msgspec import UNSET, structs

from poolbridge._session.lease_state import LeaseState
from poolbridge._session.membership import NATIVE
from poolbridge._sys import process as _process
from poolbridge._sys.errors import PoolbridgeError
from poolbridge._wire.messages import Fence, Grant

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolbridge._memory.tensor import Description
    from poolbridge._session.producer import Producer
    from poolbridge._session.session import Session
    from poolbridge._session.session_members import SessionMembers

# Leases of a pool are not kept for longer than so many seconds in which nothing is allocated in it.
_IDLE: Final = 1.0
# For how long all that comes back is released after the service has asked for it.
_WANTED: Final = 1.0
# More leases are kept than a pool's channels have places.
_MORE: Final = 2
# How long a producer that does not allocate rests between two looks for blocks that come back: at first, and at most.
_REST: Final = 0.5
_LONGEST_REST: Final = 1.0
# How long one look for blocks that come back may sleep, and how often fences are looked at: a GPU wakes nobody.
_LOOK: Final = 10e-3
# For how long a pool that had no room is taken to have none, while channels have memory of its own.
_FULL: Final = 5.0
# How often fences are looked at while the client closes, and how long a look rests that may have come to nothing.
_GLANCE: Final = 1e-3


if TYPE_CHECKING:
    from poolbridge._native import Lent as _Lent
    from poolbridge._native import Shelf as _NativeShelf
else:  # without the native module nobody has any
    _Lent = object if NATIVE is None else NATIVE.Lent
    _NativeShelf = object if NATIVE is None else NATIVE.Shelf


class Spare(_Lent):
    """A write lease that a channel has or that came back, and what must be reached before its memory is written again.

    Parameters
    ----------
    state
        The lease as its last user had it.
    fences
        What must be reached before the memory is written again, or the lease released.

    Attributes
    ----------
    reusable
        Whether the lease can be kept for the next frame: nobody else can have a name or a lease of its buffer.
    owned
        Whether this client has it, and no channel; publishers note it.
    shelf, lender, array
        Of a publisher's lease: where the publisher finds it, its array, and what keeps the array's memory mapped.
    """

    __slots__ = ("_description", "_memory", "_pool", "grant", "lender", "reusable")

    def __init__(self, state: LeaseState, fences: tuple[Fence, ...]) -> None:
        self.grant = grant = state.grant
        self.block, self.buffer, self.nbytes = grant.bl, grant.bf, grant.n
        self.fences = fences
        self.reusable = state.allocated
        self._pool = state.pool
        self._memory = state.memory
        self._description = state.description
        self.owned = True
        self.shelf = None
        self.lender: LeaseState | None = None
        self.array = None

    def __del__(self) -> None:
        # A publisher's, which nobody has any more: a signal's handler raised between two of its steps.
        if (
            self.owned
            and self.shelf is not None
            and self.lender is not None
            and _process.pid == self.lender.session.pid
        ):
            self.lender.session.lose_spare(self.grant)

    def take_off(self) -> bool:
        """Make it a lease like any other; False if the array that its publisher made of it is still used."""
        self.array = None
        lender = self.lender
        if lender is not None and (lender.tokens or lender.unaccounted):
            return False
        self.leave_shelf()
        return True

    def leave_shelf(self) -> None:
        """Make it a lease like any other; its publisher's array is not to be used any more."""
        self.shelf = self.lender = self.array = None

    def hold(self, session: Session, description: Description) -> LeaseState:
        """Make a lease state of the lease, as if the service had granted it now."""
        grant = self.grant
        if description is not self._description or self.fences != grant.wt or grant.ev:
            tensor = description.to_wire()
            grant = structs.replace(grant, t=tensor, wt=self.fences, x=UNSET, ev=b"", eo=False)
        state = LeaseState(session, grant, self._pool, self._memory, description)
        state.allocated = True
        return state


class Asking:
    """An allocation of this client that waits at the service: what comes back in its pool is released meanwhile."""

    __slots__ = ("__weakref__", "pool")

    def __init__(self, pool: int) -> None:
        self.pool = pool


class Shelf(_NativeShelf):
    """The leases of one publisher. The session's lock guards them; what the native module does is one step.

    Attributes
    ----------
    free
        Those that came back, the oldest first.
    loan
        The one whose array the user writes, if there is one. It is taken from here in one step, by the publisher or by
        those that end it.
    used
        When the publisher took one last.
    producer
        The producer of the publisher's channel, once it has a lease.
    most
        How many leases are kept in `free`, besides those that are `extra`.
    extra
        How many leases there are more than the publisher needs, so that several come back together.
    wanting
        Whether there are to be more.
    closed
        Whether the publisher was closed.
    aside
        Whether what comes back is not the publisher's now, because memory is wanted.
    busy
        Whether a call of the publisher waits.
    """

    __slots__ = ("pool", "producer")

    def __init__(self, pool: int, most: int) -> None:
        self.pool = pool
        self.most = most
        self.producer: Producer | None = None
        self.wanting = True

    def publish_with(self, producer: Producer, described: tuple[int, bytes]) -> None:
        """Publish with a producer from now on, frames of that description."""
        self.producer = producer
        self.owner, self.loans = producer.native, producer.loans
        self.description_id, self.described = described

    def take_strays(self) -> None:
        """Put what came back elsewhere where it belongs. The lock is held."""
        while self.strays and self.producer is not None:
            self.producer.take_back(self.strays[:1])
            del self.strays[:1]

    def take_free(self) -> list[Spare]:
        """Give those away that came back, as leases like any others."""
        spares = _drained(self.free)
        for spare in spares:
            spare.leave_shelf()
        return spares


def _drained(spares: list[Spare]) -> list[Spare]:
    """Empty a list from which a publisher takes some, too, without the session's lock."""
    taken = []
    with suppress(IndexError):
        while True:
            taken.append(spares.pop(0))
    return taken


class Spares:
    """The spare leases of one session. The session's lock guards them.

    Parameters
    ----------
    session
        Whose leases they are.
    """

    def __init__(self, session: SessionMembers) -> None:
        self._session = session
        self._kept: dict[int, deque[Spare]] = {}  # by pool, the oldest first
        self._shelves: set[Shelf] = set()
        self._over = False  # the session has ended, or is about to
        self._leaving: list[Spare] = []  # to be released once their fences are reached
        # By lease, those that allocations have got, and the fences that count for them.
        self._granted: dict[int, tuple[Spare, tuple[Fence, ...]]] = {}
        self._used: dict[int, float] = {}  # by pool, when it was allocated in last
        self._wanted: dict[int, float] = {}  # by pool, until when what comes back is released
        self._asking: WeakSet[Asking] = WeakSet()
        self._full: dict[int, float] = {}  # by pool, until when it is taken to have no room
        self._asked: set[int] = set()  # timelines whose pages were asked for
        self._rest = _REST
        self._thread: threading.Thread | None = None
        self._bell = threading.Event()

    def __len__(self) -> int:
        return sum(map(len, self._kept.values())) + len(self._leaving) + sum(len(one.free) for one in self._shelves)

    # Publishers

    def drop_shelf(self, shelf: Shelf) -> None:
        """Release a publisher's leases; those that a channel has, once they come back."""
        shelf.closed = True
        if self._over:
            for spare in (*shelf.take_free(), *_drained(shelf.loan)):
                self._disown(spare)
            return
        self._shelves.discard(shelf)
        for spare in shelf.take_free():
            self.put(spare)
        self._end_loan(shelf, self.put)

    def _end_loan(self, shelf: Shelf, put: Callable[[Spare], None]) -> None:
        """Take the loan from a publisher; while its array is used, the lease is the array's and ends with it."""
        for spare in _drained(shelf.loan):
            lender = spare.lender
            if spare.take_off() or lender is None:
                put(spare)
            else:
                spare.leave_shelf()
                self._session.leave_to_arrays(lender)

    def _disown(self, spare: Spare) -> None:
        spare.leave_shelf()
        self._session.disown(spare.grant)

    def lend_to(self, shelf: Shelf, spare: Spare) -> None:
        """Put a lease on loan to a publisher."""
        if self._over:
            self._disown(spare)
            return
        shelf.loan.append(spare)
        if shelf.closed:
            self.drop_shelf(shelf)
        else:
            self._shelves.add(shelf)

    def collect_for(self, shelf: Shelf) -> int:
        """Take what has come back to a publisher; give how many leases it has then."""
        if shelf.producer is not None:
            self._used[shelf.pool] = time.monotonic()
            self._rest = _REST
            shelf.take_strays()
            shelf.producer.collect()
            shelf.aside = self._is_wanted(shelf.pool)
            shelf.look()
            if shelf.producer.over and not shelf.producer.loans:
                self._session.retire(shelf.producer)
            self.watch()
        return len(shelf.free)

    def came_back(self, spare: Spare) -> None:
        """Put a lease that came back where its publisher finds it, or where all do."""
        shelf = spare.shelf
        if (
            shelf is None
            or shelf.closed
            or spare.fences
            or len(shelf.free) >= shelf.most + shelf.extra
            or self._is_wanted(spare.grant.pl)
        ):
            self.put(spare)
        else:
            shelf.free.append(spare)

    # All

    def take(self, pool: int, nbytes: int, *, at_once: bool = False) -> Spare | None:
        """Give a lease of just as many bytes, if one has come back; `at_once`: one whose memory can be written now."""
        self._used[pool] = time.monotonic()
        self._rest = _REST
        spare = self._find(pool, nbytes, at_once=at_once)
        if spare is None:
            self.collect(pool)
            spare = self._find(pool, nbytes, at_once=at_once)
        if spare is not None and spare.fences:
            self._narrow(spare)
            if spare.fences:
                self._granted[spare.grant.id] = spare, spare.fences
                self._session.timelines.pin(spare.fences)
        return spare

    def _find(self, pool: int, nbytes: int, *, at_once: bool) -> Spare | None:
        kept = self._kept.get(pool)
        for place, spare in enumerate(kept or ()):
            if spare.grant.n != nbytes:
                continue
            if at_once and spare.fences:
                self._narrow(spare)
                if spare.fences:
                    continue
            del kept[place]  # type: ignore[union-attr] # there is one in it
            return spare
        return None

    def collect(self, pool: int) -> None:
        """Take what has come back from the channels of a pool."""
        for shelf in self._shelves:
            shelf.take_strays()
        for producer in list(self._session.producers.values()):
            if producer.channel.pl == pool:
                producer.collect()
                if producer.over and not producer.loans:
                    self._session.retire(producer)

    def is_full(self, pool: int) -> bool:
        """Whether a pool had no room a short while ago."""
        return self._full.get(pool, 0) > time.monotonic()

    def note_full(self, pool: int) -> None:
        """Note that a pool has no room."""
        self._full[pool] = time.monotonic() + _FULL

    def lender(self, pool: int, nbytes: int, shelf: Shelf | None) -> Producer | None:
        """Give the producer whose channel has leases of just as many bytes that are kept for later when they come back.

        `shelf`: of that publisher. None: there is no such producer, or more than one, or others want the memory.
        """
        if self._is_wanted(pool):
            return None
        lenders = [
            producer
            for producer in list(self._session.producers.values())  # lists: other threads publish and open channels
            if producer.channel.pl == pool
            and any(
                spare.shelf is shelf and spare.reusable and spare.grant.n == nbytes
                for spare in list(producer.loans.values())
            )
        ]
        return lenders[0] if len(lenders) == 1 else None

    def ask(self, asking: Asking) -> None:
        """Release what is kept and what comes back in a pool, as long as an allocation waits at the service."""
        self._asking.add(asking)
        self._set_aside(asking.pool)
        self.collect(asking.pool)
        self._tidy(time.monotonic())
        if self._lending():
            self._bell.set()
            self.watch()

    def asked(self, asking: Asking) -> None:
        """End what `ask` began."""
        self._asking.discard(asking)

    def put(self, spare: Spare) -> None:
        """Keep a lease that came back, or release it where it cannot be kept."""
        self.published(spare.grant)
        spare.leave_shelf()
        pool, now = spare.grant.pl, time.monotonic()
        if spare.reusable and not self._is_wanted(pool):
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
        """Take a lease back whose user releases it unpublished; False if the service can have it at once."""
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
        """Note that a lease is a channel's again: what it waited for, its ready fence stands for."""
        granted = self._granted.pop(grant.id, None)
        if granted is not None:
            self._session.timelines.unpin(granted[1])

    def want(self, pool: int) -> None:
        """Release what is kept and, for a second, what comes back."""
        self._wanted[pool] = time.monotonic() + _WANTED
        self._set_aside(pool)
        self._bell.set()
        self.watch()

    def _set_aside(self, pool: int) -> None:
        """Have publishers look whether memory is wanted before they use what comes back."""
        for shelf in self._shelves:
            if shelf.pool == pool:
                shelf.aside = True

    def release_within(self, seconds: float) -> None:
        """Release all, because the client closes; for what GPUs work on it waits so long."""
        deadline = time.monotonic() + seconds
        while not self._session.release_spares() and time.monotonic() < deadline:
            time.sleep(_GLANCE)  # a GPU wakes nobody

    def release_all(self) -> bool:
        """Release all that can be released; False if fences are still to be reached."""
        for producer in list(self._session.producers.values()):
            producer.collect()
        for kept in self._kept.values():
            self._leaving.extend(kept)
            kept.clear()
        for shelf in self._shelves:
            self._leaving.extend(shelf.take_free())
            self._end_loan(shelf, self._leaving.append)
        self._tidy(time.monotonic())
        return not self._leaving

    def end(self) -> None:
        """Keep nothing any more: the session has ended."""
        for kept in (*self._kept.values(), self._leaving):
            for spare in kept:
                self._disown(spare)
            kept.clear()
        self._over = True
        for shelf in list(self._shelves):
            self.drop_shelf(shelf)
        self._shelves.clear()
        self._bell.set()

    # Inside

    def _is_used(self, pool: int, now: float) -> bool:
        return now - self._used.get(pool, 0) < _IDLE and not self._is_wanted(pool)

    def _is_wanted(self, pool: int) -> bool:
        """Whether the service wants memory of a pool, for others or for an allocation of this client."""
        if self._asking and any(one.pool == pool for one in list(self._asking)):
            return True
        return bool(self._wanted) and self._wanted.get(pool, 0) > time.monotonic()

    def _most(self, pool: int) -> int:
        return _MORE + sum(one.channel.cp for one in list(self._session.producers.values()) if one.channel.pl == pool)

    def _narrow(self, spare: Spare) -> None:
        """Forget the fences of a lease that are reached."""
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
        """Release what is not to be kept any more and whose fences are reached."""
        for pool, kept in self._kept.items():
            if kept and not self._is_used(pool, now):
                self._leaving.extend(kept)
                kept.clear()
        for shelf in self._shelves:
            if shelf.free and not (now - shelf.used < _IDLE and not self._is_wanted(shelf.pool)):
                self._leaving.extend(shelf.take_free())
        stay = []
        for spare in self._leaving:
            self._narrow(spare)
            if spare.fences:
                stay.append(spare)
            else:
                self._session.end_spare(spare.grant)
        self._leaving = stay

    def watch(self) -> None:
        """Have a thread look again when there is something to release."""
        if self._thread is None and self._session.ended is None:
            self._thread = threading.Thread(target=self._run, name="poolbridge-spares", daemon=True)
            self._thread.start()

    def _soon(self, now: float) -> float | None:
        """Give in how many seconds there is something to do; None: never.

        While a pool is allocated in there will be: a thread for every moment without spare leases would cost more.
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
        """Give the pools of which channels have blocks."""
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
                self._thread = None  # whatever happened: the next that is needed can start

    def _turn(self) -> float | None:
        with self._session.lock:
            now = time.monotonic()
            for pool in self._lending():
                if now - self._used.get(pool, 0) >= _IDLE:  # otherwise allocations collect
                    self.collect(pool)
            self._tidy(now)
            seconds = self._soon(now) if self._session.ended is None else None
            if seconds is None:
                self._thread = None
            return seconds

    def _wanting(self) -> list[Producer]:
        """Give the producers whose blocks are wanted, if there are some in flight."""
        return [
            producer
            for producer in list(self._session.producers.values())
            if producer.loans and self._is_wanted(producer.channel.pl)
        ]
