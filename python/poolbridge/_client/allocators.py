"""Lets array libraries allocate from the memory of an arena."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from poolbridge._client.makers import not_installed
from poolbridge._memory import dlpack as _dlpack
from poolbridge._order.streams import PER_THREAD, stream_key
from poolbridge._sys.native import NATIVE
from poolbridge.errors import (
    DeviceMemoryError,
    InvalidArgumentError,
    LeaseInUseError,
    PoolLimitError,
    UnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from poolbridge._session.division import Division, Part


class Source(Protocol):
    """The part of an arena that this module uses; see `poolbridge._client.arena.Arena`."""

    device: tuple[int, int]
    division: Division

    def last(self, *, lasting: bool) -> None:
        """Say whether the library uses memory again without the arena, which then keeps what readers use."""

    def part(self, nbytes: Any, stream: object) -> Part:
        """Take a part of the memory for a stream."""


def _key(device: tuple[int, int], stream: Any) -> object:
    """Return what tells a stream from others. One that cannot be named, such as that of a graph, differs from all."""
    try:
        number = stream.__cuda_stream__()[1]
    except (AttributeError, TypeError):
        number = 0
    return number if number > PER_THREAD else stream_key(device, stream) or object()


def check_on_gpu(source: Source, pool: str) -> None:
    """Raise an error if the memory is not memory of a GPU."""
    if source.device[0] != _dlpack.CUDA:
        raise InvalidArgumentError(
            f"pool {pool!r} is memory of the CPU, and this library needs that of a GPU: use a pool of kind device, vmm "
            "or legacy"
        )


def resource_of(source: Source) -> Any:
    """Make a `MemoryResource` of cuda.core."""
    return _resource_type()(source)


@cache
def _resource_type() -> Any:
    try:
        from cuda.core import Buffer, MemoryResource
    except ModuleNotFoundError as error:
        raise not_installed("cuda-core") from error

    class ArenaMemoryResource(MemoryResource):  # type: ignore[misc] # of type Any where cuda.core is missing
        """Allocates `Buffer` objects of cuda.core in an arena."""

        def __init__(self, source: Source) -> None:
            self._source = source
            self._used: dict[int, tuple[Part, object]] = {}  # and the key of its stream, by the address
            self._free: dict[tuple[int, object], list[tuple[int, Part]]] = {}  # by size and key
            source.division.caches.add(self)

        def allocate(self, size: int, *, stream: Any) -> Any:
            """Allocate memory for a stream."""
            source = self._source
            key = _key(source.device, stream)
            try:
                address, part = self._free[size, key].pop()
            except (KeyError, IndexError):
                part = source.part(size, key)
                address = part.address
            source.division.check_open()  # after `pop`: a closed arena lets go what readers may still use
            self._used[address] = part, key
            return Buffer.from_handle(address, size, mr=self, stream=stream)

        def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
            """Free memory, after the work of a stream."""
            address = int(ptr)
            part, before = self._used.pop(address)
            key = _key(self._source.device, stream)
            if key != before:
                part.used_on(key)
            try:
                self._free[size, key].append((address, part))
            except KeyError:
                self._free.setdefault((size, key), []).append((address, part))
            if self._source.division.closed:
                self.empty()

        def empty(self) -> None:
            """Give the free memory back to the arena."""
            self._free.clear()

        @property
        def is_device_accessible(self) -> bool:
            return True

        @property
        def is_host_accessible(self) -> bool:
            return False

        @property
        def is_managed(self) -> bool:
            return False

        @property
        def device_id(self) -> int:
            return self._source.device[1]

    return ArenaMemoryResource


class CupyPool:
    """A `MemoryPool` of CuPy that divides memory of an arena."""

    def __init__(self, source: Source) -> None:
        try:
            import cupy
        except ModuleNotFoundError as error:
            raise not_installed("cupy") from error

        def more(nbytes: int) -> Any:
            current, ordinal = cupy.cuda.runtime.getDevice(), source.device[1]
            if current != ordinal:
                raise InvalidArgumentError(
                    f"the arena is memory of GPU {ordinal}, and CuPy's current device is {current}"
                )
            try:
                part = source.part(nbytes, _key(source.device, cupy.cuda.get_current_stream()))
            except (PoolLimitError, DeviceMemoryError) as error:
                raise cupy.cuda.memory.OutOfMemoryError(nbytes, 0) from error
            return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(part.address, nbytes, part, ordinal), 0)

        self._pool = cupy.cuda.MemoryPool(more)
        self._check_open = source.division.check_open
        source.division.caches.add(self)

    def malloc(self, nbytes: int) -> Any:
        """Allocate memory for CuPy's current stream."""
        found = self._pool.malloc(nbytes)
        self._check_open()  # after `malloc`: a closed arena lets go what readers may still use
        return found

    def empty(self) -> None:
        """Give the free memory back to the arena."""
        self._pool.free_all_blocks()


# PyTorch: one pool for each GPU, by the GPU's number. It lives until its arena is closed, also if nobody refers to it:
# PyTorch frees tensors that outlive their MemPool wrongly (https://github.com/pytorch/pytorch/issues/146431).
_POOLS: Final[dict[int, TorchPool]] = {}


class TorchPool:
    """A part of an arena from which PyTorch allocates, and its `MemPool`."""

    def __init__(self, source: Source, nbytes: Any) -> None:
        try:
            import torch
        except ModuleNotFoundError as error:
            raise not_installed("torch") from error

        if NATIVE is None:
            raise UnavailableError("poolbridge was built without its native module, which has this allocator")
        settings = getattr(torch._C, "_accelerator_getAllocatorSettings", str)()  # noqa: SLF001 - there is no other way
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            settings += "," + os.environ.get(name, "")
        if "expandable_segments:true" in settings.lower().replace(" ", ""):
            raise UnsupportedError(
                "PyTorch's expandable segments ignore the allocator of a MemPool "
                "(https://github.com/pytorch/pytorch/issues/147851): take expandable_segments:True out of "
                "PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF"
            )
        self._source = source  # keeps the arena, which shares tensors without a copy
        self._ordinal = source.device[1]
        self._part = source.part(nbytes, object())
        region = _region()
        synchronize = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuStreamSynchronize, ctypes.c_void_p)
        if region.poolbridge_torch_begin(self._ordinal, self._part.address, self._part.size, synchronize):
            raise InvalidArgumentError(
                f"PyTorch has memory of an arena on GPU {self._ordinal} already: use that pool, or close its arena"
            )
        names = "poolbridge_torch_alloc", "poolbridge_torch_free"
        try:
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(NATIVE.__file__, *names)
            self.pool: Any = torch.cuda.MemPool(self._allocator.allocator())
        except BaseException:
            region.poolbridge_torch_end(self._ordinal)
            raise
        source.last(lasting=True)
        _POOLS[self._ordinal] = self

    def close(self) -> None:
        """Take the memory back.

        Raises
        ------
        LeaseInUseError
            Tensors of the pool are alive, or the program refers to the `MemPool`.
        """
        pool = self.pool
        if pool is not None and any(segment["active_size"] for segment in pool.snapshot()):
            raise LeaseInUseError(
                "tensors in memory of the arena are alive or have readers: `del` them, then close the arena. PyTorch "
                "would free them wrongly without their MemPool (https://github.com/pytorch/pytorch/issues/146431)"
            )
        self.pool = pool = None
        gc.collect()
        sys.modules["torch"].cuda.empty_cache()
        if not _region().poolbridge_torch_end(self._ordinal):
            raise LeaseInUseError("the program refers to the MemPool of the arena: `del` it, then close the arena")
        self._source.last(lasting=False)
        del _POOLS[self._ordinal], self._part


@cache
def _region() -> Any:
    library = ctypes.CDLL(NATIVE.__file__)
    unsigned, number, pointer = ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p
    library.poolbridge_torch_begin.argtypes = number, unsigned, unsigned, pointer
    library.poolbridge_torch_end.argtypes = (number,)
    library.poolbridge_torch_end.restype = ctypes.c_bool
    library.poolbridge_torch_alloc.argtypes = ctypes.c_size_t, number, pointer
    library.poolbridge_torch_alloc.restype = pointer
    library.poolbridge_torch_free.argtypes = pointer, ctypes.c_size_t, number, pointer
    library.poolbridge_torch_free.restype = None
    return library
