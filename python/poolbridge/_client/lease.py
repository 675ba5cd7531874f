"""Defines leases: a lease is the right of one client to use one buffer, and is at the same time an array."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

from poolbridge._array.arrays import ArrayExports, check_one
from poolbridge._array.copies import copy_into
from poolbridge._array.leaseview import LeaseView, cuda_array_interface
from poolbridge._client import operations as _operations
from poolbridge._client.digests import verify
from poolbridge._client.own_copy import refresh
from poolbridge._client.shown import html_of
from poolbridge._client.tracing import Operation, span, traced
from poolbridge._order import fences as _fences
from poolbridge._sys.error_texts import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolbridge._client.promise import Promise
    from poolbridge._order.event import Event
    from poolbridge._session.flow import AsyncRun, Flow, Run
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session


_UNTRACED: Final = nullcontext()


def _publishes(lease: BaseLease, name: str, **_options: Any) -> Operation:
    return Operation("publish", pool=lease.pool, buffer=name, nbytes=lease.nbytes)


class BaseLease(ArrayExports):
    """The right to read or to write one buffer. A lease is also an array that libraries use without a copy.

    Arrays that are made from a lease by DLPack, by NumPy or through `view` keep the lease alive. The lease ends when
    the program calls `release`, or when the lease object and all arrays that were made from the lease are gone.
    Programs get leases from a client and do not call this class.
    """

    def __init__(self, run: Any, state: LeaseState) -> None:
        self._run = run
        self._lease_state = state

    @property
    def _session(self) -> Session:
        return cast("Session", self._lease_state.session)

    @traced(_publishes)
    def _publish(
        self, name: str, *, keep: bool | Literal["used"], replace: bool, version: int | None, stream: Any, event: Any
    ) -> Flow[None]:
        state = self._lease_state
        return _operations.publish(state, name, keep=keep, replace=replace, version=version, stream=stream, event=event)

    def _releases(self) -> Operation:
        return Operation("release", pool=self.pool, buffer=self.name, nbytes=self.nbytes)

    def _ending(self) -> AbstractContextManager[object]:
        """Return the context manager in which a call ends the lease: if the client has a tracer, that of the tracer."""
        return _UNTRACED if self._session.tracer is None else span(self._session, self._releases())

    @property
    def pool(self) -> str:
        """Name of the buffer's pool."""
        return self._lease_state.pool.name

    @property
    def name(self) -> str | None:
        """The name under which this lease's buffer was published or found; None if the program used no name."""
        return self._lease_state.name

    @property
    def version(self) -> int | None:
        """The version of the name's content that the program got, copied or published; None if there is no name.

        It grows with each publication under the name. The program that publishes can give it, such as a training step.
        """
        return self._lease_state.version or None

    @property
    def metadata(self) -> dict[str, str]:
        """What the program that put or allocated several arrays says of them; empty if it says nothing.

        After `Lease.refresh`, this is the metadata of the newer content. A copy from `Client.get_copy` that is then
        published has no metadata. Frames have `Frame.meta` instead.
        """
        return dict(self._metadata)

    @property
    def _metadata(self) -> Mapping[str, str]:
        state = self._lease_state
        return state.description.metadata if state.copied is None else state.copied[2]

    @property
    def buffer_id(self) -> int:
        """The buffer's id, which stays unique until the service is restarted."""
        return self._lease_state.grant.buffer

    @property
    def generation(self) -> int:
        """The number of the buffer in its block: 1 more than that of the block's buffer before.

        Each service begins with another number, so a buffer is not taken for one of another service with the same id.

        For a frame, this is the number of the buffer that was in the block when this client mapped the block.
        """
        return self._lease_state.grant.generation

    @property
    def released(self) -> bool:
        """Whether the lease has ended."""
        return self._lease_state.released or self._lease_state.session.closed

    @property
    def array_count(self) -> int:
        """How many arrays made from the lease are alive; arrays made by ``__cuda_array_interface__`` do not count."""
        return len(self._lease_state.tokens)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the CUDA array interface, for memory that a GPU can use.

        An array that is made by this interface keeps the lease object alive, but poolbridge cannot count the array.
        After the first use of this interface, `release` needs ``force=True``. To have the arrays counted, make them
        from ``lease.view()``.

        Raises
        ------
        AttributeError
            The lease's `device` is ``"cpu"``; for memory of kind ``pinned``, use ``lease.view(device="cuda")``.
        UnsupportedError
            The interface lacks the element type (``bfloat16``).
        LeaseReleasedError
            The lease has ended.
        """
        interface = cuda_array_interface(self)
        self._lease_state.unaccounted = True
        return interface

    def view(self, *, legacy: bool = False, device: str | None = None, dtype: Any = None) -> LeaseView:
        """Make a view of the lease. The view counts as one array of the lease while any object refers to the view.

        Parameters
        ----------
        legacy
            True: the view also exports a read-only lease to libraries that ask for legacy DLPack capsules, such as
            older versions of JAX. A legacy capsule cannot say that the data is read-only, so the caller guarantees that
            the library does not write the data.
        device
            The device that libraries see. ``"cuda"``, or the GPU's full name, presents memory of kind ``pinned`` as
            memory of the GPU, for kernels. None: the lease's own device, which for ``pinned`` is the CPU.
        dtype
            Another dtype of the same size, as which libraries see the same bits: ``"uint8"`` for a library that lacks
            ``float8_e4m3fn`` or ``float4_e2m1fn_x2``, ``"uint16"`` for one that lacks ``bfloat16``. None: the lease's.

        Returns
        -------
        LeaseView
            The view.

        Raises
        ------
        InvalidArgumentError
            The device that `device` names cannot use the memory without a copy, or `dtype` has another size or is no
            dtype.
        TypeError
            There are several arrays, which are views.
        LeaseReleasedError
            The lease has ended.
        """
        self._lease_state.check_usable()
        check_one(self._described)
        chosen = "cuda" if device is None and self._on_gpu else device
        part = None if dtype is None else self._described.as_type(dtype)
        return LeaseView(self._lease_state, part=part, legacy=_operations.check_flag(legacy, "legacy"), device=chosen)

    def used_on(self, stream: Any) -> None:
        """Tell poolbridge that a stream uses the memory. The stream waits until it may use the memory.

        If DLPack makes an array for a stream, poolbridge knows the stream. Call this method for every other stream that
        uses an array of the lease. If an array was made by ``__cuda_array_interface__``, or by DLPack with
        ``stream=-1``, poolbridge does not know the array's streams. If the program then names no stream, the lease's
        end and `Lease.publish` wait for all work of the device. If the program names a stream, it must name all streams
        that use the memory: the next writer of the memory does not wait for the work of other streams.

        Parameters
        ----------
        stream
            A stream handle, 1 for the legacy default stream, 2 for the per-thread default stream, or a stream object of
            CuPy, PyTorch or cuda.core. 1 and 2 are streams of the lease's GPU, and so are cuda.core's objects for
            default streams; those of PyTorch and CuPy are streams of the GPU that they name.

        Raises
        ------
        ValueError
            `stream` is no stream, or the memory is memory of the CPU, which has no streams.
        ContentFailedError
            The content will never be complete.
        LeaseReleasedError
            The lease has ended.
        """
        self._lease_state.check_usable()
        _fences.name_stream(self._lease_state, stream)

    @property
    def ready_event(self) -> Event | None:
        """The interprocess event that was published with the content, if any. It stays open until the lease ends.

        A program need not use the event: if the program makes an array for a stream, the stream waits for the content
        by itself.

        Raises
        ------
        EventUnavailableError
            This process cannot open the event. The program can still use the lease, which has a fence, too.
        """
        self._lease_state.check_usable()
        return _fences.ready_event(self._lease_state)

    @property
    def failed(self) -> bool:
        """Whether this process knows that the content will never be complete: the writer died or reported a failure."""
        return _fences.lost(self._lease_state)

    def check(self) -> None:
        """Raise an error if this process knows by now that the content will never be complete.

        Call this method after a stream has used the buffer: the stream's wait for the content also ends when the
        writer's process dies or the writer's promise fails. Call it while the lease or an array of it lasts: later, the
        writer may have forgotten the failure.

        Raises
        ------
        ContentFailedError
            The content will never be complete: the writer died or reported a failure.
        LeaseReleasedError
            The lease has ended, and this process knows of no failure.
        """
        state = self._lease_state
        _fences.check(state)
        if state.released and not state.tokens:
            raise state.is_released()

    def copy_from(self, source: Any) -> None:
        """Copy an array into the leased memory. The copy is complete when the call returns.

        Parameters
        ----------
        source
            Anything that NumPy turns into an array, or an array on a GPU. The values are broadcast to the lease's
            shape and cast to the lease's dtype by NumPy's rule ``same_kind``.

        Raises
        ------
        InvalidArgumentError
            The lease is a read lease, or the source cannot be broadcast to the lease's shape.
        TypeError
            The source's dtype cannot be cast to the lease's dtype. Or there are several arrays: copy into one of them,
            as in ``lease[name].copy_from(source)``.
        LeaseReleasedError
            The lease has ended.
        """
        check_one(self._described)
        copy_into(self._lease_state, source)

    def __getitem__(self, index: Any) -> Any:
        """Return elements without a copy; only for memory of the CPU. A returned array keeps the lease alive.

        If there are several arrays, return the one whose name is `index`, as a `LeaseView`, on the CPU or a GPU.

        Raises
        ------
        KeyError
            There are several arrays, and none of this name.
        TypeError
            The CPU does not reach the memory, or there are several arrays and `index` is no name.
        """
        named = self._lease_state.description.named
        if named and isinstance(index, str):
            if (part := named.get(index)) is not None:
                return LeaseView(self._lease_state, part=part, device="cuda" if self._on_gpu else None)
            names = self.keys()
            known = ", ".join(map(shown, names[:8])) + (f", … {len(names) - 8} more" * (len(names) > 8))
            raise KeyError(f"there is no array {shown(index)}: there are {known}")
        return super().__getitem__(index)

    def __contains__(self, name: object) -> bool:
        """Whether there are several arrays, and one has this name."""
        return name in (self._lease_state.description.named or self.keys())

    def keys(self) -> list[str]:
        """Return the names of several arrays, so that ``dict(frame)`` has all arrays.

        Raises
        ------
        TypeError
            The lease is one array, without a name.
        """
        named = self._lease_state.description.named
        if not named:
            raise TypeError(
                "this is one array, not a dict of arrays: use the lease itself, or client.get_array instead of get_dict"
            )
        return list(named)

    def items(self) -> list[tuple[str, LeaseView]]:
        """Return the name and the array of each of several arrays; see `keys`."""
        return [(name, self[name]) for name in self.keys()]

    def _evidence(self) -> dict[str, Any]:
        """Return facts that show that the memory is mapped and is no copy, for ``poolsvc verify`` and for tests.

        ``pointer`` is the address of the first element. ``mapped`` says whether the driver or the kernel says that the
        memory is mapped. Other keys depend on the kind of memory.
        """
        self._lease_state.check_usable()
        pointer = self._lease_state.address(write=self._lease_state.write)
        return {"pointer": pointer, "device": self.device, **self._lease_state.memory.evidence()}

    def _state(self) -> str:
        state = self._lease_state
        if state.released or state.session.ended is not None:
            return "released"
        mode = "write" if state.write else "read"
        arrays = len(state.tokens)
        return f"{mode}, {arrays} {'arrays' if arrays > 1 else 'array'} alive" if arrays else mode

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name is not None else ""
        return (
            f"<poolbridge.{type(self).__name__}{name} {self._described.text} on {self.device}, "
            f"{self.nbytes} bytes, pool {self.pool!r}, {self._state()}>"
        )

    def _repr_html_(self) -> str:
        rows = (
            ("name", self.name or ""),
            ("elements", self._described.text),
            ("bytes", f"{self.nbytes:,}"),
            ("device", f"{self.device} ({self.kind})"),
            ("pool", self.pool),
            ("state", self._state()),
        )
        return html_of(rows)


class Lease(BaseLease):
    """A lease of a blocking `Client`. The end of its ``with`` block releases the lease.

    If arrays made from the lease are alive at the end of the block, the block raises `LeaseInUseError`. If an exception
    leaves the block, the block releases a write lease with ``failed=True``. If arrays are alive when the exception
    leaves the block, the lease ends when the last of these arrays is gone.
    """

    _run: Run

    def publish(
        self,
        name: str,
        *,
        keep: bool | Literal["used"] = False,
        replace: bool = False,
        version: int | None = None,
        stream: Any = None,
        event: Any = None,
    ) -> None:
        """Publish the buffer under a name. The write lease becomes a read lease.

        The call waits for GPU work only if poolbridge does not know the streams of the work; see `used_on`. Readers
        wait, on their streams, for the work that this process has queued so far on the streams that used the buffer.
        Arrays that were made before the call stay valid, but the program must not write them any more. Arrays from
        `numpy.asarray` become read-only; slices of these arrays, and arrays made by DLPack, cannot become read-only.

        Parameters
        ----------
        name
            The name: 1 to 255 bytes of UTF-8 without control characters.
        keep
            Keep the name after this client is closed. By default the service removes the name when the client is closed
            or the client's process ends. With ``"used"`` the name ends with the last lease of the buffer, so keep
            this lease until another program has one. A name that is replaced stays as the newest publication says.
        replace
            If this user has published another buffer under the name, the name refers to this buffer from now on.
        version
            The version of the content, 1 to 2**63 - 1, such as a training step. It must be more than that of the
            content that is replaced. None: one more than that, or 1 if nothing is replaced.
        stream
            A stream that writes the content and for which no array was made by DLPack: a stream handle, or a stream
            object of CuPy, PyTorch or cuda.core. If other programs used the memory before, name the stream by `used_on`
            before it writes, so that it waits for them.
        event
            An interprocess event for readers that use such events. The program must have recorded the event after all
            work on the content. The event comes from ``client.event()``, cuda.core, CuPy or PyTorch. Do not destroy the
            event before the readers have opened it.

        Raises
        ------
        AlreadyExistsError
            The name is taken, and `replace` is false.
        AccessDeniedError
            The name belongs to another user.
        PoolLimitError
            This user has published too many names.
        LeaseReleasedError
            The lease has ended.
        InvalidArgumentError
            The lease is a read lease, the name is malformed, or `version` is not newer than what is replaced. With an
            `event`: `event` is no interprocess event, the content is promised, or the memory is memory of the CPU.
        """
        self._run(self._publish(name, keep=keep, replace=replace, version=version, stream=stream, event=event))

    def refresh(self, *, stream: Any = None, timeout: float | None = 0.0) -> bool:
        """Copy newer content of the name into this lease from `Client.get_copy`. All arrays change, or none does.

        Arrays that were made of the lease stay valid, at the same addresses, and have the newer content.

        Parameters
        ----------
        stream
            The stream in which the program uses the arrays: a stream handle, or a stream object of CuPy, PyTorch or
            cuda.core. The stream copies after its earlier work, and the call does not wait for the copy, unless the
            name's buffer is on another device. None: the copy is complete when the call returns, and the program must
            have waited for its own work on the arrays.
        timeout
            Seconds to wait for newer content; 0: do not wait; None: no limit.

        Returns
        -------
        bool
            Whether there was newer content. False: the name refers to the same content as before, or to nothing.

        Raises
        ------
        InvalidArgumentError
            The newer content has other arrays than this lease, or this lease is no write lease from `Client.get_copy`.
        ValueError
            `stream` is no stream, or the memory is memory of the CPU, which has no streams.
        StreamCaptureError
            The program is capturing the work of the stream into a graph.
        WaitTimeoutError
            Another process still works on the newer content, and did not complete it within the client's timeout.
        BusyError, AccessDeniedError, ContentFailedError, UnavailableError
            See `Client.get`.
        LeaseReleasedError
            The lease has ended.
        """
        return self._run(refresh(self._lease_state, stream=stream, timeout=timeout))

    def verify(self) -> None:
        """Read several arrays, and compare their SHA-256 digests with those in the metadata; see `Client.put`.

        The call waits for the content, at most for the client's ``timeout``.

        Raises
        ------
        ContentFailedError
            An array has another digest; the message names the array. Or the content will never be complete.
        InvalidArgumentError
            An array has no digest.
        WaitTimeoutError, LeaseReleasedError
            See `wait`.
        """
        self._run(verify(self._lease_state, self._metadata))

    def promise(self) -> Promise:
        """Promise the content, so that the buffer can be published before the content is complete.

        Use a promise for content that the CPU writes. Also use a promise for content that a GPU writes if this process
        itself waits until the GPU's work is done. First make the arrays. Then publish the lease under a name or through
        a channel, write the arrays, and call `Promise.complete`. Readers of the buffer wait until the program calls
        `Promise.complete`. If the content cannot be completed, call `Promise.fail`.

        Returns
        -------
        Promise
            The promise. The program has to call `Promise.complete` or `Promise.fail`. If the program drops the promise
            object before that, the promise fails.

        Raises
        ------
        InvalidArgumentError
            The lease is a read lease, or its content is promised already.
        LeaseReleasedError
            The lease has ended.
        PoolLimitError
            This client already has 512 promises that are not completed and streams whose work is not done, counted
            together. Or 256 buffers whose promises it failed still have a lease, a name or a place in a channel.
        UnsupportedError
            The service is too old for promises.
        """
        return self._run(_operations.promise(self._session, self._lease_state))

    def wait(self, timeout: float | None = None) -> None:
        """Wait on the CPU until the content is complete and this process may use the memory.

        A program need not call this method for streams of a GPU, because these streams wait by themselves. A library
        that makes an array for the CPU from the lease also waits, but at most for the client's ``timeout``.

        Parameters
        ----------
        timeout
            Seconds to wait; None, the default: no limit.

        Raises
        ------
        WaitTimeoutError
            The content was not complete within `timeout`.
        ContentFailedError
            The content will never be complete: the writer died or reported a failure.
        LeaseReleasedError
            The lease has ended.
        """
        self._run(_operations.wait(self._lease_state, timeout))

    def release(self, *, failed: bool = False, force: bool = False) -> None:
        """End the lease now.

        The next writer of the memory waits, on its stream, for the work that this process has queued so far on the
        streams that used the buffer. These are the streams for which arrays were made by DLPack, and the streams that
        the program named by `used_on`.

        Parameters
        ----------
        failed
            True: the content is incomplete. Readers that wait for the content get `ProducerDiedError`.
        force
            End the lease although arrays made from the lease are alive, or may be alive. The caller guarantees that no
            array is used any more.

        Raises
        ------
        LeaseInUseError
            Arrays made from the lease are alive, or may be alive because they were made by
            ``__cuda_array_interface__``. The lease stays valid.
        LeaseReleasedError
            The lease has ended already.
        """
        if self._lease_state.session.tracer is None:  # the usual case, without a context manager
            self._end(failed, force)
        else:
            with self._ending():
                self._end(failed, force)

    def _end(self, failed: bool, force: bool) -> None:
        failed, force = _operations.check_flag(failed, "failed"), _operations.check_flag(force, "force")
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
    """A lease of an `AsyncClient`. Its ``async with`` block ends in the same way as the ``with`` block of a `Lease`."""

    _run: AsyncRun

    async def publish(
        self,
        name: str,
        *,
        keep: bool | Literal["used"] = False,
        replace: bool = False,
        version: int | None = None,
        stream: Any = None,
        event: Any = None,
    ) -> None:
        """Publish the buffer under a name; see `Lease.publish`."""
        await self._run(self._publish(name, keep=keep, replace=replace, version=version, stream=stream, event=event))

    async def refresh(self, *, stream: Any = None, timeout: float | None = 0.0) -> bool:
        """Copy newer content of the name into this lease; see `Lease.refresh`."""
        return await self._run(refresh(self._lease_state, stream=stream, timeout=timeout))

    async def verify(self) -> None:
        """Compare the digests of several arrays with those in the metadata; see `Lease.verify`."""
        await self._run(verify(self._lease_state, self._metadata))

    async def promise(self) -> Promise:
        """Promise the content of a buffer that is published before the content is complete; see `Lease.promise`."""
        return await self._run(_operations.promise(self._session, self._lease_state))

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until the content is complete and this process may use the memory; see `Lease.wait`."""
        await self._run(_operations.wait(self._lease_state, timeout))

    async def release(self, *, failed: bool = False, force: bool = False) -> None:
        """End the lease now; see `Lease.release`."""
        with self._ending():
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
