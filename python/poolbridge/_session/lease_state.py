"""What a session knows of a lease. It lives as long as the lease or any array made from it."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from poolbridge._memory.tensor import Description
from poolbridge._order import order as _order
from poolbridge._sys import process as _process
from poolbridge._sys.errors import LeaseInUseError, LeaseReleasedError

if TYPE_CHECKING:
    from poolbridge._memory.kinds import BlockMemory
    from poolbridge._order.event import Event
    from poolbridge._order.timeline import StreamKey
    from poolbridge._session.consumer import Consumer
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import Fence, Grant, Pool


class LeaseState:
    """What a session knows of its lease on one buffer.

    Arrays reach it through their `Token`, the user through a lease. When all of them are gone it ends by itself.

    Parameters
    ----------
    session
        Whose lease it is.
    grant
        What the service granted.
    pool
        The pool that the buffer is in.
    memory
        The block, mapped.
    description
        What the buffer holds.
    consumer
        Whose frame it is, if it is a frame's.
    """

    released = True  # until everything is in place
    sent = False

    def __init__(
        self,
        session: Session,
        grant: Grant,
        pool: Pool,
        memory: BlockMemory,
        description: Description,
        *,
        consumer: Consumer | None = None,
    ) -> None:
        self.session = session
        self.grant = grant
        self.pool = pool
        self.memory = memory
        self.description = description
        self.write = grant.wr
        self.name: str | None = None
        self.tokens: set[int] = set()
        self.written: dict[int, ref[np.ndarray[Any, Any]]] = {}
        self.unaccounted = False
        self.failed = False
        # What has to be waited for, the streams that used the memory, and whether others did that nobody named.
        self.fences = grant.wt
        # The event that came with the content; `alone`: no fence says the same, and it must be waited for.
        self.event: Event | None = None
        self.alone = grant.eo
        self.streams: dict[StreamKey, None] | None = None
        self.unordered = False
        self.named = False
        # What stands for the content, where this process completes it later by itself.
        self.promise: Fence | None = None
        self.lost = bool(session.lost) and grant.bf in session.lost
        # Whether it came of an allocation: nobody else can have a lease or a name of the buffer.
        self.allocated = False
        self.consumer = consumer
        session.lease_states[grant.id] = ref(self)
        self.released = False

    @property
    def title(self) -> str:
        """What it is to people: frames come without a lease of the service."""
        return f"lease {self.grant.id}" if self.grant.id > 0 else "the lease of this frame"

    @property
    def single(self) -> bool:
        """Whether one fence has to say when all work on the memory is done."""
        return self.consumer is not None

    def check_usable(self) -> None:
        """Raise if the lease has ended, or this is another process.

        Raises
        ------
        LeaseReleasedError, ForkError
            Nothing may be made from the lease.
        """
        if self.released:
            raise self.is_released()
        if _process.pid != self.session.pid:
            self.session.check_usable()

    def is_released(self) -> LeaseReleasedError:
        """Make the error of who uses the lease after its end."""
        what = f"{self.description.element.name}{list(self.description.shape)}"
        return LeaseReleasedError(f"the lease of {what} in pool {self.pool.nm!r} has been released")

    def address(self, *, write: bool) -> int:
        """Address of element [0, …, 0]."""
        return self.memory.address(write=write) + self.description.offset

    def array(self, *, write: bool | None = None, flagged: bool = True) -> np.ndarray[Any, Any]:
        """Make a NumPy array that points at the elements and keeps the lease state; never read it for device memory.

        Parameters
        ----------
        write
            Whether it points at memory to write; left out: as the lease is.
        flagged
            Whether memory to read is flagged as read-only.
        """
        if write is None:
            write = self.write
        description = self.description
        token = Token(self)
        token.__array_interface__ = {
            "version": 3,
            "shape": description.shape,
            "typestr": description.element.typestr,
            "strides": None if description.contiguous else description.strides,
            "data": (self.address(write=write), flagged and not write),
        }
        return np.asarray(token)

    def seal(self) -> None:
        """Have the arrays in NumPy's hands refuse to be written: the content is complete, if it was not promised."""
        if self.promise is not None:
            return
        written, self.written = self.written, {}
        for reference in written.values():
            array = reference()
            if array is not None:
                array.flags.writeable = False

    def release(self, *, failed: bool, force: bool = False) -> None:
        """End the lease now; streams may go on with the memory.

        Raises
        ------
        LeaseReleasedError
            It has ended before.
        LeaseInUseError
            Arrays made from it are alive.
        """
        self.begin_release(force=force)
        _order.done(self, partial(self.session.release, self, failed=failed))

    def begin_release(self, *, force: bool = False) -> None:
        """Take the decision to release; from here on the lease makes no more arrays."""
        self.check_usable()
        if self.sent:
            raise LeaseInUseError(f"{self.title} is the frame's whose array is being made: it ends by itself")
        # First closed, then counted: an array that is being made at this moment either counts or fails.
        self.released = True
        if force:
            return
        if self.tokens:
            self.released = False
            count = len(self.tokens)
            raise LeaseInUseError(
                f"{count} array{'s' if count > 1 else ''} made from {self.title} "
                f"{'are' if count > 1 else 'is'} alive: drop them first, or let the last one end the lease"
            )
        if self.unaccounted:
            self.released = False
            raise LeaseInUseError(
                f"{self.title} was read through __cuda_array_interface__, whose arrays cannot be counted: "
                "drop the lease and its arrays and it ends by itself, or say release(force=True) once none is used; "
                "arrays made by DLPack, or of lease.view(), are counted"
            )

    def end(self) -> None:
        """End the lease without waiting: what has to be waited for is waited for elsewhere."""
        self.released = True
        self.session.let_go(self, failed=self.failed)

    def ended_twin(self) -> LeaseState:
        """Make a copy that tells the same and has ended; the lease lives on for as long as others hold it."""
        twin = self._twin()
        twin.released = True
        return twin

    def _twin(self) -> LeaseState:
        twin = object.__new__(LeaseState)  # copy.copy takes three times as long
        twin.__dict__.update(self.__dict__)
        return twin

    def lender(self) -> LeaseState:
        """Make a copy for an array that outlives the lease: it only keeps the block mapped; see `Session.lend`."""
        twin = self._twin()
        twin.tokens, twin.fences, twin.streams, twin.consumer = set(), (), None, None
        return twin

    def unused_after(self, error: BaseException, *, failed: bool) -> bool:
        """Whether it can end while `error` passes: arrays in its frames may still need the memory.

        If not, it ends by itself, and then as `failed` says.
        """
        if self.tokens or self.unaccounted:
            error.add_note(f"{self.title} ends when the arrays made from it are gone")
            self.failed = failed
            return False
        return True

    def close(self) -> None:
        """End the lease because its client closes, unless arrays still need its memory."""
        if not self.released and not self.tokens and not self.unaccounted:
            try:
                self.release(failed=self.consumer is not None and self.consumer.goes_back(self.grant))
            except LeaseReleasedError:
                pass  # another thread has ended it in this moment

    def __del__(self) -> None:
        if (self.released and not self.sent) or sys.is_finalizing():
            return
        self.released = True
        self.session.let_go(self, failed=self.failed, alone=True)


class Token:
    """Stands for one array, and keeps the lease state while that array, or anything made of it, is alive."""

    __slots__ = ("__array_interface__", "_lease_state", "owner")

    def __init__(self, state: LeaseState, owner: object = None) -> None:
        self.__array_interface__: dict[str, Any] = {}
        self._lease_state = state
        self.owner = owner
        # First counted, then checked: see LeaseState.begin_release.
        state.tokens.add(id(self))
        state.check_usable()

    def __del__(self) -> None:
        try:
            state = self._lease_state
        except AttributeError:
            return  # it was not made
        state.tokens.discard(id(self))
