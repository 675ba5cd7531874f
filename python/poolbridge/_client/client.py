"""The blocking client."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from poolbridge._client import channel_operations as _channel_operations
from poolbridge._client import operations as _operations
from poolbridge._client import whole as _whole
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
from poolbridge._sys.errors import PoolbridgeError
from poolbridge._sys.literals import AckMode, ChannelMode, FullPolicy, Kind, Library
from poolbridge._wire.messages import Reply

_T = TypeVar("_T")


class Client(Lists, ClientState):
    """A connection to the service. Thread-safe, and a context manager; made by `connect`.

    A pickled client connects again where it is unpickled, to the same service and with the same default pool: so it can
    be given to a process that was spawned. In a forked child it raises `ForkError`.
    """

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

        Parameters
        ----------
        name
            1 to 255 bytes of UTF-8 without control characters.
        kind
            Where the memory comes from: ``"device"``, ``"vmm"``, ``"legacy"``, ``"pinned"``, or ``"host"``, which needs
            no GPU.
        device
            A GPU's ordinal as the service counts, or its UUID; None: the first.
        max_bytes
            Most bytes that its blocks may take: a number, or a size such as ``"64MiB"``.
        session_bytes, user_bytes
            Most bytes that may count for one session, and for all of one user, likewise; 0: no limit of its own. Free
            blocks that a process keeps from others count for it too: of its sessions that ended without having released
            them, with GPU work under way on them, or asked back and still mapped.
        uids, gids
            Users and groups that may use it; without any, this user alone.
        exist_ok
            Open the pool of that name if there is one that is just like it, or is being made at this moment.

        Raises
        ------
        AlreadyExistsError
            There is a pool of that name; with `exist_ok` one that differs, and the message says how.
        UnavailableError
            The service's machine cannot do it; the message says what is missing.
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

        Parameters
        ----------
        name
            The pool's name.
        timeout
            Seconds to wait for it to appear; None: no limit. One that is being made is waited for in any case.

        Raises
        ------
        NotFoundError, WaitTimeoutError
            There is no such pool, or none appeared in time.
        AccessDeniedError
            This user may not use it.
        """
        return self._remember(self._run(_operations.open_pool(name, timeout=timeout)))

    def destroy_pool(self, pool: Pool | str) -> None:
        """Destroy a pool; memory that leases still need goes when they end.

        Parameters
        ----------
        pool
            The pool or its name. Its maker and the service's own user may destroy it even if they may not open it.

        Raises
        ------
        NotFoundError
            There is no such pool, as far as this user may know.
        AccessDeniedError
            This user may not destroy it.
        """
        self._forget(self._run(_operations.destroy_pool(self._find_pool(pool))))

    def trim(self, pool: Pool | str | None = None, *, keep_bytes: int | str = 0) -> int:
        """Give unused blocks of a pool back to the device.

        Parameters
        ----------
        pool
            The pool; left out: the default pool.
        keep_bytes
            Bytes of unused blocks to keep: a number, or a size such as ``"64MiB"``.

        Returns
        -------
        int
            Bytes given back.
        """
        return self._run(_operations.trim(self._pool(pool), keep_bytes=keep_bytes))

    def stats(self) -> ServiceStats:
        """Ask for the service's counts and those of every pool that it may use or destroy."""
        return self._run(_operations.stats())

    def pools(self) -> list[Pool]:
        """List the pools that this user may use or destroy; `stats` says how much of them is in use."""
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
            Elements along each axis; ``()`` makes a scalar.
        dtype
            A dtype of NumPy, or a name such as ``"bfloat16"``.
        pool
            The pool; left out: the first that this client created or opened.
        timeout
            Seconds to wait for room in the pool; None: no limit.

        Returns
        -------
        Lease
            A write lease; its content is undefined.

        Raises
        ------
        PoolLimitError, DeviceMemoryError
            No room in the pool or on the device.
        InvalidArgumentError
            A shape or dtype that cannot be, or no pool.
        """
        description = _tensor.describe(shape, dtype)
        flow = _operations.allocate(self._session, description, self._pool(pool).id, timeout=timeout)
        return Lease(self._run, self._run(flow))

    def get(self, name: str, *, write: bool = False, timeout: float | None = 0.0) -> Lease:
        """Lease the buffer behind a name; its pool is opened if need be.

        Parameters
        ----------
        name
            What it was published under.
        write
            Lease it for writing, which excludes every other lease.
        timeout
            Seconds to wait for the name to appear and for leases that exclude this one; None: no limit.

        Raises
        ------
        NotFoundError, WaitTimeoutError
            There is no such name, or none appeared in time.
        BusyError
            Another lease excludes this one.
        ProducerDiedError
            The buffer's writer died before finishing.
        """
        return Lease(self._run, self._run(_operations.get(self._session, name, write=write, timeout=timeout)))

    def lease(self, buffer_id: int, generation: int, *, write: bool = False, timeout: float | None = 0.0) -> Lease:
        """Lease a buffer by id and generation, as another lease's ``buffer_id`` and ``generation`` say.

        Raises
        ------
        StaleError
            The buffer is gone; its block is used again.
        BusyError
            Another session writes it. The buffers of frames count as written.
        """
        flow = _operations.lease(self._session, buffer_id, generation, write=write, timeout=timeout)
        return Lease(self._run, self._run(flow))

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
        """Copy an array into a new buffer and publish it, complete.

        Parameters
        ----------
        array
            An array of NumPy, or of any library that speaks DLPack or ``__cuda_array_interface__``.
        name
            1 to 255 bytes of UTF-8 without control characters.
        pool
            The pool; left out: the first that this client created or opened.
        keep
            Keep the name when this client is gone.
        replace
            Take the name over if the same user has published it before.
        timeout
            Seconds to wait for room in the pool; None: no limit.

        Returns
        -------
        Lease
            A read lease. The name keeps the buffer without it.

        Raises
        ------
        InvalidArgumentError
            It is no array, or there is no pool.
        AlreadyExistsError
            The name is taken.
        PoolLimitError, DeviceMemoryError
            No room in the pool or on the device.
        """
        flow = _whole.put(self._session, array, name, self._pool(pool).id, keep=keep, replace=replace, timeout=timeout)
        return Lease(self._run, self._run(flow))

    def get_array(
        self, name: str, library: Library = "numpy", *, write: bool = False, timeout: float | None = 0.0
    ) -> Any:
        """Get what was published under a name as an array, in place.

        Parameters
        ----------
        name
            What it was published under.
        library
            Whose array to make: ``"numpy"``, ``"cupy"``, ``"torch"`` or ``"jax"``. NumPy gets a copy of memory that
            only a GPU reaches, and of ``bfloat16``, which it lacks, as float32.
        write
            Lease it for writing, which excludes every other lease. Otherwise the memory must not be written.
        timeout
            Seconds to wait for the name to appear and for leases that exclude this one; None: no limit.

        Returns
        -------
        array
            The lease lasts for as long as the array, and what was made of it in place.

        Raises
        ------
        InvalidArgumentError
            There is no such library; `UnavailableError` if it is not installed.
        NotFoundError, WaitTimeoutError, BusyError, ProducerDiedError
            As for `get`.
        """
        _whole.check_library(library)
        return _whole.array_of(self.get(name, write=write, timeout=timeout), library)

    def unpublish(self, name: str) -> None:
        """Take a name away; leases on its buffer stay."""
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
        """Create a channel, or open the one of that name that is like it.

        Frames go through memory that producers and consumers share: one costs microseconds and no message to the
        service. A producer keeps the memory of its last frames, `capacity` and 2 more, for the next ones for a second
        or two. Memory that came back is its producer's until that uses or releases it: while the producer is stopped,
        others do not get it. A channel has at most 63 producers, and a consumer at most 256 frames in hand.

        Parameters
        ----------
        name
            1 to 255 bytes of UTF-8 without control characters.
        pool
            The pool whose buffers it carries; left out: the first that this client created or opened.
        mode
            ``"broadcast"``: every subscriber gets every frame. ``"queue"``: each frame goes to one subscriber, and to
            another one if that ends before it acknowledged it.
        capacity
            How many frames it keeps, 1 to 1,024; in a queue, of those that nobody got.
        full
            What happens when it is full. ``"block"``: who sends waits. ``"fail"``: sending fails. ``"drop-oldest"``:
            who is behind misses frames. ``"latest"``: the same, and gets only the newest.

        Raises
        ------
        AlreadyExistsError
            There is a channel of that name that is not like it.
        UnavailableError
            poolbridge is installed without its native module, or the service has no channels; the message says what
            is missing.
        """
        flow = _channel_operations.create_channel(
            self._session, name, pool=self._pool(pool).id, mode=mode, capacity=capacity, full=full
        )
        info = self._run(flow)
        return Channel(self._session, self._run, info, self._channel_pool(info))

    def open_channel(self, name: str, timeout: float | None = 0.0) -> Channel:
        """Open a channel by its name, and its pool with it.

        Parameters
        ----------
        name
            The channel's name.
        timeout
            Seconds to wait for it to appear; None: no limit.

        Raises
        ------
        NotFoundError, WaitTimeoutError
            There is no such channel, or none appeared in time.
        AccessDeniedError
            This user may not use its pool.
        UnavailableError
            See `create_channel`.
        """
        info = self._run(_channel_operations.open_channel(self._session, name, timeout=timeout))
        return Channel(self._session, self._run, info, self._channel_pool(info))

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
        """Subscribe to a channel; iterate over what this gives.

        Parameters
        ----------
        channel
            A channel or its name.
        credit
            How many frames may be taken and not yet acknowledged at a time, 1 to 256: with ``ack="manual"``, asking for
            one more waits until another thread or task has acknowledged one.
        oldest
            Begin with the oldest frame that the channel keeps; otherwise with the newest.
        full
            What happens when this subscriber of a broadcast is behind, if not what the channel does.
        ack
            ``"auto"``: asking for the next frame acknowledges those before it. ``"manual"``: only `Frame.ack`,
            `Frame.release` and the end of a frame's ``with`` block do. See `Frame`.
        timeout
            Seconds to wait for the channel to appear; None: no limit.

        Raises
        ------
        NotFoundError, WaitTimeoutError
            There is no such channel, or none appeared in time.
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
        return Subscription(self._run, opened, self._run(flow), ack)

    # The end

    def close(self) -> None:
        """Close the connection; its leases end. Idempotent.

        Arrays that are still alive stay valid, but their memory is not used again before this process ends.
        """
        if self._session.ended is None and os.getpid() == self._session.pid:
            self._session.spares.release_within(CLOSE_TIMEOUT)
            last = self._session.prepare_close()
            if last is not None:
                try:
                    self._reader.call(last, Reply, CLOSE_TIMEOUT)
                except PoolbridgeError:
                    pass  # gone or stalled: the service ends the session by itself
        self._session.close()
        if os.getpid() == self._session.pid:
            self._reader.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if sys.is_finalizing() or self._session.ended is not None or os.getpid() != self._session.pid:
            return
        self._warn_unclosed()
        self._reader.background(self._session.close_when_unused)

    # Inside

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
        """Carry an operation to its end, waiting where it has to."""
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
