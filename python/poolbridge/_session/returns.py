"""Gives memory back when channels are done with it: leases of frames, arenas of publishers, and arrays that are copied.

An arena is a buffer that a publisher divides into chunks, one for each frame.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakSet

from poolbridge._session.session_memory import SessionMemory
from poolbridge._sys import process as _process
from poolbridge._sys.deferred import Flag
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.native import NATIVE
from poolbridge._wire.messages import Fence
from poolbridge.errors import (
    PoolbridgeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import ReferenceType

    from poolbridge._native import Arena as _Arena, Chunks as _Chunks
    from poolbridge._session.lease_state import Divided, LeaseState
    from poolbridge._wire.messages import ChannelIdentity, Grant, Tensor

    Maker = Callable[[Any, Grant], LeaseState | None]  # makes the state of a session's lease: `grants.mapped_state`
else:  # without the native module there are no channels, and so no publishers
    _Arena = object if NATIVE is None else NATIVE.Arena
    _Chunks = object if NATIVE is None else NATIVE.Chunks

# Numbers of seconds. A publisher gives its free arenas back when it made no loan and published nothing for `_IDLE` s.
_IDLE: Final = 1.0
# For `_WANTED` seconds after the service has said that somebody waits for memory, memory goes back when it comes back.
_WANTED: Final = 0.5
# The longest pause between two checks whether the memory of frames came back.
_REST: Final = 0.5
# The pause between two checks of fences, which a GPU writes without waking a thread; `_GLANCE` while the client closes.
_LOOK: Final = 10e-3
_GLANCE: Final = 1e-3
# How many leases that came back stay although the next frame of an arena needs another one.
_MOST_RANGES: Final = 64


class Producer(Protocol):
    """The part of a producer that this module uses; see `poolbridge._session.producer.Producer`."""

    channel: ChannelIdentity
    outstanding: dict[int, Returned]
    over: bool
    left: bool

    @property
    def session(self) -> SessionReturns:
        """The producer's session."""

    def collect(self) -> None:
        """Take the blocks that came back. The caller holds the session's lock."""

    def await_back(self, seconds: float | None) -> Any:
        """Wait until chunks or blocks come back, and take these blocks."""


class SessionReturns(SessionMemory):
    """The part of a session that this module uses. The caller of each method holds the session's lock.

    Attributes
    ----------
    pid
        The process of the session.
    producers
        The session's producers, by channel id.
    lease_states
        The states of the session's leases, by lease id.
    sent_states
        The states whose leases went to channels while arrays made from them were alive, and those of publishers.
    closing
        Whether the client closes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pid = _process.pid
        self.producers: dict[int, Producer] = {}
        self.lease_states: dict[int, ReferenceType[LeaseState]] = {}
        self.sent_states: WeakSet[LeaseState] = WeakSet()
        self.closing = False

    @abstractmethod
    def leave_to_arrays(self, keeper: LeaseState) -> None:
        """Let the lease of `keeper` end when the arrays made from `keeper` are gone."""

    @abstractmethod
    def retire(self, producer: Producer) -> None:
        """Make a producer leave its channel, because the channel is closed."""

    @abstractmethod
    def leave_and_release(self, member: Any, grant: Grant) -> None:
        """Tell the service that a producer has left, and then release a lease whose block its channel may still need.

        If the channel needs the block, the service ends the lease when the producer leaves, and ignores the release.
        """

    @abstractmethod
    def give_up(self, grant: Grant, fences: tuple[Fence, ...]) -> None:
        """Note that the service ends a lease. The session waits for `fences` before it unmaps the lease's block."""

    @abstractmethod
    def end_lease(self, grant: Grant) -> None:
        """Release a lease that nothing uses any more."""

    @abstractmethod
    def lose_arena(self, arena: Arena) -> None:
        """Release an arena to which no object refers. Never waits, never raises; the caller does not hold the lock."""

    @abstractmethod
    def learn_timeline(self, timeline: int, then: Callable[[int], None]) -> None:
        """Ask the service for a timeline's page, without waiting for the reply.

        When the service replies, this session maps the page, if the service has sent it, and calls `then` in any case.
        """


class Returned:
    """A write lease that a channel has or has given back.

    Attributes
    ----------
    grant
        The lease's grant.
    fences
        Fences that must be reached before the lease is released.
    allocated
        Whether the lease came with its buffer, so that nobody else can know the buffer.
    producer
        The producer that has left without the lease, which an array needed; else None.
    part_of
        If the buffer is a range of an arena's block: the block.
    """

    __slots__ = ("_arrays", "allocated", "fences", "grant", "owned", "part_of", "producer")
    left_to_arrays = False

    def __init__(
        self,
        grant: Grant,
        fences: tuple[Fence, ...],
        *,
        allocated: bool = False,
        arrays: ReferenceType[LeaseState] | None = None,
        part_of: ReferenceType[Divided] | None = None,
    ) -> None:
        self.grant = grant
        self.fences = fences
        self.allocated = allocated
        self.owned = True
        self.producer: Producer | None = None
        self.part_of = part_of
        self._arrays = arrays

    @property
    def place(self) -> tuple[int, int] | None:
        """The block and the first byte of a range of an arena."""
        return None if self.part_of is None else (self.grant.block, self.grant.base)

    @property
    def sent(self) -> bool:
        """Whether the channel may still need the lease, although its producer has left."""
        return self.producer is not None

    @property
    def in_use(self) -> bool:
        """Whether the program still has an array of the lease, through which it could write into the memory."""
        state = None if self._arrays is None else self._arrays()
        return state is not None and bool(state.tokens or state.unaccounted)

    def all_fences(self) -> tuple[Fence, ...]:
        """Return the fences that must be reached before the lease is released."""
        return self.fences


class Arena(_Arena):
    """A write lease of one buffer, which its publisher divides into chunks.

    Parameters
    ----------
    state
        The lease's state.
    producer
        The producer that publishes the frames.
    chunks, stride
        Number of chunks, and number of bytes from one chunk to the next.

    Attributes
    ----------
    arrays
        The states of the arrays that were made of the chunks.
    owned
        Whether this object has the lease, and not `state`.
    left_to_arrays
        Whether the lease lasts as long as an array that the program still uses; see `Returns.close_chunks`.
    fences
        Fences that must be reached before the lease is released, besides those of the chunks.
    """

    __slots__ = ("arrays", "fences", "left_to_arrays", "owned", "producer", "state")

    def __init__(self, state: LeaseState, producer: Producer, chunks: int, stride: int) -> None:
        self.arrays: WeakSet[LeaseState] = WeakSet()
        self.owned = self.left_to_arrays = False
        self.state = state
        self.producer = producer
        self.fences: tuple[Fence, ...] = ()
        grant = state.grant
        self.divide(
            grant.block,
            grant.buffer,
            chunks,
            stride,
            [(fence.timeline, fence.word, fence.value) for fence in grant.wait],
        )

    @property
    def grant(self) -> Grant:
        """The lease's grant."""
        return self.state.grant

    @property
    def in_use(self) -> bool:
        """Whether a frame of the arena may come back, or the program has an array that was made of the arena.

        The publisher does not use the arena any more.
        """
        if self.left_to_arrays or (self.sent > 0 and not self.producer.left):
            return True
        return any(state.tokens or state.unaccounted for state in self.arrays)

    def all_fences(self) -> tuple[Fence, ...]:
        """Return the fences that must be reached before the lease is released. No chunk is in use."""
        latest = {(fence.timeline, fence.word): fence.value for fence in self.fences}
        for timeline, word, value in self.take_fences():
            latest[timeline, word] = max(value, latest.get((timeline, word), 0))
        self.fences = tuple([Fence(timeline, word, value) for (timeline, word), value in latest.items()])
        return self.fences

    @while_running
    def __del__(self) -> None:
        # A signal handler raised an error between two steps of the publisher, so that nobody else has the arena.
        if self.owned and _process.pid == self.producer.session.pid:
            self.producer.session.lose_arena(self)


class Chunks(_Chunks):
    """The chunks of one publisher. The native methods need no lock, because no other thread runs during them.

    Parameters
    ----------
    pool
        The id of the pool of the channel.

    Attributes
    ----------
    producer
        The producer of the publisher's channel; None before the first loan.
    """

    __slots__ = ("pool", "producer")

    def __init__(self, pool: int) -> None:
        self.pool = pool
        self.producer: Producer | None = None


def _start(name: str, work: Callable[[], None]) -> threading.Thread | None:
    """Start a thread. None: no thread can start now, which must not end the session; a later call tries again."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


class Returns:
    """The arenas of one session, and its leases that came back. The session's lock guards this object.

    Parameters
    ----------
    session
        The session.
    """

    def __init__(self, session: SessionReturns) -> None:
        self._session = session
        self._chunks: set[Chunks] = set()  # of the publishers that have arenas
        # The keys of these are lease ids, so that what a signal handler has interrupted can be repeated.
        self._leaving: dict[int, Arena | Returned] = {}  # released when nothing uses them and their fences are reached
        self._back: dict[int, Returned] = {}  # that came back: for `allocate`, or frames of arenas, until `collect`
        self._sources: list[tuple[Fence, object]] = []  # arrays from which streams copy until the fence is reached
        self._left_to_arrays: dict[int, Arena] = {}  # those whose lease an array of the program has or had
        self._over = False  # whether the session has ended
        self._scarce: dict[int, float] = {}  # until when somebody waits for memory of a pool, by pool id
        self._drained: set[Producer] = set()  # those for which a thread waits for what comes back
        self._asked: set[int] = set()  # timelines whose pages were requested
        self._thread: threading.Thread | None = None
        self._bell = Flag()

    def __len__(self) -> int:
        return len(self._leaving) + len(self._back) + sum(len(chunks.arenas) for chunks in self._chunks)

    # Publishers

    def add(self, chunks: Chunks, arena: Arena) -> None:
        """Let a publisher use an arena. `arena` has the lease from now on."""
        state = arena.state
        state.released, state.owed = True, False  # no handler of a signal runs between this step and the next
        arena.owned = True
        chunks.add(arena)
        self._session.lease_states.pop(state.grant.id, None)
        chunks.used = time.monotonic()
        self._chunks.add(chunks)
        if chunks.closed or self._session.closing or self._over:
            self.close_chunks(chunks)
        self.watch()

    def close_chunks(self, chunks: Chunks) -> None:
        """Let a publisher's arenas go. If the program uses the array on loan, its arena lasts as long as the array."""
        chunks.closed = True
        self._chunks.discard(chunks)
        self._leave_loan(chunks)
        self.leave(*chunks.let_go(False))

    def _leave_loan(self, chunks: Chunks) -> None:
        """Leave the lease of the arena on loan to the array on loan, if the program or its streams use the array."""
        loan = chunks.loan
        if loan is None or loan[2] is None:
            return
        arena, keeper, loan = loan[0], loan[2], None  # `loan` has the array, which only the program may keep now
        following = chunks.following
        keeper.fences = tuple([Fence(*fence) for fence in chunks.fences])
        if following is not None and keeper.streams is None:
            keeper.streams, keeper.named = {following.key: keeper.fences}, True
        chunks.fit(None, keeper)  # only arrays that the program uses are left
        if (
            arena.left_to_arrays
            or self._over
            or not (keeper.tokens or keeper.unaccounted or keeper.unordered or keeper.streams is not None)
        ):
            return
        self._left_to_arrays[arena.grant.id] = arena
        self._session.leave_to_arrays(keeper)
        arena.left_to_arrays = True

    def leave(self, *leases: Arena | Returned) -> None:
        """Release leases that came back, or arenas that no publisher uses any more."""
        if not leases:
            return
        self._leaving.update({one.grant.id: one for one in leases})
        self.settle()

    def settle(self) -> None:
        """Release the leases in `_leaving`, each when nothing uses it."""
        if self._over:
            self.end()
        self._tidy()
        self._bell.set()
        self.watch()

    def came_back(self, one: Returned, *, over: bool) -> bool:
        """Keep a lease that came back for `reuse_returned`: return False. Or return True, and `settle` releases it.

        Release it if no allocation can use it, or if its channel is over: then its producer may leave the channel.
        """
        renews = one.allocated and not (over or self._over or self._session.closing)
        back: dict[int, Any] = self._back if renews else self._leaving
        if one.part_of is not None and (block := one.part_of()) is not None:
            block.came.append((one.grant.buffer, one.fences))
        back[one.grant.id] = one
        return not renews

    def reuse_returned(
        self, pool: int, tensor: Tensor, make: Maker, place: tuple[int, int] | None = None
    ) -> LeaseState | None:
        """Let `make` make the state of a lease that came back, on a buffer for `tensor` in the pool.

        The service need not know, because it describes the lease in the same way. If there is no such lease, if `make`
        returns None, or if somebody waits for memory of the pool, release the leases that came back, and return None. A
        lease of which the program has an array stays: a later call may return it. `place` is that of a range
        of an arena, as in `Returned.place`; then up to `_MOST_RANGES` leases stay.
        """
        if place is None:  # the memory of a range is used again only when its lease is here
            for producer in list(self._session.producers.values()):
                if producer.channel.pool == pool:
                    producer.collect()
        if not self._scarce or time.monotonic() >= self._scarce.get(pool, 0):
            for id_, one in self._back.items():
                grant = one.grant
                if one.place == place and grant.pool == pool and grant.tensor == tensor and not one.in_use:
                    if one.fences:
                        one.fences = tuple([fence for fence in one.fences if not self.reached(fence)])
                    block = self._session.core.blocks.get(grant.block)
                    if one.fences or block is None or block.recalled:
                        break
                    try:
                        state = make(self._session, grant)
                    except BaseException:  # `make` may have released the lease
                        self._leaving[id_] = one
                        del self._back[id_]
                        raise
                    if state is None:
                        break
                    del self._back[id_]  # no signal handler runs between the end of the ``try`` and this step
                    return state
        if place is None or len(self._back) > _MOST_RANGES:
            self._release_back()
        return None

    def kept(self, pool: int) -> int:
        """Return how many leases of a pool came back and stay only because the program has arrays of them."""
        return sum(one.grant.pool == pool and one.in_use for one in self._all() if not one.sent)

    def _release_back(self) -> None:
        for id_, one in list(self._back.items()):
            if not one.in_use:
                self._leaving[id_] = one
                del self._back[id_]
        self._tidy()

    def _all(self) -> list[Arena | Returned]:
        return [*self._leaving.values(), *self._back.values()]

    def on_loan(self) -> list[LeaseState]:
        """Return the states of the arrays on loan."""
        loans = [chunks.loan for chunks in self._chunks]
        return [loan[2] for loan in loans if loan is not None and loan[2] is not None]

    def uses(self, producer: Producer) -> bool:
        """Whether a publisher has arenas, or frames of an arena have not come back to this producer."""
        return any(chunks.producer is producer and chunks.arenas for chunks in self._chunks) or any(
            arena.producer is producer and arena.sent for arena in self._leaving.values()
        )

    # What comes back

    def collect(self) -> None:
        """Release the leases of frames that came back."""
        for producer in list(self._session.producers.values()):
            producer.collect()
        self._release_back()

    def keep(self, source: object, fence: Fence) -> None:
        """Keep an array from which a stream copies, until `fence` of this session is reached.

        The caller does not hold the lock, because the array's destructor may wait.
        """
        with self._session.lock:
            self._sources.append((fence, source))
            copied = self._copied()
            self.watch()
        del copied

    def _copied(self) -> list[object]:
        """Take the sources out that have been copied. The caller drops them when it does not hold the lock."""
        own = self._session.timelines.own
        copied: list[object] = []
        copying: list[tuple[Fence, object]] = []
        for fence, source in self._sources:
            if own is None or own.reached(fence.word, fence.value):
                copied.append(source)
            else:
                copying.append((fence, source))
        self._sources = copying
        return copied

    def _sweep(self, pool: int = 0) -> None:
        """Release what came back. Let the free arenas of idle publishers go, and of all publishers of `pool`.

        Let the producers leave whose channels are closed and that have no frames any more.
        """
        self.collect()
        now = time.monotonic()
        for chunks in list(self._chunks):
            over = chunks.producer is not None and chunks.producer.over
            if over or chunks.pool == pool or now - chunks.used >= _IDLE:
                arenas = chunks.let_go(True)
                for arena in arenas:
                    if not over:  # the program often keeps the array that it published last
                        arena.arrays.clear()
                self.leave(*arenas)
            if not chunks.arenas:
                self._chunks.discard(chunks)
        for producer in list(self._session.producers.values()):
            if producer.over and not producer.outstanding and not self.uses(producer):
                self._session.retire(producer)

    def want(self, pool: int) -> None:
        """Give back the memory of a pool that is not in use, because the service says that somebody waits for it.

        For `_WANTED` seconds, a thread for each producer with frames gives back what comes back.
        """
        self._scarce[pool] = time.monotonic() + _WANTED
        self._sweep(pool)
        for producer in list(self._session.producers.values()):
            drains = producer.channel.pool == pool and (producer.outstanding or self.uses(producer))
            # If no thread can start, the service says it again while somebody waits.
            if drains and producer not in self._drained and _start("poolbridge-wanted", partial(self._drain, producer)):
                self._drained.add(producer)
        self.watch()

    def _drain(self, producer: Producer) -> None:
        """Give back what comes back to a producer, as long as somebody wants it."""
        came = None
        try:
            while (seconds := self._wanted_for(producer, came)) is not None:
                came = producer.await_back(seconds)
        except PoolbridgeError:  # the session has ended, or the channel is corrupt, which the producer's next call says
            with self._session.lock:
                self._drained.discard(producer)

    def _wanted_for(self, producer: Producer, came: Any) -> float | None:
        """Give back what came back, and return for how many seconds `_drain` waits on; None: it ends."""
        with self._session.lock:
            self._sweep(producer.channel.pool)
            left = self._scarce[producer.channel.pool] - time.monotonic()
            if came is None and left > 0 and not producer.left and self._session.ended is None:
                return left
            self._drained.discard(producer)
            return None

    def take_back(self, grant: Grant, fences: tuple[Fence, ...]) -> bool:
        """Take an arena back from the last array of the program. False: the lease is not of such an arena."""
        arena = self._left_to_arrays.get(grant.id)
        if arena is None:
            return False
        arena.fences = (*arena.fences, *fences)
        arena.left_to_arrays = False
        if self._over:
            self._leaving.pop(grant.id, None)
            self.disown(arena)
        else:  # a signal handler may have ended `close_chunks` before the arena was there
            self._leaving[grant.id] = arena
        self._tidy()
        self._bell.set()
        self.watch()
        return True

    def left(self, producer: Producer) -> bool:
        """Give up the memory that the channel of `producer` still needs, because `producer` leaves the channel.

        Returns
        -------
        bool
            False if an array of the program uses such memory. Then the service must hear only later that the producer
            has left: it would give the memory to others as soon as the frames are released.
        """
        sent = [one for one in self._leaving.values() if one.producer is producer and one.sent]
        clean = self._over or not any(one.in_use for one in sent)
        if clean:  # otherwise all of them wait: what goes without the others, nobody would release
            for one in sent:
                self.disown(one)
                self._leaving.pop(one.grant.id, None)
        return clean

    def leave_behind(self, producer: Producer) -> None:
        """Take over the leases whose frames have not come back to `producer`, which leaves: see `left`."""
        for buffer, one in list(producer.outstanding.items()):
            # Another thread that fails to publish may remove one meanwhile. No thread and no signal handler runs
            # between the next steps, because they call nothing.
            if buffer in producer.outstanding:
                one.producer = producer
                self._leaving[one.grant.id] = one
                del producer.outstanding[buffer]

    def disown(self, one: Arena | Returned) -> None:
        """Give up a lease. The block stays mapped until this session's streams have done their work on the block."""
        one.owned = False
        own = self._session.timelines.own
        fences = [fence for fence in one.all_fences() if own is not None and fence.timeline == own.id]
        self._session.give_up(one.grant, tuple(fences))
        self._left_to_arrays.pop(one.grant.id, None)

    def _tidy(self) -> None:
        """Release what is in `_leaving`, not in use, and whose fences are reached."""
        leaving = list(self._leaving.values())
        needed = {arena.producer for arena in leaving if arena.sent and arena.in_use}
        for arena in leaving:
            if not arena.in_use:
                arena.fences = tuple([fence for fence in arena.all_fences() if not self.reached(fence)])
            if arena.in_use or arena.fences or (arena.sent and arena.producer in needed):
                continue
            arena.owned = False
            if arena.sent and arena.producer is not None:
                self._session.leave_and_release(arena.producer, arena.grant)
            else:
                self._session.end_lease(arena.grant)
            self._leaving.pop(arena.grant.id, None)
            self._left_to_arrays.pop(arena.grant.id, None)

    def reached(self, fence: Fence) -> bool:
        """Whether a fence is reached. If the session does not know its timeline, ask for that; the answer is no."""
        timelines, core = self._session.timelines, self._session.core
        if timelines.unknown(core.epoch, (fence,)):
            if fence.timeline not in self._asked:
                self._asked.add(fence.timeline)
                self._session.learn_timeline(fence.timeline, self._learned)
            return False
        page = timelines.page(fence.timeline)
        return page is None or page.reached(fence.word, fence.value)

    def _learned(self, timeline: int) -> None:
        self._asked.discard(timeline)
        self._bell.set()

    # Closing

    def release_within(self, seconds: float) -> None:
        """Release all arenas, because the client closes. Wait at most `seconds` for the work of GPUs on the arenas."""
        deadline = time.monotonic() + seconds
        while not self.release_arenas() and time.monotonic() < deadline:
            time.sleep(_GLANCE)  # a GPU does not wake threads

    def release_arenas(self) -> bool:
        """Release all arenas, because the client closes. Return False if streams still work on some."""
        with self._session.lock:
            return self._session.ended is not None or self.release_all()

    def release_all(self) -> bool:
        """Let all publishers' arenas go. Return False if an arena only waits for its fences."""
        self._session.closing = True
        for chunks in list(self._chunks):
            self.close_chunks(chunks)
        self._sweep()
        return all(arena.in_use for arena in self._leaving.values())

    def close(self) -> None:
        """Release all arenas, each when nothing uses it, because the client closes."""
        self.release_all()
        self._bell.set()
        self.watch()

    def end(self) -> None:
        """Give up all arenas, because the session has ended."""
        self._over = True
        for chunks in list(self._chunks):
            self.close_chunks(chunks)
        leaving, self._leaving, self._back = self._all(), {}, {}
        for arena in leaving:
            if not arena.left_to_arrays:
                self.disown(arena)
        self._bell.set()

    # The thread

    def watch(self) -> None:
        """Start the thread that checks what came back, unless this thread runs already or there is nothing to check.

        The caller holds the session's lock, so that the thread cannot end before it is known.
        """
        if self._thread is None and self._session.ended is None and self._has_work():
            self._thread = _start("poolbridge-returns", self._run)

    def _soon(self) -> float | None:
        """Return after how many seconds the thread has work to do; None if the thread has no work."""
        if any(not (arena.in_use or arena.sent) for arena in self._leaving.values()):
            return _LOOK
        return _REST if self._has_work() else None

    def _has_work(self) -> bool:
        """Whether there is memory that is in use and that goes back when this use ends."""
        if self._leaving or self._back or self._chunks or self._sources:
            return True
        return any(producer.outstanding for producer in list(self._session.producers.values()))

    def _run(self) -> None:
        try:
            while (seconds := self._turn()) is not None:
                self._bell.wait(seconds)
        except PoolbridgeError:
            pass  # the session has ended
        finally:
            if self._thread is threading.current_thread():
                self._thread = None  # also after an exception, so that `watch` can start another thread

    def _turn(self) -> float | None:
        with self._session.lock:
            copied = self._copied()
            self._sweep()
            seconds = self._soon() if self._session.ended is None else None
            if seconds is None:
                self._thread = None
        del copied
        return seconds
