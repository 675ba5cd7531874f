"""Divides leased blocks for the arrays of a program, without a request to the service for each array."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from weakref import WeakSet, ref

import numpy as np

from poolbridge._session.lease_state import Token
from poolbridge._sys import process as _process
from poolbridge._sys.deferred import DeferringLock
from poolbridge._sys.finaliser import while_running
from poolbridge._wire.limits import MAX_ELEMENTS
from poolbridge._wire.messages import Returned, ReturnedReply
from poolbridge.errors import (
    ClosedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from weakref import ReferenceType

    from poolbridge._memory.tensor import Description
    from poolbridge._session.calls import Call
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import Fence

    # Parts that are free, or will be: block, offset, size, and the stream that may still use it (None: the CPU).
    Back = list[tuple[ReferenceType["Block"], int, int, object]]

# The offset and the size of every part are multiples of this number of bytes.
ALIGN: Final = 512


class Block:
    """A leased block of an arena. The division's lock guards it.

    A signal handler that raises loses no part: each method changes the block in steps that call nothing, so that no
    handler runs between them.

    Attributes
    ----------
    state
        The state of the block's lease.
    used
        Bytes of the parts that are in use.
    ranges
        The arrays of which ranges are leased, by the ids of the ranges' buffers. They keep their parts.
    late
        Arrays whose ranges are gone, and the fences of the readers' work on them.
    came
        The ids of the ranges' buffers that came back from channels, and the fences of the readers' work on them.
    """

    __slots__ = ("__weakref__", "_free", "_ready", "came", "late", "ranges", "size", "state", "used")

    def __init__(self, state: LeaseState) -> None:
        self.state = state
        self.size = state.grant.nbytes
        self.used = 0
        self.ranges: dict[int, object] = {}
        self.late: list[tuple[tuple[Fence, ...], list[object]]] = []
        self.came: deque[tuple[int, tuple[Fence, ...]]] = deque()
        self._clear()

    def _clear(self) -> None:
        self._free: list[tuple[int, int]] = [(0, self.size)]  # offset and size of free parts, by offset
        # Offsets of further free parts, for the next of the same size that the same stream uses; None: the CPU.
        self._ready: dict[tuple[int, object], list[int]] = {}

    def take(self, size: int, stream: object, back: Back) -> bool:
        """Move a part of `size` bytes, on which no other stream works, into `back`; return False if there is none."""
        if ready := self._ready.get((size, stream)):
            taken = [(ref(self), ready[-1], size, stream)]
            del ready[-1]
            self.used += size
            back += taken
            return True
        for i, (start, room) in enumerate(self._free):
            if room >= size:
                taken = [(ref(self), start, size, stream)]
                self._free[i : i + 1] = [(start + size, room - size)] if room > size else []
                self.used += size
                back += taken
                return True
        return False

    def put_back(self, back: Back) -> None:
        """Make the last part of `back` free, on which its stream may still work, and remove it from `back`."""
        _, offset, size, stream = back[-1]
        ready = self._ready.setdefault((size, stream), [])
        ready += [offset]
        self.used -= size
        del back[-1]
        if not self.used and all(key[1] is None for key in self._ready):
            self._clear()

    def detach(self, back: Back) -> None:
        """Move the free parts into `back` on which streams may still work."""
        found = [
            (ref(self), offset, *key) for key, ready in self._ready.items() for offset in ready if key[1] is not None
        ]
        used = self.used + sum(size for _, _, size, _ in found)
        rest = {key: ready for key, ready in self._ready.items() if key[1] is None}
        self.used, self._ready = used, rest
        back += found

    def join(self) -> None:
        """Join free parts that lie side by side, and on which no stream works."""
        done = [(offset, key[0]) for key, ready in self._ready.items() for offset in ready if key[1] is None]
        rest = {key: ready for key, ready in self._ready.items() if key[1] is not None}
        joined: list[tuple[int, int]] = []
        for offset, size in sorted([*self._free, *done]):
            start, room = joined[-1] if joined else (0, 0)
            if joined and start + room == offset:
                joined[-1] = start, room + size
            else:
                joined.append((offset, size))
        self._free, self._ready = joined, rest


class Part(Token):
    """Represents one array of an arena, which refers to the part. When the array and its views are gone, so is it.

    A part keeps the lease of its block, but neither the block nor the division: `Block.ranges` may have its array, and
    Python's collector of reference cycles does not look into NumPy's arrays. A finaliser that a signal handler ended
    runs twice, so all that put the part back share the list `back`, which the first of them empties. It may have
    several parts, which then are no arrays.
    """

    __slots__ = ("_back", "offset", "size")

    def __init__(self, block: Block, back: Back) -> None:
        super().__init__(block.state)
        _, self.offset, self.size, _ = back[0] if back else (None, 0, 0, None)
        self._back = back  # the last step: see `__del__`

    def used_on(self, stream: object) -> None:
        """Say which stream may still work on the part when it becomes free; None: the CPU."""
        self._back[:] = [(*one[:3], stream) for one in self._back]

    @property
    def address(self) -> int:
        """The address of the part."""
        return self.lease_state.memory.address(write=True) + self.offset

    def array(self, description: Description) -> np.ndarray[Any, Any]:
        """Make a NumPy array of the part, which keeps it."""
        self.__array_interface__ = {
            "version": 3,
            "shape": description.shape,
            "typestr": description.element.typestr,
            "data": (self.address, False),
        }
        return np.asarray(self)

    @while_running
    def __del__(self) -> None:
        try:
            state = self.lease_state
            state.tokens.discard(id(self))
            back = self._back
        except AttributeError:
            return  # the constructor failed
        division = None if state.division is None else state.division()
        if division is not None and _process.pid == state.session.pid:
            division.lock.later(partial(division.put_back, back))


class Cache(Protocol):
    """Keeps free memory of an arena for a library's next allocations."""

    def empty(self) -> None:
        """Give the memory back to the arena."""


class Division:
    """The blocks of an arena. Thread-safe; parts come back in finalisers, which never wait for the lock.

    Parameters
    ----------
    session, pool
        The session, and the id of the pool of the blocks.
    step
        Bytes of each block, at least.
    keeps
        Whether the first block stays when somebody wants the memory.
    """

    def __init__(self, session: Session, pool: int, step: int, *, keeps: bool) -> None:
        self.session = session
        self.pool = pool
        self.step = step
        self.keeps = keeps
        self.blocks: list[Block] = []  # the first stays; the others go back when they are empty
        self.device = 0, 0  # DLPack's device of the memory, when there is a block
        self.closed = False
        self._shared = 0  # bytes of ranges since the service was last asked which are gone
        self.caches: WeakSet[Cache] = WeakSet()
        self.lasting = False  # whether a library still uses again what is kept for readers, when their arrays are gone
        self.lock = DeferringLock()
        session.add_division(self)

    def check_open(self) -> None:
        """Raise ClosedError if the arena was closed, or the client."""
        if self.closed or self.session.closed:
            self.session.check_usable()
            raise ClosedError("this arena was closed: make another one")

    def take(self, size: int, stream: object = None) -> Part | None:
        """Take a part of `size` bytes for a stream; None: no block has room.

        Raises
        ------
        ClosedError
            The arena was closed, or the client.
        """
        self.check_open()
        with self.lock:
            for joined in (False, True):
                for block in self.blocks:
                    if joined:
                        block.join()
                    if (part := self._part(block, size, stream)) is not None:
                        return part
        return None

    def _part(self, block: Block, size: int, stream: object) -> Part | None:
        back: Back = []
        try:
            return Part(block, back) if block.take(size, stream, back) else None
        except BaseException:  # also of a signal handler when the part is made already, whose finaliser finds nothing
            self.put_back(back)
            raise

    def detach(self) -> Part | None:
        """Take the free parts out on which streams may still work; None: there are none.

        They are free again when the result is gone. If the streams' work is done, say so before: `used_on(None)`.
        """
        back: Back = []
        with self.lock:
            held = Part(self.blocks[0], back) if self.blocks else None  # first: its finaliser puts the parts back
            for block in self.blocks:
                block.detach(back)
        return held if back else None

    def add(self, state: LeaseState, size: int, stream: object = None) -> Part | None:
        """Add the block of a new lease, and take a part of `size` bytes of it, if `size` is not 0."""
        block = Block(state)
        state.division = ref(self)
        self.device = state.memory.pool.device
        part = None
        with self.lock:
            if size:
                part = self._part(block, size, stream)
            self.blocks += [block]  # last: if a signal handler raises before, the caller ends the lease
        return part

    def put_back(self, back: Back) -> None:
        """Make parts free, and let their blocks go that are empty. The caller holds the lock.

        A second call with the same list, as after a signal, finds nothing: the parts may be other arrays' by then.
        """
        while back:
            block = back[-1][0]()
            if block is None:
                del back[-1]
                continue
            block.put_back(back)
        for block in [one for one in self.blocks if not one.used and (self.closed or one is not self.blocks[0])]:
            self.blocks.remove(block)
            block.state.end()

    def let_go(self, *, close: bool) -> None:
        """Let the empty blocks go, but not what the arena keeps.

        If `close` is true, take no more parts, and let each block go when it is empty.
        """
        if close:
            self.forget()
        with self.lock:
            first = self.blocks[:1] if self.keeps and not close else []
            for block in [one for one in self.blocks if not one.used and one not in first]:
                self.blocks.remove(block)
                block.state.end()

    def forget(self) -> None:
        """Take no more parts, and let the arrays go that are only kept for readers: nobody uses their memory again."""
        with self.lock:
            self.closed = True
            blocks = [] if self.lasting else self.blocks
            kept = [(block.ranges, block.late) for block in blocks]
            for block in blocks:
                block.ranges, block.late = {}, []
        del kept  # not under the lock
        self.empty_caches()

    def empty_caches(self) -> None:
        """Let libraries give back what they keep for their next allocations."""
        for cache in list(self.caches):
            cache.empty()

    def is_due(self, nbytes: int) -> bool:
        """Count a range. Return whether to ask which are gone: after 1/8 of a block, and after 1,024 ranges.

        Otherwise a library that divides memory by itself, as PyTorch does, would never get its tensors' memory back.
        """
        self._shared += max(nbytes, self.step // 8192, 1)
        if due := self._shared > self.step // 8:
            self._shared = 0
        return due

    def ranges(self) -> Iterator[tuple[Block, tuple[int, ...]]]:
        """Yield the blocks and ids of ranges that were leased, as many at a time as a request takes.

        A block that only has arrays in `late` comes without ids.
        """
        for block in list(self.blocks):
            ids = tuple(block.ranges)
            for i in range(0, max(len(ids), 1 if block.late else 0), MAX_ELEMENTS):
                yield block, ids[i : i + MAX_ELEMENTS]

    def returned(self, block: Block, gone: tuple[int, ...], fences: tuple[Fence, ...]) -> None:
        """Let the arrays of ranges go that are gone, when the readers' work before `fences` is done.

        Those that came back from channels are gone, too.
        """
        over: list[tuple[tuple[Fence, ...], list[object]]] = []
        with self.lock:
            self._end_ranges(block, gone, fences)
            while block.came:  # `share` sets `ranges` under this lock, and only when this is empty
                came, behind = block.came.popleft()
                self._end_ranges(block, (came,), behind)
            for one in list(block.late):
                with self.session.lock:
                    reached = all(map(self.session.returns.reached, one[0]))
                if reached:
                    over.append(one)  # first, so that a signal handler lets nothing go under the lock
                    block.late = [other for other in block.late if other is not one]
        del over  # not under the lock: libraries free their memory in destructors

    def _end_ranges(self, block: Block, gone: tuple[int, ...], fences: tuple[Fence, ...]) -> None:
        """Move arrays to those that wait for fences, first there, so that a signal handler lets none go."""
        found = [one for one in gone if one in block.ranges]
        if found:
            block.late.append((fences, [block.ranges[one] for one in found]))
        for one in found:
            block.ranges.pop(one, None)

    def take_in(self) -> None:
        """Let the arrays go whose frames came back from channels."""
        session = self.session
        if session.producers and any(block.ranges for block in self.blocks):
            with session.lock:
                for producer in list(session.producers.values()):
                    if producer.channel.pool == self.pool:
                        producer.collect()
        for block in list(self.blocks):
            if block.came:
                self.returned(block, (), ())

    def give_back(self) -> None:
        """Ask the service which ranges are gone, and then let go what is free. The caller holds the session's lock."""
        asked, came = False, []
        for block, ids in self.ranges():
            if not ids:  # there are arrays that only waited for the readers' work
                came.append(block)
            else:
                asked, request = True, Returned(lease=block.state.grant.id, buffers=ids)
                call = self.session.core.start(request, ReturnedReply, int)
                call.on_done = partial(self.session.later, partial(self._take_back, block, call))
        if came or not asked:
            self.session.later(partial(self._let_go_after, came))

    def _let_go_after(self, came: list[Block]) -> None:
        for block in came:
            self.returned(block, (), ())
        self.let_go(close=False)

    def _take_back(self, block: Block, call: Call) -> None:
        call.on_done = int  # which refers to the call
        if call.reply is not None:  # otherwise the block went back, or the session has ended
            reply = cast("ReturnedReply", call.reply)
            self.returned(block, reply.buffers, reply.wait)
        self.let_go(close=False)
