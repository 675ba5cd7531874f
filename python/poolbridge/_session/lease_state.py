"""Keeps the state of a lease as long as the lease object or an array made from the lease is alive."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

import numpy as np
from msgspec import structs

from poolbridge._memory import layout as _layout, tensor as _tensor
from poolbridge._memory.kinds import BlockPart
from poolbridge._order import fences as _fences
from poolbridge._order.captures import CAPTURES
from poolbridge._sys import process as _process
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.uncopied import Uncopied
from poolbridge.errors import (
    LeaseInUseError,
    LeaseReleasedError,
    PoolbridgeError,
)

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Mapping

    from poolbridge._memory.kinds import BlockMemory
    from poolbridge._order.event import Event
    from poolbridge._order.timeline import StreamKey
    from poolbridge._session.core import Core
    from poolbridge._wire.messages import Fence, Grant, PoolInfo


class LeaseSession(_fences.FenceSession, Protocol):
    """The part of a session that this module uses; see `poolbridge._session.session.Session`."""

    core: Core
    tracer: Any
    lease_states: dict[int, ref[LeaseState]]
    lost: set[int]

    @property
    def ended(self) -> PoolbridgeError | None:
        """Why the session has ended; None: it has not."""

    @property
    def closed(self) -> bool:
        """Whether the client was closed, or the session has ended."""

    def release(self, state: LeaseState, fences: tuple[Fence, ...], *, failed: bool) -> None:
        """Release a lease."""

    def let_go(self, state: LeaseState, *, failed: bool, alone: bool = False) -> None:
        """Release a lease without waiting."""


class Taker(Protocol):
    """The part of a consumer that a session and its leases use; see `poolbridge._session.consumer.Consumer`."""

    left: bool

    def layout(self, grant: Grant) -> bytes:
        """Return the layout of a frame; empty: the frame has one array."""

    def goes_back(self, grant: Grant) -> bool:
        """Whether a frame that the program drops goes back to its queue."""

    def end_frame(self, grant: Grant, fences: tuple[Fence, ...], *, back: bool, alone: bool) -> None:
        """Release a frame."""


class Divider(Protocol):
    """What divides the block of an arena; see `poolbridge._session.division.Division`."""

    lock: Any
    pool: int

    def give_back(self) -> None:
        """Give memory back that nobody uses. The caller holds the session's lock."""

    def put_back(self, parts: list[tuple[Any, int, int, object]]) -> None:
        """Make parts free."""

    def forget(self) -> None:
        """Let the arrays go that are only kept for readers."""


class Divided(Protocol):
    """An arena's block; see `poolbridge._session.division.Block`."""

    came: deque[tuple[int, tuple[Fence, ...]]]


class LeaseState(Uncopied):
    """The state of a session's lease on one buffer.

    Each array made from the lease refers to this state through a `Token`. The lease object of the program refers to
    this state, too. When the arrays and the lease object are gone, the lease ends by itself.

    Parameters
    ----------
    session
        The session that has the lease.
    grant
        The grant that the service sent, or the grant that the consumer made for a frame.
    pool
        The buffer's pool.
    memory
        The mapped memory: a block, or a part of it.
    consumer
        The consumer that took the frame; None if the lease is not of a frame.
    """

    released = True  # whether the program may no longer use the lease; the constructor sets False at its end
    owed = False  # whether this object must end the lease; a second end does no harm
    allocated = False  # whether the lease came with its buffer, so that the buffer has no name
    unsure = False  # whether only the service knows if this is a read lease, because a publication got no answer
    version = 0  # version of the content that the name has or had, also if this is a copy of it; 0: there is no name
    # The name, the buffer and the metadata of which the content is a copy; None: it is none.
    copied: tuple[str, int, Mapping[str, str]] | None = None
    sent = False  # whether another object, such as a channel, has the lease now; this state only keeps the block mapped
    division: ref[Divider] | None = None  # of the lease of an arena's block: what divides it
    part_of: ref[Divided] | None = None  # of a range of an arena's block, for a frame: the block
    counted = False  # whether the block counts one lease more for this state, besides the lease itself
    name: str | None = None
    unaccounted = False
    failed = False
    event: Event | None = None  # that the producer published with the content
    # The streams that used the memory, each with the value of `fences` for which it waits; None: it waits for nothing.
    # `unordered`: unknown streams may have used the memory, too. `named`: the user has named streams, and so says that
    # no unknown stream uses the memory.
    streams: dict[StreamKey, tuple[Fence, ...] | None] | None = None
    unordered = False
    named = False
    promise: Fence | None = None  # the fence of the promise, if this process has promised the content

    def __init__(
        self,
        session: LeaseSession,
        grant: Grant,
        pool: PoolInfo,
        memory: BlockMemory,
        *,
        consumer: Taker | None = None,
    ) -> None:
        self.session = session
        self.grant = grant
        self.pool = pool
        self.memory = memory
        # The service describes a buffer; the producer, which is another program, describes a frame.
        self.description = _tensor.from_wire(grant.tensor, grant.nbytes)
        if consumer is not None and (layout := consumer.layout(grant)):
            self.description = _layout.decode(layout, self.description)
        self.write = grant.write
        self.tokens: set[int] = set()
        self.written: dict[int, ref[np.ndarray[Any, Any]]] = {}
        # The fences that must be reached before the memory is used.
        self.fences = grant.wait
        # Whether this process knows that the content will never be complete.
        self.lost = bool(session.lost) and grant.buffer in session.lost
        self.consumer = consumer
        session.lease_states[grant.id] = ref(self)
        self.released, self.owed = False, True  # no signal handler runs between this step and the end of the next
        if session.core.untaken:
            session.core.untaken.pop(grant.id, None)

    @property
    def title(self) -> str:
        """The lease's name in error texts. The service makes no grant for a frame, so a frame has no lease id."""
        return f"lease {self.grant.id}" if self.grant.id > 0 else "the lease of this frame"

    def seen(self) -> Grant:
        """Return the grant as this process describes it now: a publication has made a write lease a read lease."""
        grant = self.grant
        return grant if self.write == grant.write else structs.replace(grant, write=self.write)

    @property
    def single(self) -> bool:
        """Whether the release can send only one fence, which is reached only after all work on the memory.

        True for frames.
        """
        return self.consumer is not None

    def check_usable(self) -> None:
        """Raise if no array may be made from the lease.

        Raises
        ------
        LeaseReleasedError
            The lease has ended.
        ForkError
            This is a forked child.
        """
        if self.released:
            raise self.is_released()
        if _process.pid != self.session.pid:
            self.session.check_usable()

    def is_released(self) -> LeaseReleasedError:
        """Return the error to raise when the program uses the lease after its end."""
        what = self.description.text
        why = "been released or published as a frame"
        if self.session.closed:
            why = f"ended: {self.session.ended or 'the client is closed'}"
        return LeaseReleasedError(f"the lease of {what} in pool {self.pool.name!r} has {why}")

    def address(self, *, write: bool, part: _tensor.Description | None = None) -> int:
        """Return the address of element [0, …, 0], in the writeable or in the read-only mapping.

        `part` is one of several arrays.
        """
        return self.memory.address(write=write) + (part or self.description).offset

    def array(
        self, *, write: bool | None = None, flagged: bool = True, part: _tensor.Description | None = None
    ) -> np.ndarray[Any, Any]:
        """Make a NumPy array of the elements. The array keeps this state alive.

        The caller makes sure that the CPU can read the memory.

        Parameters
        ----------
        write
            Whether the array uses the writeable mapping; None: only if the lease is a write lease.
        flagged
            Whether NumPy refuses writes to an array that uses the read-only mapping.
        part
            One of several arrays; None: the array, or all bytes.
        """
        if write is None:
            write = self.write
        description = part or self.description
        token = Token(self)
        token.__array_interface__ = {
            "version": 3,
            "shape": description.shape,
            "typestr": description.element.typestr,
            "strides": None if description.contiguous else description.strides,
            "data": (self.address(write=write, part=description), flagged and not write),
        }
        return np.asarray(token)

    def seal(self) -> None:
        """Make the lease's NumPy arrays read-only, because the content is complete. Do nothing for promised content."""
        if self.promise is not None:
            return
        written, self.written = self.written, {}
        for reference in written.values():
            array = reference()
            if array is not None:
                array.flags.writeable = False

    def release(self, *, failed: bool, force: bool = False) -> None:
        """End the lease now. Streams may still work on the memory.

        `failed` says that the content has failed or, for a frame of a queue, that the frame goes back to the queue.

        Raises
        ------
        LeaseReleasedError
            The lease has ended already.
        LeaseInUseError
            Arrays made from the lease are alive, or may be alive.
        """
        self.begin_release(force=force)
        try:
            CAPTURES.run(partial(_fences.done, self, partial(self.session.release, self, failed=failed)))
        except BaseException:
            self.session.let_go(self, failed=failed)  # if a handler of a signal raised, the lease has not ended yet
            raise

    def begin_release(self, *, force: bool = False) -> None:
        """Check that the lease can be released, and mark it as released. From now on, no array can be made from it."""
        self.check_usable()
        if self.sent:
            raise LeaseInUseError(f"{self.title} is only for the array that wrap= makes, and ends by itself")
        # Set `released` first. If another thread makes a `Token` now, the check of `tokens` below finds this token, or
        # the constructor of `Token` finds `released` and raises an error.
        self.released = True
        if force:
            return
        if self.tokens:
            self.released = False
            count = len(self.tokens)
            raise LeaseInUseError(
                f"{count} array{'s' if count > 1 else ''} made from {self.title} "
                f"{'are' if count > 1 else 'is'} alive: `del` every array before release() or the end of the `with` "
                "block; this lease now ends when its arrays and the lease object are gone, or by release(force=True) "
                "when no array is used any more"
            )
        if self.unaccounted:
            self.released = False
            raise LeaseInUseError(
                f"{self.title} was read through __cuda_array_interface__, whose arrays cannot be counted: "
                "drop the lease and its arrays, and it ends by itself; or call release(force=True) when no array is "
                "used any more. Arrays made by DLPack or from lease.view() are counted"
            )

    def end(self) -> None:
        """End the lease without waiting. If the release must wait for the device, a background thread waits."""
        self.released = True
        self.session.let_go(self, failed=self.failed)

    def ended_twin(self) -> LeaseState:
        """Make a copy of this state, and mark the copy as released.

        A frame object uses the copy after the program has iterated to the next frame. The frame's arrays and leases
        continue to use this state.
        """
        twin = self._twin()
        twin.released = True
        return twin

    def _twin(self) -> LeaseState:
        twin = object.__new__(LeaseState)  # copy.copy takes three times as long
        twin.__dict__.update(self.__dict__)
        twin.owed = twin.counted = False
        return twin

    def part(self, base: int, nbytes: int, description: _tensor.Description) -> LeaseState:
        """Make a copy of this state, whose lease an arena has, for the part of the memory that begins at `base`."""
        twin = self._twin()
        twin.grant = structs.replace(self.grant, tensor=description.to_wire(), nbytes=nbytes)
        twin.description = description
        twin.memory = BlockPart(self.memory, base) if base else self.memory
        return twin

    def keeper(self) -> LeaseState:
        """Make a copy of this state for an array that outlives the lease; see `Session.keep_mapped`.

        The copy only keeps the block mapped.
        """
        twin = self._twin()
        twin.tokens, twin.fences, twin.streams, twin.consumer = set(), (), None, None
        return twin

    def unused_after(self, error: BaseException, *, failed: bool) -> bool:
        """Return whether no array made from the lease is alive.

        The stack frames of `error` may keep arrays alive. If arrays are alive, add a note to `error`, unless `error` is
        no `Exception`, such as that of Ctrl-C.

        If this method returns True, the caller may end the lease now. If this method returns False, the lease ends when
        the arrays are gone. `failed` says whether the content has failed.
        """
        if self.tokens or self.unaccounted:
            if isinstance(error, Exception):
                error.add_note(f"poolbridge: {self.title} ends when the arrays made from it are gone")
            self.failed = failed
            return False
        return True

    def close(self) -> None:
        """End the lease because the client closes, unless arrays still need the memory."""
        if self.division and (division := self.division()) is not None:
            division.forget()
        if not self.released and not self.tokens and not self.unaccounted:
            try:
                self.release(failed=self.consumer is not None and self.consumer.goes_back(self.grant))
            except LeaseReleasedError:
                pass  # another thread has ended the lease at this moment

    @while_running
    def __del__(self) -> None:
        # If a signal handler has raised an error during `release` or `end`, the lease ends here.
        if self.owed or self.counted:
            self.released = True
            self.session.let_go(self, failed=self.failed, alone=True)


class Token:
    """Represents one array of a lease. The array refers to the token, and the token keeps the lease state alive."""

    __slots__ = ("__array_interface__", "lease_state", "owner")

    def __init__(self, state: LeaseState, owner: object = None) -> None:
        self.__array_interface__: dict[str, Any] = {}
        self.lease_state = state
        self.owner = owner
        # Count this array before the check: see `LeaseState.begin_release`.
        state.tokens.add(id(self))
        state.check_usable()

    @while_running
    def __del__(self) -> None:
        try:
            state = self.lease_state
        except AttributeError:
            return  # the constructor failed
        state.tokens.discard(id(self))
