"""The asyncio client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, Self, TypeVar, overload

from poolbridge._client import makers as _makers, operations as _operations
from poolbridge._client.arena import AsyncArena
from poolbridge._client.base_client import BaseClient
from poolbridge._client.channel import AsyncChannel
from poolbridge._client.entries import PoolInfo, ServiceStats
from poolbridge._client.lease import AsyncLease, BaseLease
from poolbridge._client.listing import AsyncLists
from poolbridge._client.subscription import AsyncSubscription
from poolbridge._client.tracing import Traced, span
from poolbridge._session.cancellation import Cancellation
from poolbridge._session.flow import Ask, Flow, Hear, Sleep
from poolbridge._session.loop_reader import LoopReader
from poolbridge._session.session import Session
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.literals import AckMode, ChannelMode, FullPolicy, Kind, Library, NoProducers
from poolbridge.errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:  # a library that is not installed has the type Any
    import cupy
    import jax
    import numpy as np
    import torch

_T = TypeVar("_T")

# The event loop cannot wait for changes of shared memory, so threads wait in its place. `_NAP`: the longest wait of a
# thread, in seconds. `_MOST_SLEEPERS`: the largest number of these threads, one for each of the 256 members of channels
# that a session may have (the service refuses another member), and some for waits for memory.
_NAP = 0.5
_MOST_SLEEPERS = 288


class _Each(AsyncIterator[AsyncLease]):
    """Awaits `newest` for each lease. A generator would end with the first error, or when a task is cancelled."""

    def __init__(self, newest: Callable[[], Awaitable[AsyncLease]]) -> None:
        self._newest = newest

    async def __anext__(self) -> AsyncLease:
        return await self._newest()


class AsyncClient(AsyncLists, BaseClient):
    """A connection to the service for asyncio. `connect_async` makes it.

    An `AsyncClient` has the methods of `Client`. The program awaits these methods, except `subscribe`, `event` and
    `session_stats`. If the program cancels a call, the call raises `CancelledError` and has had no effect: what was
    granted is released, and what was to be published is not published, so that its lease stays valid. If it is too late
    for that, the call returns its result, and the cancellation ends the task's next wait. The client is an asynchronous
    context manager: the end of the ``async with`` block closes the client. Use the client from its own event loop only.
    """

    _channel_type: ClassVar = AsyncChannel
    _arena_type: ClassVar = AsyncArena

    def __init__(self, session: Session, reader: LoopReader, path: str, timeout: float) -> None:
        super().__init__(session, path, timeout)
        self._reader = reader
        self._sleepers: ThreadPoolExecutor | None = None

    # Pools

    async def create_pool(
        self,
        name: str,
        *,
        kind: Kind = "host",
        device: int | str | None = None,
        max_bytes: int | str,
        session_bytes: int | str = 0,
        user_bytes: int | str = 0,
        uids: Sequence[int] = (),
        gids: Sequence[int] = (),
        exist_ok: bool = False,
    ) -> PoolInfo:
        """Create a pool, or with `exist_ok` open the existing pool; see `Client.create_pool`."""
        flow = _operations.create_pool(
            name,
            kind=kind,
            device=device,
            max_bytes=max_bytes,
            session_bytes=session_bytes,
            user_bytes=user_bytes,
            uids=uids,
            gids=gids,
            exist_ok=exist_ok,
        )
        return self._remember(await self._run(flow))

    async def open_pool(self, name: str, timeout: float | None = 0.0) -> PoolInfo:
        """Open a pool by its name; see `Client.open_pool`."""
        return await self._run(self._open_pool(name, timeout))

    async def destroy_pool(self, pool: PoolInfo | str) -> None:
        """Destroy a pool and its channels; see `Client.destroy_pool`."""
        self._forget(await self._run(_operations.destroy_pool(pool)))

    async def trim(self, pool: PoolInfo | str | None = None, *, keep_bytes: int | str = 0) -> int:
        """Free unused blocks of a pool and return the number of freed bytes; see `Client.trim`."""
        return await self._run(self._trim(pool, keep_bytes))

    async def stats(self) -> ServiceStats:
        """Ask for the counts of the service and of every pool; see `Client.stats`."""
        return await self._run(_operations.stats())

    async def pools(self) -> list[PoolInfo]:
        """List the pools that this user may use or destroy; see `Client.pools`."""
        return [of.pool for of in (await self.stats()).pools]

    # Buffers

    async def allocate(
        self,
        shape: int | Iterable[int] | Mapping[str, tuple[int | Iterable[int], Any]],
        dtype: Any = "float32",
        *,
        pool: PoolInfo | str | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = 0.0,
    ) -> AsyncLease:
        """Allocate a buffer and lease it for writing; see `Client.allocate`."""
        flow = self._allocate(shape, dtype, pool=pool, metadata=metadata, timeout=timeout)
        return AsyncLease(self._run, await self._run(flow))

    async def arena(
        self, nbytes: int | str, *, pool: PoolInfo | str | None = None, timeout: float | None = 0.0
    ) -> AsyncArena:
        """Make an arena; see `Client.arena`."""
        made: AsyncArena = await self._run(self._arena(nbytes, pool, timeout))
        return made

    async def empty(
        self,
        shape: int | Iterable[int],
        dtype: Any = "float32",
        *,
        pool: PoolInfo | str | None = None,
        timeout: float | None = 0.0,
    ) -> np.ndarray[Any, Any]:
        """Make an array whose content is undefined; see `Client.empty`."""
        return await self._run(self._array(shape, dtype, pool, timeout))

    async def zeros(
        self,
        shape: int | Iterable[int],
        dtype: Any = "float32",
        *,
        pool: PoolInfo | str | None = None,
        timeout: float | None = 0.0,
    ) -> np.ndarray[Any, Any]:
        """Make an array of zeros; see `Client.empty`."""
        return await self._run(self._array(shape, dtype, pool, timeout, 0))

    async def full(
        self,
        shape: int | Iterable[int],
        fill_value: Any,
        dtype: Any = "float32",
        *,
        pool: PoolInfo | str | None = None,
        timeout: float | None = 0.0,
    ) -> np.ndarray[Any, Any]:
        """Make an array that is filled with a value; see `Client.empty`."""
        return await self._run(self._array(shape, dtype, pool, timeout, fill_value))

    async def get(
        self,
        name: str,
        *,
        write: bool = False,
        other_than: BaseLease | None = None,
        expect: Mapping[str, str] | None = None,
        timeout: float | None = 0.0,
    ) -> AsyncLease:
        """Lease the buffer that was published under a name; see `Client.get`."""
        known = _operations.known_by(self._session, other_than)
        flow = self._get(name, write=write, known=known, expect=expect, timeout=timeout)
        return AsyncLease(self._run, await self._run(flow))

    def watch(self, name: str, *, timeout: float | None = None) -> AsyncIterator[AsyncLease]:
        """Get each newest content of a name in turn; see `Client.watch`."""
        known = _operations.ANY

        async def newest() -> AsyncLease:
            nonlocal known
            flow = self._get(name, write=False, known=known, timeout=timeout)
            lease = AsyncLease(self._run, await self._run(flow))
            known = _operations.known_by(self._session, lease)
            return lease

        return _Each(newest)

    async def get_copy(
        self, name: str, *, pool: PoolInfo | str | None = None, stream: Any = None, timeout: float | None = 0.0
    ) -> AsyncLease:
        """Copy what a name refers to into a new buffer; see `Client.get_copy`."""
        flow = self._get_copy(name, pool=pool, stream=stream, timeout=timeout)
        return AsyncLease(self._run, await self._run(flow))

    async def lease(
        self,
        buffer_id: int,
        generation: int,
        *,
        write: bool = False,
        timeout: float | None = 0.0,
    ) -> AsyncLease:
        """Lease a buffer by its id and generation; see `Client.lease`."""
        flow = self._lease(buffer_id, generation, write=write, timeout=timeout)
        return AsyncLease(self._run, await self._run(flow))

    async def put(
        self,
        array: Any,
        name: str,
        *,
        pool: PoolInfo | str | None = None,
        keep: bool | Literal["used"] = False,
        replace: bool = False,
        version: int | None = None,
        metadata: Mapping[str, str] | None = None,
        digests: bool = False,
        timeout: float | None = 0.0,
    ) -> AsyncLease:
        """Copy an array into a new buffer and publish it; see `Client.put`."""
        said = {"version": version, "metadata": metadata, "digests": digests}
        flow = self._put(array, name, pool=pool, keep=keep, replace=replace, **said, timeout=timeout)
        return AsyncLease(self._run, await self._run(flow))

    @overload
    async def get_array(
        self, name: str, library: Literal["numpy"] = ..., *, write: bool = ..., timeout: float | None = ...
    ) -> np.ndarray[Any, Any]: ...
    @overload
    async def get_array(
        self, name: str, library: Literal["cupy"], *, write: bool = ..., timeout: float | None = ...
    ) -> cupy.ndarray: ...
    @overload
    async def get_array(
        self, name: str, library: Literal["torch"], *, write: bool = ..., timeout: float | None = ...
    ) -> torch.Tensor: ...
    @overload
    async def get_array(
        self, name: str, library: Literal["jax"], *, write: bool = ..., timeout: float | None = ...
    ) -> jax.Array: ...
    async def get_array(
        self, name: str, library: Library = "numpy", *, write: bool = False, timeout: float | None = 0.0
    ) -> Any:
        """Lease the buffer that was published under a name, and return it as an array; see `Client.get_array`."""
        maker = _makers.check_library(library)
        return _makers.array_of(await self.get(name, write=write, timeout=timeout), maker)

    async def get_dict(
        self,
        name: str,
        library: Library = "numpy",
        *,
        write: bool = False,
        expect: Mapping[str, str] | None = None,
        timeout: float | None = 0.0,
    ) -> dict[str, Any]:
        """Lease a buffer of several arrays, and return a dict of its arrays; see `Client.get_dict`."""
        maker = _makers.check_library(library)
        return _makers.arrays_of(await self.get(name, write=write, expect=expect, timeout=timeout), maker)

    async def load(
        self, path: str | os.PathLike[str], *, pool: PoolInfo | str | None = None, timeout: float | None = None
    ) -> AsyncLease:
        """Load a model from files, or lease it if a program has loaded it already; see `Client.load`."""
        return AsyncLease(self._run, await self._run(self._load(path, pool=pool, timeout=timeout)))

    async def load_dict(
        self,
        path: str | os.PathLike[str],
        library: Library = "numpy",
        *,
        pool: PoolInfo | str | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Load a model from files, and return a dict of its arrays; see `Client.load_dict`."""
        maker = _makers.check_library(library)
        return _makers.arrays_of(await self.load(path, pool=pool, timeout=timeout), maker)

    async def unpublish(self, name: str) -> None:
        """Remove a published name; see `Client.unpublish`."""
        await self._run(_operations.unpublish(name))

    # Channels

    async def create_channel(
        self,
        name: str,
        *,
        pool: PoolInfo | str | None = None,
        mode: ChannelMode = "broadcast",
        capacity: int = 8,
        full: FullPolicy = "block",
        max_deliveries: int | None = None,
    ) -> AsyncChannel:
        """Create a channel, or open the existing channel with the same settings; see `Client.create_channel`."""
        made = self._create_channel(
            name, pool=pool, mode=mode, capacity=capacity, full=full, max_deliveries=max_deliveries
        )
        return await self._run(made)

    async def open_channel(self, name: str, timeout: float | None = 0.0) -> AsyncChannel:
        """Open a channel by its name; see `Client.open_channel`."""
        return await self._run(self._open_channel(name, timeout))

    def subscribe(
        self,
        channel: AsyncChannel | str,
        *,
        credit: int = 4,
        oldest: bool = False,
        full: FullPolicy | None = None,
        ack: AckMode = "auto",
        no_producers: NoProducers = "wait",
        timeout: float | None = 0.0,
    ) -> AsyncSubscription:
        """Return a subscription. It joins the channel when the program enters it by ``async with`` or iterates over it.

        This method is no coroutine. Its parameters and errors are those of `Client.subscribe`. The subscription raises
        the errors when it joins the channel.
        """
        return AsyncSubscription(
            self._session,
            self._run,
            self._joined_channel,
            channel,
            credit=credit,
            oldest=oldest,
            full=full,
            ack=ack,
            no_producers=no_producers,
            timeout=timeout,
        )

    # Closing

    async def close(self) -> None:
        """Close the connection. The client's leases and subscriptions end. Idempotent. See `Client.close`."""
        loop = self._reader.loop
        if self._session.ended is None and os.getpid() == self._session.pid and not loop.is_closed():
            self._check_loop()
            try:
                if not self._session.closed and not self._session.returns.release_arenas():
                    await asyncio.to_thread(self._session.returns.release_within, self._close_timeout)
                if (left := self._session.begin_close()) is not None:
                    await self._reader.wait(left, self._close_timeout)
            finally:
                self._end()
        else:
            self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def __reduce__(self) -> Never:
        raise TypeError(
            "an AsyncClient cannot be pickled, because connecting has to be awaited: send its path to the other "
            "process, and `await poolbridge.connect_async(path)` there"
        )

    @while_running
    def __del__(self) -> None:
        if self._session.ended is not None or os.getpid() != self._session.pid:
            return
        if not self._session.closed:
            self._warn_unclosed()
        self._session.close_when_unused()
        self._reader.hand_over_soon()

    # Internals

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._reader.loop:
            raise InvalidArgumentError(
                "this client belongs to another event loop, which receives its packets: in each event loop, make a "
                "client by `await poolbridge.connect_async()`"
            )

    def _end(self) -> None:
        self._session.begin_close()  # a cancelled `close` may not have begun
        if self._session.lingers:
            self._reader.hand_over()
        else:
            self._session.close()
            self._reader.stop()
        if self._sleepers is not None:
            self._sleepers.shutdown(wait=False)

    async def _perform(self, step: Any, cancellation: Cancellation) -> Any:
        cancellation.check()
        if isinstance(step, Ask):
            seconds = None if step.wait is None else step.wait + self.timeout
            return await self._reader.call(step.request, step.reply_type, seconds, cancellation)
        if isinstance(step, Hear):
            return await self._reader.wait(step.waiter, step.seconds)
        if isinstance(step, Sleep):
            return await self._sleep(step, cancellation)
        return await cancellation.outlast(self._in_thread(None, partial(copy_context().run, step.work)))

    def _in_thread(self, pool: ThreadPoolExecutor | None, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Begin `work` in a thread of `pool`; None: in a thread of the event loop's own pool.

        Raises
        ------
        UnavailableError
            The process cannot start a thread. Nobody does the work.
        """
        refused = False  # then the pool keeps the call for its next thread
        try:
            return self._reader.loop.run_in_executor(pool, lambda: None if refused else work())
        except RuntimeError as error:
            refused = True
            raise UnavailableError(
                f"the call needs a thread to wait in, and this process cannot start one ({error}): end other threads, "
                "or raise the limit of threads (RLIMIT_NPROC, or pids.max of the control group)"
            ) from error

    async def _sleep(self, step: Sleep, cancellation: Cancellation) -> Any:
        """Run a waiting step in another thread. The step waits for at most `_NAP` seconds, even if it is cancelled."""
        if self._sleepers is None:
            self._sleepers = ThreadPoolExecutor(_MOST_SLEEPERS, thread_name_prefix="poolbridge-sleeper")
        seconds = _NAP if step.seconds is None else min(step.seconds, _NAP)
        work = self._in_thread(self._sleepers, partial(step.work, seconds))
        try:
            return await (cancellation.outlast(work) if step.lasting else work)
        finally:
            del work  # the future keeps its error, whose traceback refers to this stack frame

    async def _run(self, flow: Flow[_T]) -> _T:
        """Carry out all steps of the operation `flow` and return its result; `Cancellation` says what ends it early."""
        if isinstance(flow, Traced):
            with span(self._session, flow.operation):
                traced: _T = flow.finish(await self._run(flow.flow()))
                return traced
        self._session.check_usable()
        self._check_loop()
        cancellation = Cancellation()
        try:
            step = next(flow)
            while True:
                try:
                    result = await self._perform(step, cancellation)
                except BaseException as error:  # noqa: BLE001 - the operation cleans up, and raises it again
                    step = flow.throw(error)
                else:
                    try:
                        step = flow.send(result)
                    except StopIteration:
                        raise
                    except BaseException:
                        self._session.release_untaken(result)
                        raise
        except StopIteration as stop:
            value: _T = stop.value
            return value
        finally:
            cancellation.defer()
