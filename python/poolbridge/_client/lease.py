"""Leases: what a user holds of a buffer."""

from __future__ import annotations

import html
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from poolbridge._array.arrays import ArrayExports
from poolbridge._array.copies import copy_into
from poolbridge._array.leaseview import LeaseView, cuda_array_interface
from poolbridge._client import operations as _operations
from poolbridge._order import order as _order

if TYPE_CHECKING:
    from poolbridge._client.promise import Promise
    from poolbridge._order.event import Event
    from poolbridge._session.flow import AsyncRun, Run
    from poolbridge._session.lease_state import LeaseState


class BaseLease(ArrayExports):
    """One session's hold on one buffer, to write or to read: an array that other libraries can take.

    Arrays made from a lease by DLPack, by NumPy or by way of `view` keep it alive. It ends when the last of them and
    the lease itself are gone, or by `release`. Leases are made by a client, never directly.
    """

    def __init__(self, state: LeaseState) -> None:
        self._lease_state = state

    @property
    def pool(self) -> str:
        """Name of the pool that the buffer is in."""
        return self._lease_state.pool.nm

    @property
    def name(self) -> str | None:
        """The name that the buffer was published or found under, or None."""
        return self._lease_state.name

    @property
    def buffer_id(self) -> int:
        """The buffer's id, never reused within one life of the service."""
        return self._lease_state.grant.bf

    @property
    def generation(self) -> int:
        """How often the block under the buffer was used before, and once more.

        Of a frame: as it was when this client mapped the block.
        """
        return self._lease_state.grant.ge

    @property
    def released(self) -> bool:
        """Whether the lease has ended."""
        return self._lease_state.released or self._lease_state.session.ended is not None

    @property
    def arrays(self) -> int:
        """How many arrays made from the lease are alive, as far as they can be counted."""
        return len(self._lease_state.tokens)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the CUDA array interface; device memory only.

        Arrays made through it keep the lease object, but cannot be counted: `release` then asks for ``force=True``.
        ``lease.view()`` offers the same and is counted.
        """
        interface = cuda_array_interface(self._lease_state)
        self._lease_state.unaccounted = True
        return interface

    def view(self, *, legacy: bool = False, device: str | None = None) -> LeaseView:
        """Make a view that counts as an array of the lease for as long as anything keeps it.

        Parameters
        ----------
        legacy
            Let consumers of legacy DLPack capsules (older versions of JAX, for one) have a read-only lease. Such a
            capsule cannot say that the data is read-only: the caller vouches that the consumer does not write.
        device
            Where the view is to be seen: ``"cpu"`` shows memory that the GPU and the CPU both reach (kind ``pinned``)
            to the consumers of memory of the CPU. Left out: as the lease, which shows it as the GPU's.

        Raises
        ------
        InvalidArgumentError
            The memory cannot be reached from there in place.
        """
        self._lease_state.check_usable()
        return LeaseView(self._lease_state, legacy=legacy, device=device)

    def used_on(self, stream: Any) -> None:
        """Say that work on a stream uses the memory, and have that stream wait until it may.

        Streams that arrays are made for by DLPack are known. Name those on which an array is used besides, and all
        where they cannot be known: after ``__cuda_array_interface__``, or DLPack with ``stream=-1``. What uses the
        memory on a stream that was not named is not waited for.

        Parameters
        ----------
        stream
            A handle, 1 for the legacy default stream, 2 for the per-thread default stream, or an object of CuPy,
            PyTorch or cuda.core.

        Raises
        ------
        ValueError
            It is no stream, or memory of the CPU has none.
        ProducerDiedError
            The content will never be complete.
        """
        self._lease_state.check_usable()
        _order.name_stream(self._lease_state, stream)

    @property
    def ready_event(self) -> Event | None:
        """The interprocess event that came with the content, opened for as long as the lease lasts; None if none did.

        Nobody has to look at it: streams that arrays are made for wait for what they have to.

        Raises
        ------
        EventUnavailableError
            It cannot be opened here; what has a fence besides can be used all the same.
        """
        self._lease_state.check_usable()
        return _order.ready_event(self._lease_state)

    @property
    def failed(self) -> bool:
        """Whether the buffer's writer is known to have died before the content was complete."""
        return _order.lost(self._lease_state)

    def check(self) -> None:
        """Look again whether the content is complete, as far as can be told by now.

        To be asked once a stream has used the buffer: a wait ends too when the process waited for is gone.

        Raises
        ------
        ProducerDiedError
            The buffer's writer died before finishing.
        """
        _order.check(self._lease_state)

    def copy_from(self, source: Any) -> None:
        """Copy an array into the leased memory; complete on return.

        Parameters
        ----------
        source
            Anything that NumPy takes, or an array on a device. It is broadcast to the lease's shape and cast to its
            dtype (``same_kind``).

        Raises
        ------
        InvalidArgumentError
            The lease is read-only, or the shapes do not match.
        TypeError
            The dtypes do not match.
        """
        copy_into(self._lease_state, source)

    # Memory of the CPU, as NumPy shows it. Memory of a GPU has these too, and says how to reach it.

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        """Every lease is true, also an empty one."""
        return True

    def __getitem__(self, index: Any) -> Any:
        """Index the elements in place: ``lease[0]`` is an element, or an array that keeps the lease."""
        return self.__array__()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.__array__()[index] = value

    # Libraries that do not know leases would otherwise copy them element by element.
    __iter__: ClassVar[None] = None
    __contains__: ClassVar[None] = None

    def __bytes__(self) -> bytes:
        """Copy the elements' bytes, in C order."""
        return self.memoryview().tobytes()

    def evidence(self) -> dict[str, Any]:
        """Say how one can tell that this memory is mapped from another process, not a copy; for diagnosis."""
        self._lease_state.check_usable()
        pointer = self._lease_state.address(write=self._lease_state.write)
        return {"pointer": pointer, "device": self.device, **self._lease_state.memory.evidence()}

    def _state(self) -> str:
        if self.released:
            return "released"
        mode = "write" if self._lease_state.write else "read"
        return f"{mode}, {len(self._lease_state.tokens)} arrays alive" if self._lease_state.tokens else mode

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name is not None else ""
        return (
            f"<poolbridge.{type(self).__name__}{name} {self.dtype_name}{list(self.shape)} on {self.device}, "
            f"{self.nbytes} bytes, pool {self.pool!r}, {self._state()}>"
        )

    def _repr_html_(self) -> str:
        rows = (
            ("name", self.name or ""),
            ("elements", f"{self.dtype_name} {list(self.shape)}"),
            ("bytes", f"{self.nbytes:,}"),
            ("device", f"{self.device} ({self.kind})"),
            ("pool", self.pool),
            ("state", self._state()),
        )
        cells = "".join(f"<tr><th>{key}</th><td>{html.escape(value)}</td></tr>" for key, value in rows)
        return f"<table>{cells}</table>"


class Lease(BaseLease):
    """A lease of a blocking `Client`. As a context manager it is released at the end of the block."""

    def __init__(self, run: Run, state: LeaseState) -> None:
        super().__init__(state)
        self._run = run

    def publish(
        self,
        name: str,
        *,
        keep: bool = False,
        replace: bool = False,
        stream: Any = None,
        event: Any = None,
        fence: bool = True,
    ) -> None:
        """Give the buffer a name; the lease becomes a read lease.

        Nothing is waited for: consumers wait, on their streams, for the work that this process has queued so far on
        the streams that used the buffer. Arrays made before stay alive, and must not be written any more: those that
        `numpy.asarray` made refuse it, others do not know (slices of them, and arrays made by DLPack).

        Parameters
        ----------
        name
            1 to 255 bytes of UTF-8 without control characters.
        keep
            Keep the name when this client is gone.
        replace
            Take the name over if the same user has published it before.
        stream
            A stream that writes the content, besides those that arrays were made for by DLPack: a handle, or an
            object of CuPy, PyTorch or cuda.core.
        event
            An interprocess event, recorded after all work on the content, for readers who speak those: of
            ``client.event()``, cuda.core, CuPy or PyTorch. Keep it until they have opened it.
        fence
            Whether a fence says the same. Without one readers have to open the event, which only processes of this
            user that see the same ``/dev/shm`` can, until this lease is released.

        Raises
        ------
        AlreadyExistsError
            The name is taken.
        LeaseReleasedError
            The lease has ended.
        InvalidArgumentError
            It is a read lease; the event is none for other processes, or comes with a promise or memory of the CPU; or
            there is neither a fence nor an event.
        """
        flow = _operations.publish(
            self._lease_state, name, keep=keep, replace=replace, stream=stream, event=event, fence=fence
        )
        self._run(flow)

    def promise(self) -> Promise:
        """Promise the content, to publish the buffer before it is complete; `keep` says that it is.

        For work of the CPU, or what this process waits for itself. Publish the lease, or send it through a channel;
        write it through arrays that were made before; and complete the promise. Readers wait for that.

        Raises
        ------
        InvalidArgumentError
            The lease is a read lease, or its content is promised already.
        UnsupportedError
            The service is older than timelines.
        """
        return self._run(_operations.promise(self._lease_state))

    def wait(self, timeout: float | None = None) -> None:
        """Wait on the CPU until the content is complete and the memory may be used.

        Streams of a GPU need no such wait, and arrays of the CPU wait by themselves for as long as the client's
        ``timeout`` says.

        Parameters
        ----------
        timeout
            Seconds to wait; None: no limit.

        Raises
        ------
        WaitTimeoutError
            It was not complete in time.
        ProducerDiedError
            It never will be.
        """
        self._run(_operations.wait(self._lease_state, timeout))

    def release(self, *, failed: bool = False, force: bool = False) -> None:
        """End the lease now.

        The next writer of the memory waits, on its stream, for the work that this process has queued so far on the
        streams that used the buffer: those that arrays were made for by DLPack, and those named by `used_on`.

        Parameters
        ----------
        failed
            What was written is incomplete; readers that wait for it get `ProducerDiedError`.
        force
            Do it although arrays are alive: the caller vouches that none is used any more.

        Raises
        ------
        LeaseInUseError
            Arrays made from the lease are alive; it stays as it is.
        LeaseReleasedError
            It has ended before.
        """
        self._lease_state.release(failed=failed, force=force)

    def __enter__(self) -> Self:
        self._lease_state.check_usable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.released:
            return
        if error is None:
            self.release()
            return
        if self._lease_state.unused_after(error, failed=self._lease_state.write):
            self.release(failed=self._lease_state.write)


class AsyncLease(BaseLease):
    """A lease of an `AsyncClient`. As an asynchronous context manager it is released at the end of the block."""

    def __init__(self, run: AsyncRun, state: LeaseState) -> None:
        super().__init__(state)
        self._run = run

    async def publish(
        self,
        name: str,
        *,
        keep: bool = False,
        replace: bool = False,
        stream: Any = None,
        event: Any = None,
        fence: bool = True,
    ) -> None:
        """Give the buffer a name; see `Lease.publish`."""
        flow = _operations.publish(
            self._lease_state, name, keep=keep, replace=replace, stream=stream, event=event, fence=fence
        )
        await self._run(flow)

    async def promise(self) -> Promise:
        """Promise the content; see `Lease.promise`."""
        return await self._run(_operations.promise(self._lease_state))

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until the content is complete and the memory may be used; see `Lease.wait`."""
        await self._run(_operations.wait(self._lease_state, timeout))

    async def release(self, *, failed: bool = False, force: bool = False) -> None:
        """End the lease now; see `Lease.release`."""
        await self._run(_operations.release(self._lease_state, failed=failed, force=force))

    async def __aenter__(self) -> Self:
        self._lease_state.check_usable()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.released:
            return
        if error is None:
            await self.release()
        elif self._lease_state.unused_after(error, failed=self._lease_state.write):
            await self.release(failed=self._lease_state.write)
