"""Defines arenas: memory that a program divides by itself, and from which it publishes arrays without a copy."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast
from weakref import ref

import numpy as np
from msgspec import structs

from poolbridge._array import sources as _sources
from poolbridge._client import allocators as _allocators
from poolbridge._client.operations import allocate, check_bytes, check_timeout
from poolbridge._client.shown import html_of
from poolbridge._memory import tensor as _tensor
from poolbridge._memory.kinds import ON_CPU
from poolbridge._order import fences as _fences
from poolbridge._session.division import ALIGN, Division, Part
from poolbridge._session.flow import Ask, Do, Flow, ask
from poolbridge._session.grants import know_timeline, map_state, mapped_state
from poolbridge._sys.error_texts import from_signal, shown
from poolbridge._wire.messages import AllocRange, Fence, GrantReply, Returned, ReturnedReply
from poolbridge.errors import (
    BusyError,
    DeviceMemoryError,
    InvalidArgumentError,
    LeaseReleasedError,
    PoolLimitError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolbridge._client.entries import PoolInfo
    from poolbridge._memory.tensor import Description
    from poolbridge._session.flow import AsyncRun, Run
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session

FEATURE = "ranges"
# A client's own arena of a pool has blocks of at most `_STEP` bytes, and of a `_SHARE`th of the pool.
_STEP, _SHARE = 64 << 20, 8
# While the pool has no room, a call that waits looks after this number of seconds whether ranges have come back.
_PAUSE = 50e-3
_NOTHING = object()
_SMALL = 64 << 10  # bytes of a frame that is rather copied


def begin(
    session: Session, pool: PoolInfo, nbytes: Any, *, timeout: float | None, arena: type[BaseArena]
) -> Flow[Division]:
    """Lease the first block of an arena."""
    if not arena.has_allocators and pool.kind not in ON_CPU:
        raise InvalidArgumentError(
            f"pool {pool.name!r} is memory of a GPU, where only an arena of a blocking client (`poolbridge.connect`) "
            "allocates, for cuda.core, CuPy and PyTorch: use one, or allocate"
        )
    size = check_bytes(nbytes, "nbytes", least=1)
    division = Division(session, pool.id, -(-size // ALIGN) * ALIGN, keeps=True)
    yield from _grow(division, 0, check_timeout(timeout))
    return division


def own(session: Session, pool: PoolInfo) -> Division:
    """Make the arena for arrays of a client, which leases its first block for the first array."""
    _check_cpu(pool.name, on_cpu=pool.kind in ON_CPU)
    return Division(session, pool.id, min(_STEP, -(-pool.max_bytes // (_SHARE * ALIGN)) * ALIGN), keeps=False)


def _check_cpu(pool: str, *, on_cpu: bool) -> None:
    if not on_cpu:
        raise InvalidArgumentError(
            f"pool {pool!r} is memory of a GPU, which NumPy cannot use: use allocate, or memory_resource, "
            "cupy_allocator or torch_pool of an arena"
        )


def part(division: Division, nbytes: int, timeout: float | None, stream: object = None) -> Flow[Part]:
    """Take a part of an arena, for a stream of a GPU or the CPU.

    If no block has room, ask which ranges are gone, let libraries give back what they keep, and wait for the streams
    that used free parts; then lease a further block.
    """
    size = max(-(-nbytes // ALIGN), 1) * ALIGN
    deadline = None if timeout is None else time.monotonic() + timeout
    division.take_in()
    found = division.take(size, stream)
    while found is None:
        yield from collect(division)
        division.empty_caches()
        if (freed := division.detach()) is not None:
            yield Do(freed.lease_state.memory.synchronize)
            freed.used_on(None)
            freed = None
        found = division.take(size, stream)
        left = _PAUSE if deadline is None else deadline - time.monotonic()
        try:
            found = found or (yield from _grow(division, size, min(max(left, 0.0), _PAUSE), stream))
        except (PoolLimitError, DeviceMemoryError):
            if left <= 0:
                raise
    return found


def _grow(division: Division, size: int, timeout: float | None, stream: object = None) -> Flow[Part | None]:
    """Lease a further block, of the arena's size if the pool has room for that."""
    session = division.session
    if FEATURE not in session.core.features:
        raise UnsupportedError("this service is too old for arenas: start a newer poolsvc")
    wanted = max(size, division.step)
    try:
        state = yield from _block(division, wanted, timeout if size in {0, wanted} else 0.0)
    except (PoolLimitError, DeviceMemoryError):
        if size in {0, wanted}:
            raise
        state = yield from _block(division, size, timeout)
    try:
        yield Do(partial(_fences.before_cpu, state))
        state.unordered = not state.memory.pool.on_cpu  # streams that nobody names may use the block until its end
        return division.add(state, size, stream)
    except BaseException:
        if all(block.state is not state for block in division.blocks):
            state.end()
        raise


def _block(division: Division, nbytes: int, timeout: float | None) -> Flow[LeaseState]:
    return allocate(division.session, _tensor.describe(nbytes, "uint8"), division.pool, timeout=timeout)


def collect(division: Division) -> Flow[None]:
    """Ask the service which ranges are gone, and let their arrays go when the work of the readers is done."""
    session = division.session
    for block, ids in division.ranges():
        gone: tuple[int, ...] = ()
        wait: tuple[Fence, ...] = ()
        try:
            if ids:
                reply = yield from ask(Returned(lease=block.state.grant.id, buffers=ids), ReturnedReply)
                gone, wait = reply.buffers, reply.wait
        except (LeaseReleasedError, BusyError):
            pass  # the block went back, or there are too many fences to wait for
        for timeline in session.timelines.unknown(session.core.epoch, wait):
            yield from know_timeline(session, timeline)
        division.returned(block, gone, wait)


def array(
    division: Division, shape: Any, dtype: Any, timeout: float | None, fill: Any = _NOTHING
) -> Flow[np.ndarray[Any, Any]]:
    """Make an array in an arena. Without `fill`, its content is undefined."""
    description, timeout = _tensor.describe(shape, dtype), check_timeout(timeout)
    if not description.element.in_numpy:
        raise InvalidArgumentError(f"NumPy has no {description.element.name}: use allocate, and a library that has it")
    for block in division.blocks[:1]:
        _check_cpu(block.state.pool.name, on_cpu=block.state.memory.pool.on_cpu)
    found = yield from part(division, description.nbytes, timeout)
    made = found.array(description)
    if fill is not _NOTHING:
        try:
            np.copyto(made, fill, casting="unsafe")
        except Exception as error:
            if from_signal(error):
                raise
            raise InvalidArgumentError(f"{shown(fill)} cannot fill {description.text}: {error}") from None
    return made


def share(session: Session, pool: int, given: Any, *, frame: bool) -> Flow[tuple[LeaseState, Description] | None]:
    """Find the lease that has `given`, as `sources.find` does. If that is an arena's, lease the range of the array.

    Until the range is gone, the arena keeps `given`. For a name, and not a frame, find only arrays of arenas. For a
    frame, a small one is not found: to copy it into a chunk takes less time than a request.
    """
    found = _place_of(session, pool, given) or _sources.find(session, pool, given)
    if found is None or found[0].division is None:
        return found if frame else None
    if frame and found[1].nbytes < _SMALL:
        return None
    (whole, place), division = found, cast("Division | None", found[0].division())
    block = next((one for one in division.blocks if one.state is whole), None) if division else None
    if division is None or block is None:
        return None
    tensor, state = structs.replace(place, offset=0).to_wire(), None
    if frame and session.producers:
        state = session.reuse_returned(whole.grant.pool, tensor, mapped_state, (whole.grant.block, place.offset))
        if block.came:  # before the range is leased again
            division.returned(block, (), ())
    if state is None:
        if division.is_due(place.nbytes):
            yield from collect(division)
        reply = yield Ask(AllocRange(lease=whole.grant.id, offset=place.offset, tensor=tensor), GrantReply)
        state = mapped_state(session, reply.grant) or (yield from map_state(session, reply.grant))
    if frame:
        state.allocated, state.part_of = True, ref(block)
    with division.lock:
        if not division.closed:
            block.ranges[state.grant.buffer] = given
    if isinstance(given, np.ndarray):
        state.written[id(given)] = ref(given)  # read-only when it is published
    elif not state.memory.pool.on_cpu and (stream := _sources.source_of(given).stream) is not None:
        _fences.before_use(state, stream)  # the array names it, not the user, who may use other streams, too
    else:
        state.unordered = not state.memory.pool.on_cpu
    return state, state.description


def _place_of(session: Session, pool: int, given: Any) -> tuple[LeaseState, Description] | None:
    """Do what `sources.find` does, in less time, for an array that an arena of the pool made, and not for its views."""
    part: object = given.base if type(given) is np.ndarray else None
    if type(part) is not Part or not given.flags.c_contiguous:
        return None
    whole = part.lease_state
    if whole.session is not session or whole.grant.pool != pool or whole.released or not whole.write:
        return None
    return whole, structs.replace(_tensor.describe(given.shape, given.dtype), offset=part.offset)


class _Source:
    """What allocators of libraries use of an arena. They may live longer than the arena."""

    def __init__(self, run: Run, division: Division) -> None:
        self._run = run
        self.division = division
        self.device = division.device

    def last(self, *, lasting: bool) -> None:
        """Say whether a library uses memory again without the arena, which then keeps what readers use."""
        self.division.lasting = lasting

    def part(self, nbytes: Any, stream: object) -> Part:
        """Take a part of the memory for a stream."""
        return self._run(part(self.division, check_bytes(nbytes, "nbytes"), 0.0, stream))


class BaseArena:
    """Memory of a pool that the program divides by itself. `Client.arena` makes an arena; programs do not call this.

    Arrays of the arena are NumPy arrays. `put` and `publish` share such an array, or a contiguous part of it, without a
    copy. From then on, the program must not write it. Its memory is used again when the array and its views are gone,
    and no lease, name or channel needs it any more. A program that gets one array can read the whole arena.

    If the arena is full, it asks the service which shared arrays are not needed any more, and then leases further
    blocks. Each of them goes back when it is empty, and all of them when the arena is closed, or it and its arrays are
    gone. Thread-safe.
    """

    has_allocators: ClassVar = False  # which use memory of a GPU

    def __init__(self, run: Any, division: Division, pool: str) -> None:
        self._run = run
        self._division = division
        self._pool_name = pool

    @property
    def pool(self) -> str:
        """Name of the arena's pool."""
        return self._pool_name

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks of the arena."""
        return sum(block.size for block in list(self._division.blocks))

    @property
    def used_nbytes(self) -> int:
        """Bytes of the arrays that are alive or shared, each rounded up to 512 bytes, and what libraries keep."""
        return sum(block.used for block in list(self._division.blocks))

    def close(self) -> None:
        """Make no more arrays. The memory goes back when the arrays are gone. Idempotent; no coroutine."""
        self._division.let_go(close=True)

    def __repr__(self) -> str:
        state = "closed" if self._division.closed else f"{self.used_nbytes} of {self.nbytes} bytes in use"
        return f"<poolbridge.{type(self).__name__} in pool {self.pool!r}, {state}>"

    def _repr_html_(self) -> str:
        return html_of([("pool", self.pool), ("bytes", f"{self.nbytes:,}"), ("in use", f"{self.used_nbytes:,}")])


class Arena(BaseArena):
    """An arena of a blocking `Client`; see `BaseArena`. The end of its ``with`` block closes the arena."""

    has_allocators = True
    _run: Run
    _cupy: _allocators.CupyPool | None = None
    _torch: _allocators.TorchPool | None = None

    def empty(
        self, shape: int | Iterable[int], dtype: Any = "float32", *, timeout: float | None = 0.0
    ) -> np.ndarray[Any, Any]:
        """Make an array whose content is undefined.

        Parameters
        ----------
        shape, dtype
            Shape and element type, see `Client.allocate`. Memory of kind ``host`` or ``pinned`` is needed.
        timeout
            Seconds to wait for free memory; 0: do not wait; None: no limit.

        Returns
        -------
        numpy.ndarray
            A C-contiguous array. Its address is a multiple of 512. The arena uses its memory again when the array is
            gone, so wait first for copies to a GPU that do not wait by themselves (``non_blocking=True`` in PyTorch).

        Raises
        ------
        PoolLimitError, DeviceMemoryError
            The arena is full, and the pool has no room for a further block.
        ClosedError
            The arena was closed.
        InvalidArgumentError
            The shape or dtype is not possible, or the pool is memory of a GPU.
        """
        return self._run(array(self._division, shape, dtype, timeout))

    def zeros(
        self, shape: int | Iterable[int], dtype: Any = "float32", *, timeout: float | None = 0.0
    ) -> np.ndarray[Any, Any]:
        """Make an array of zeros; see `empty`."""
        return self._run(array(self._division, shape, dtype, timeout, 0))

    def full(
        self, shape: int | Iterable[int], fill_value: Any, dtype: Any = "float32", *, timeout: float | None = 0.0
    ) -> np.ndarray[Any, Any]:
        """Make an array that is filled with a value; see `empty`. The value is cast as `numpy.full` does it."""
        return self._run(array(self._division, shape, dtype, timeout, fill_value))

    @property
    def memory_resource(self) -> Any:
        """A `MemoryResource` of cuda.core: ``device.memory_resource = arena.memory_resource``, or its ``allocate``.

        Raises
        ------
        UnavailableError
            cuda.core is not installed.
        InvalidArgumentError
            The pool is not memory of a GPU.
        """
        return _allocators.resource_of(self._source())

    def cupy_allocator(self, nbytes: int) -> Any:
        """Allocate memory for CuPy: ``cupy.cuda.set_allocator(arena.cupy_allocator)``.

        CuPy's own `MemoryPool` divides the memory, and gives it back when the arena is full or closed.

        Parameters
        ----------
        nbytes
            Number of bytes.

        Returns
        -------
        cupy.cuda.MemoryPointer
            The memory, for the current stream of CuPy.

        Raises
        ------
        cupy.cuda.memory.OutOfMemoryError
            The arena is full, and the pool has no room for a further block.
        ClosedError
            The arena was closed, or the client.
        InvalidArgumentError
            The pool is not memory of a GPU, or not of CuPy's current device.
        """
        pool = self._cupy
        if pool is None:
            pool = self._cupy = _allocators.CupyPool(self._source())
        return pool.malloc(nbytes)

    def torch_pool(self, nbytes: int | str) -> Any:
        """Make a pool of PyTorch: ``with torch.cuda.use_mem_pool(arena.torch_pool("1GiB")): …``.

        PyTorch divides the memory by itself. If it is used up, `torch.OutOfMemoryError` comes. A process has one such
        pool for each GPU, until the arena is closed.

        Parameters
        ----------
        nbytes
            Bytes of the memory: a number, or a size such as ``"1GiB"``.

        Returns
        -------
        torch.cuda.MemPool
            The pool. A second call returns the same one.

        Raises
        ------
        PoolLimitError, DeviceMemoryError
            The pool of the arena has no room for it.
        UnsupportedError
            PyTorch uses expandable segments, which ignore pools.
        UnavailableError
            PyTorch is not installed.
        InvalidArgumentError
            The arena is not memory of a GPU, `nbytes` is no size, or another arena has such a pool on this GPU.
        """
        if self._torch is None:
            self._torch = _allocators.TorchPool(self._source(), nbytes)
        return self._torch.pool

    def close(self) -> None:
        """Make no more arrays. The memory goes back when the arrays are gone. Idempotent.

        Raises
        ------
        LeaseInUseError
            Tensors of `torch_pool` are alive, or the program refers to this pool. The arena stays open.
        """
        if self._torch is not None:
            if not self._division.session.closed:
                self._run(collect(self._division))
            self._torch.close()
            self._torch = None
        self._cupy = None
        super().close()

    def _source(self) -> _Source:
        source = _Source(self._run, self._division)
        _allocators.check_on_gpu(source, self.pool)
        return source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class AsyncArena(BaseArena):
    """An arena of an `AsyncClient`; see `Arena`. The end of its ``async with`` block closes the arena."""

    _run: AsyncRun

    async def empty(
        self, shape: int | Iterable[int], dtype: Any = "float32", *, timeout: float | None = 0.0
    ) -> np.ndarray[Any, Any]:
        """Make an array whose content is undefined; see `Arena.empty`."""
        return await self._run(array(self._division, shape, dtype, timeout))

    async def zeros(
        self, shape: int | Iterable[int], dtype: Any = "float32", *, timeout: float | None = 0.0
    ) -> np.ndarray[Any, Any]:
        """Make an array of zeros; see `Arena.empty`."""
        return await self._run(array(self._division, shape, dtype, timeout, 0))

    async def full(
        self, shape: int | Iterable[int], fill_value: Any, dtype: Any = "float32", *, timeout: float | None = 0.0
    ) -> np.ndarray[Any, Any]:
        """Make an array that is filled with a value; see `Arena.full`."""
        return await self._run(array(self._division, shape, dtype, timeout, fill_value))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()
