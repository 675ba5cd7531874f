"""The blocking client."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from poolbridge._client import channel_operations as _channel_operations, operations as _operations, whole as _whole
from poolbridge._client.channel import Channel, info_of
from poolbridge._client.client_state import CLOSE_TIMEOUT, ClientState
from poolbridge._client.lease import Lease
from poolbridge._client.listing import Lists
from poolbridge._client.pool import Pool, ServiceStats
from poolbridge._client.subscription import Subscription
from poolbridge._memory import tensor as _tensor
from poolbridge._session.flow import Ask, Flow, Hear, Sleep
from poolbridge._session.session import Session
from poolbridge._session.socket_reader import SocketReader
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.literals import AckMode, ChannelMode, FullPolicy, Kind, Library

_T = TypeVar("_T")


class Client(Lists, ClientState):
    """A connection to the service, made by `connect`. It is thread-safe, and a context manager that closes itself.

    A client can be pickled, for example for a spawned process: the process that unpickles the client connects to the
    same service, with the same default pool. A forked child cannot use its parent's client.

    Every method that asks the service can also raise `ClosedError` (`ClientClosedError` if the client was closed,
    `ConnectionLostError` if the service went away), `ServiceStalledError` if the service does not answer within the
    client's ``timeout``, and `ForkError` in a forked child.
    """

    _lease_type: ClassVar = Lease
    _channel_type: ClassVar = Channel
    _subscription_type: ClassVar = Subscription

    def __init__(self, session: Session, reader: SocketReader, path: str, timeout: float) -> None:
        super().__init__(session, path, timeout)
        self._reader = reader

    # Pools

    def create_pool(
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
    ) -> Pool:
        """Create a pool.

        The first pool that a client creates or opens becomes the client's default pool.

        Parameters
        ----------
        name
            The pool's name: 1 to 255 bytes of UTF-8 without control characters.
        kind
            Where the memory comes from: ``"device"``, ``"vmm"``, ``"legacy"``, ``"pinned"``, or ``"host"``, which needs
            no GPU.
        device
            A GPU's ordinal as the service counts, or its UUID; None: the first GPU.
        max_bytes
            Most bytes that the pool's blocks may take together: a number, or a size such as ``"64MiB"``.
        session_bytes, user_bytes
            Most bytes that may count for one session, and for all sessions of one user, in the same form; 0: no limit
            besides `max_bytes`. A free block also counts while the session's process keeps the block from other
            processes: GPU work on the block is under way, the service has recalled the block and the process has not
            unmapped it yet, or the session ended without having released the block.
        uids, gids
            Ids of the users and groups that may use the pool. If both are empty, only this user may use the pool.
        exist_ok
            If a pool of that name with the same settings exists, or another client is making this pool now, open the
            pool.

        Returns
        -------
        Pool
            The new pool, or with `exist_ok` the existing pool.

        Raises
        ------
        AlreadyExistsError
            There is a pool of that name. With `exist_ok`: the pool's settings differ, and the message says how.
        AccessDeniedError
            This user may not create pools, or may not use the existing one.
        UnavailableError
            The service's machine cannot make such a pool; the message says what is missing.
        PoolLimitError, DeviceMemoryError
            This user has too many pools, or the machine has not enough memory.
        InvalidArgumentError
            An argument is not as described above.
        """
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
        return self._remember(self._run(flow))

    def open_pool(self, name: str, timeout: float | None = 0.0) -> Pool:
        """Open a pool by its name.

        The first pool that a client creates or opens becomes the client's default pool.

        Parameters
        ----------
        name
            The pool's name.
        timeout
            Seconds to wait for the pool to appear; 0: do not wait; None: no limit. If another client is making the pool
            now, the call always waits until the pool is made.

        Returns
        -------
        Pool
            The pool.

        Raises
        ------
        NotFoundError
            There is no such pool, and `timeout` is 0.
        WaitTimeoutError
            The pool did not appear within `timeout`.
        AccessDeniedError
            This user may not use the pool.
        """
        return self._remember(self._run(_operations.open_pool(name, timeout=timeout)))

    def destroy_pool(self, pool: Pool | str) -> None:
        """Destroy a pool and its channels. Memory that leases still use is freed when these leases end.

        Parameters
        ----------
        pool
            The pool or its name. The user who made the pool and the service's own user may destroy the pool, even if
            they may not open it.

        Raises
        ------
        NotFoundError
            There is no such pool, or this user may not see it.
        AccessDeniedError
            This user may not destroy the pool.
        """
        self._forget(self._run(_operations.destroy_pool(self._find_pool(pool))))

    def trim(self, pool: Pool | str | None = None, *, keep_bytes: int | str = 0) -> int:
        """Free unused blocks of a pool.

        Parameters
        ----------
        pool
            The pool or its name; None: the default pool.
        keep_bytes
            Bytes of unused blocks to keep: a number, or a size such as ``"64MiB"``.

        Returns
        -------
        int
            Bytes that were freed at once. Blocks that clients still have mapped are freed later.

        Raises
        ------
        NotFoundError, AccessDeniedError
            There is no such pool, or this user may not use it.
        InvalidArgumentError
            `pool` is None and the client has no default pool, or `keep_bytes` is no size.
        """
        return self._run(_operations.trim(self._pool(pool), keep_bytes=keep_bytes))

    def stats(self) -> ServiceStats:
        """Ask for the counts of the service, and of every pool that this user may use or destroy.

        Returns
        -------
        ServiceStats
            The counts at the time of the call.
        """
        return self._run(_operations.stats())

    def pools(self) -> list[Pool]:
        """List the pools that this user may use or destroy; `stats` also says how much of each is in use.

        Returns
        -------
        list of Pool
            The pools.
        """
        return [of.pool for of in self.stats().pools]

    # Buffers

    def allocate(
        self,
        shape: int | Iterable[int],
        dtype: Any = "float32",
        *,
        pool: Pool | str | None = None,
        timeout: float | None = 0.0,
    ) -> Lease:
        """Allocate a buffer and lease it for writing.

        Parameters
        ----------
        shape
            Elements along each axis, at most 32 axes. A number makes one axis, ``()`` a scalar.
        dtype
            A NumPy dtype, or a name such as ``"float32"`` or ``"bfloat16"``.
        pool
            The pool or its name; None: the default pool, the first that this client created or opened.
        timeout
            Seconds to wait for room in the pool; 0: do not wait; None: no limit.

        Returns
        -------
        Lease
            A write lease of a C-contiguous buffer. The content is undefined.

        Raises
        ------
        PoolLimitError, DeviceMemoryError
            The pool or the device has no room, or no memory became free within `timeout`.
        NotFoundError, AccessDeniedError
            There is no such pool, or this user may not use it.
        InvalidArgumentError
            The shape or dtype is not possible, or `pool` is None and the client has no default pool.
        """
        description = _tensor.describe(shape, dtype)
        flow = _operations.allocate(self._session, description, self._pool(pool).id, timeout=timeout)
        return self._lease_type(self._run, self._run(flow))

    def get(self, name: str, *, write: bool = False, timeout: float | None = 0.0) -> Lease:
        """Lease the buffer that was published under a name. The client opens the buffer's pool if it is not open yet.

        Parameters
        ----------
        name
            The name that was given to `Lease.publish` or `put`.
        write
            Lease the buffer for writing. A write lease excludes every other lease on the buffer.
        timeout
            Seconds to wait for the name to appear, and for the end of other leases that exclude this lease; 0: do not
            wait; None: no limit.

        Returns
        -------
        Lease
            A read lease, or with `write` a write lease.

        Raises
        ------
        NotFoundError
            Nothing is published under the name, and `timeout` is 0.
        WaitTimeoutError
            The name did not appear within `timeout`.
        BusyError
            Another lease excludes this lease, and did not end within `timeout`.
        AccessDeniedError
            This user may not use the buffer's pool.
        ContentFailedError
            The content will never be complete: its writer died or reported a failure.
        UnavailableError
            This process cannot map the memory; the message says why.
        """
        flow = _operations.get(self._session, name, write=write, timeout=timeout)
        return self._lease_type(self._run, self._run(flow))

    def lease(self, buffer_id: int, generation: int, *, write: bool = False, timeout: float | None = 0.0) -> Lease:
        """Lease a buffer by its id and generation, which another process sent.

        Parameters
        ----------
        buffer_id, generation
            `BaseLease.buffer_id` and `BaseLease.generation` of the other process's lease.
        write
            Lease the buffer for writing. A write lease excludes every other lease on the buffer.
        timeout
            Seconds to wait for the end of other leases that exclude this lease; 0: do not wait; None: no limit.

        Returns
        -------
        Lease
            A read lease, or with `write` a write lease.

        Raises
        ------
        NotFoundError
            No buffer ever had the id.
        StaleError
            The buffer is gone, or the block has another generation now.
        BusyError
            Another lease excludes this lease, and did not end within `timeout`. A buffer that a channel carries counts
            as leased for writing.
        AccessDeniedError, ContentFailedError, UnavailableError
            See `get`.
        """
        flow = _operations.lease(self._session, buffer_id, generation, write=write, timeout=timeout)
        return self._lease_type(self._run, self._run(flow))

    def put(
        self,
        array: Any,
        name: str,
        *,
        pool: Pool | str | None = None,
        keep: bool = False,
        replace: bool = False,
        timeout: float | None = 0.0,
    ) -> Lease:
        """Copy an array into a new buffer and publish it. The copy is complete when the call returns.

        Parameters
        ----------
        array
            A NumPy array, or an array of any library that has DLPack or ``__cuda_array_interface__``.
        name
            The name under which the copy is published: 1 to 255 bytes of UTF-8 without control characters.
        pool
            The pool or its name; None: the default pool, the first that this client created or opened.
        keep
            Keep the name when this client is closed. By default the service removes the name when the client ends.
        replace
            If the same user has published the name before, let the name refer to this buffer now.
        timeout
            Seconds to wait for room in the pool; 0: do not wait; None: no limit.

        Returns
        -------
        Lease
            A read lease. The buffer stays published when this lease ends.

        Raises
        ------
        InvalidArgumentError
            `array` is no array, its element type cannot be shared, or `pool` is None and the client has no default
            pool.
        AlreadyExistsError
            The name is taken, and `replace` is false.
        AccessDeniedError
            The name belongs to another user, or this user may not use the pool.
        PoolLimitError, DeviceMemoryError
            The pool or the device has no room, or no memory became free within `timeout`.
        """
        flow = _whole.put(self._session, array, name, self._pool(pool).id, keep=keep, replace=replace, timeout=timeout)
        return self._lease_type(self._run, self._run(flow))

    def get_array(
        self, name: str, library: Library = "numpy", *, write: bool = False, timeout: float | None = 0.0
    ) -> Any:
        """Lease the buffer that was published under a name, and return it as an array of a library.

        Parameters
        ----------
        name
            The name that was given to `Lease.publish` or `put`.
        library
            The library of the array: ``"numpy"``, ``"cupy"``, ``"torch"`` or ``"jax"``. NumPy gets a copy of memory
            that only a GPU reaches, and a copy as float32 of ``bfloat16``, which NumPy lacks. All other arrays use the
            memory in place.
        write
            Lease the buffer for writing. A write lease excludes every other lease on the buffer. By default the buffer
            is leased for reading, and the program must not write the array.
        timeout
            Seconds to wait for the name to appear, and for the end of other leases that exclude this lease; 0: do not
            wait; None: no limit.

        Returns
        -------
        array
            An array of the library. The lease ends when the array, and all arrays made from it in place, are gone.

        Raises
        ------
        InvalidArgumentError
            `library` is not one of these four names.
        UnavailableError
            The library is not installed, or this process cannot map the memory.
        NotFoundError, WaitTimeoutError, BusyError, AccessDeniedError, ContentFailedError
            See `get`.
        """
        _whole.check_library(library)
        return _whole.array_of(self.get(name, write=write, timeout=timeout), library)

    def unpublish(self, name: str) -> None:
        """Remove a published name. Leases on its buffer stay.

        Parameters
        ----------
        name
            The name that was given to `Lease.publish` or `put`.

        Raises
        ------
        NotFoundError
            Nothing is published under the name.
        AccessDeniedError
            Another user published the name.
        """
        self._run(_operations.unpublish(name))

    # Channels

    def create_channel(
        self,
        name: str,
        *,
        pool: Pool | str | None = None,
        mode: ChannelMode = "broadcast",
        capacity: int = 8,
        full: FullPolicy = "block",
    ) -> Channel:
        """Create a channel, or open the channel of that name if it has the same settings.

        Frames go through memory that producers and consumers share. A frame costs microseconds, and no message to the
        service. When consumers are done with a frame's memory, the memory goes back to the frame's producer. The
        producer keeps the memory of up to ``capacity + 2`` frames for its next frames, and releases memory that was not
        used for a second or two. While the producer's process is stopped, no other client gets that memory. A channel
        has at most 63 producers. A consumer has at most 256 frames in hand.

        Parameters
        ----------
        name
            The channel's name: 1 to 255 bytes of UTF-8 without control characters.
        pool
            The pool whose buffers the channel carries, or its name; None: the default pool, the first that this client
            created or opened.
        mode
            ``"broadcast"``: every subscriber gets every frame. ``"queue"``: each frame goes to one subscriber. If that
            subscriber ends before it has acknowledged the frame, another subscriber gets it.
        capacity
            How many frames the channel keeps, 1 to 1,024. In a queue, frames that a subscriber has taken do not count.
        full
            What happens when the channel is full. ``"block"``: publishing waits. ``"fail"``: publishing raises
            `PoolLimitError`. ``"drop-oldest"``: a subscriber that is behind misses the oldest frames. ``"latest"``:
            such a subscriber misses frames too, and gets only the newest frame.

        Returns
        -------
        Channel
            The new channel, or the existing channel.

        Raises
        ------
        AlreadyExistsError
            There is a channel of that name with other settings.
        NotFoundError, AccessDeniedError
            There is no such pool, or this user may not use it.
        PoolLimitError, DeviceMemoryError
            The pool or the service has too many channels, or the machine has not enough memory.
        UnavailableError
            poolbridge is installed without its native module, or the service has no channels; the message says what
            is missing.
        InvalidArgumentError
            An argument is not as described above, or `pool` is None and the client has no default pool.
        """
        flow = _channel_operations.create_channel(
            self._session, name, pool=self._pool(pool).id, mode=mode, capacity=capacity, full=full
        )
        info = self._run(flow)
        return self._channel_type(self._session, self._run, info, self._channel_pool(info))

    def open_channel(self, name: str, timeout: float | None = 0.0) -> Channel:
        """Open a channel by its name. The client also opens the channel's pool.

        Parameters
        ----------
        name
            The channel's name.
        timeout
            Seconds to wait for the channel to appear; 0: do not wait; None: no limit.

        Returns
        -------
        Channel
            The channel.

        Raises
        ------
        NotFoundError
            There is no such channel, and `timeout` is 0.
        WaitTimeoutError
            The channel did not appear within `timeout`.
        AccessDeniedError
            This user may not use the channel's pool.
        UnavailableError
            poolbridge is installed without its native module, or the service has no channels.
        """
        info = self._run(_channel_operations.open_channel(self._session, name, timeout=timeout))
        return self._channel_type(self._session, self._run, info, self._channel_pool(info))

    def subscribe(
        self,
        channel: Channel | str,
        *,
        credit: int = 4,
        oldest: bool = False,
        full: FullPolicy | None = None,
        ack: AckMode = "auto",
        timeout: float | None = 0.0,
    ) -> Subscription:
        """Subscribe to a channel. Iterate over the returned subscription to get the frames.

        Parameters
        ----------
        channel
            A channel or its name.
        credit
            How many frames this subscriber may have taken and not yet acknowledged, 1 to 256. At that limit, a call for
            the next frame waits until another thread or task acknowledges a frame. `credit` matters with
            ``ack="manual"``.
        oldest
            Begin with the oldest frame that the channel keeps. By default a subscription begins with the newest.
        full
            What happens when this subscriber of a broadcast is behind: one of the values of `full` in `create_channel`;
            None: the channel's own value.
        ack
            ``"auto"``: asking for the next frame acknowledges the frames before it. ``"manual"``: only `Frame.ack`,
            `Frame.release` and the end of a frame's ``with`` block acknowledge a frame. See `Frame`.
        timeout
            Seconds to wait for the channel to appear; 0: do not wait; None: no limit.

        Returns
        -------
        Subscription
            An iterator over the frames. The iterator waits for each frame without a time limit.

        Raises
        ------
        NotFoundError
            There is no such channel, and `timeout` is 0.
        WaitTimeoutError
            The channel did not appear within `timeout`.
        ClosedError
            The channel was closed.
        AccessDeniedError, UnavailableError
            See `open_channel`.
        PoolLimitError
            The channel or the session has too many members.
        InvalidArgumentError
            An argument is not as described above.
        """
        opened = channel if isinstance(channel, Channel) else self.open_channel(channel, timeout)
        flow = _channel_operations.subscribe(
            self._session,
            info_of(opened),
            credit=credit,
            oldest=oldest,
            full=full,
            ack=ack,
        )
        return self._subscription_type(self._run, opened, self._run(flow), ack)

    # Closing

    def close(self) -> None:
        """Close the connection. The client's leases and subscriptions end. Idempotent.

        Arrays that are alive stay valid. The service does not use their memory again before this process ends. When the
        call returns, the service has ended the session and no longer counts it, unless the service did not answer
        within a second.
        """
        if self._session.ended is None and os.getpid() == self._session.pid:
            self._session.spares.release_within(CLOSE_TIMEOUT)
            if (left := self._session.begin_close()) is not None:
                self._reader.wait(left, CLOSE_TIMEOUT)
        self._session.close()
        if os.getpid() == self._session.pid:
            self._reader.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @while_running
    def __del__(self) -> None:
        if self._session.ended is not None or os.getpid() != self._session.pid:
            return
        self._warn_unclosed()
        self._reader.background(self._session.close_when_unused)

    # Internals

    def _pool(self, pool: Pool | str | None) -> Pool:
        found = self._find_pool(pool)
        return found if isinstance(found, Pool) else self.open_pool(found)

    def _perform(self, step: Any) -> Any:
        if isinstance(step, Ask):
            seconds = None if step.wait is None else step.wait + self.timeout
            return self._reader.call(step.request, step.reply_type, seconds)
        if isinstance(step, Hear):
            return self._reader.wait(step.waiter, step.seconds)
        return step.work(step.seconds) if isinstance(step, Sleep) else step.work()

    def _run(self, flow: Flow[_T]) -> _T:
        """Run an operation to its end and return its result."""
        self._session.check_usable()
        try:
            step = next(flow)
            while True:
                try:
                    result = self._perform(step)
                except BaseException as error:  # noqa: BLE001 - the operation cleans up, and raises it again
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as stop:
            value: _T = stop.value
            return value
