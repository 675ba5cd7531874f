"""Imports the kinds of memory that cuda.core cannot import by public functions. `pools` imports CUDA device pools.

cuda.core can import neither a single ``cuMemCreate`` allocation nor a
legacy handle, and it cannot give a GPU access to an imported pool of host memory.
"""

from __future__ import annotations

import threading
from ctypes import byref, c_int
from typing import Any

import numpy as np

from poolbridge._cuda import cuda as _cuda, driver as _driver
from poolbridge._cuda.driver import Result
from poolbridge.errors import (
    DriverError,
    InvalidArgumentError,
    OwnerDiedError,
    SecondContextError,
    UnavailableError,
)

_TRIES = 1 << 14


def _access(ordinal: int, *, write: bool) -> _driver.Access:
    return _driver.Access(_driver.ON_DEVICE, ordinal, _driver.READ_WRITE if write else _driver.READ)


class VirtualBlock:
    """An imported ``cuMemCreate`` allocation. `address` maps it at most once for reading and once for writing.

    Parameters
    ----------
    ordinal
        The device.
    fd
        The allocation's descriptor. The caller keeps and closes the descriptor.
    size
        Number of bytes of the allocation. The caller must pass this number, because the driver does not report it.
    others
        Ordinals of other GPUs that get access to the allocation.
    """

    route = "driver"

    def __init__(self, ordinal: int, fd: int, size: int, others: tuple[int, ...] = ()) -> None:
        self._ordinal = ordinal
        self._others = others
        self._size = size
        self._views: dict[bool, int] = {}
        self._ranges: list[int] = []  # addresses that are unmapped but still reserved
        self._lock = threading.Lock()
        with _cuda.current(ordinal):
            try:
                self._handle = _cuda.call("cuMemImportFromShareableHandle", fd, _driver.FD)
            except DriverError as error:
                raise InvalidArgumentError(f"the descriptor is of no memory of a GPU: {error}") from error

    def address(self, *, write: bool) -> int:
        """Return the address of the mapping for reading or for writing. If this mapping does not exist, make it."""
        address = self._views.get(write)
        if address is not None:
            return address
        with self._lock, _cuda.current(self._ordinal):
            if write not in self._views:
                self._views[write] = self._map(write=write)
            return self._views[write]

    def _map(self, *, write: bool) -> int:
        """Map the allocation at a new address, and return the address.

        After an imported host pool has been destroyed, the driver reserves its addresses again but grants no access to
        memory there (docs/measured.md). This method keeps such ranges, so that the driver reserves others, until one
        works.
        """
        refused: list[int] = []
        try:
            while True:
                address = int(_cuda.call("cuMemAddressReserve", self._size, 0, 0, 0))
                try:
                    self._map_at(address, write=write)
                except BaseException as error:
                    refused.append(address)
                    if isinstance(error, _cuda.AlreadyMappedError) and len(refused) < _TRIES:
                        continue
                    if isinstance(error, DriverError):
                        what = f"{self._size} bytes of this block cannot be mapped"
                        raise InvalidArgumentError(f"{what}: {error}") from error
                    raise
                return address
        finally:
            for address in refused:
                _cuda.call("cuMemAddressFree", address, self._size)

    def _map_at(self, address: int, *, write: bool) -> None:
        _cuda.call("cuMemMap", address, self._size, 0, self._handle, 0)
        try:
            access = [_access(ordinal, write=write) for ordinal in (self._ordinal, *self._others)]
            _cuda.call("cuMemSetAccess", address, self._size, (_driver.Access * len(access))(*access), len(access))
        except BaseException:
            _cuda.call("cuMemUnmap", address, self._size)
            raise

    def grant(self, ordinal: int) -> None:
        """Give the GPU `ordinal` access to all present and later mappings.

        In the mapping for reading, the GPU can only read. In the mapping for writing, the GPU can also write.
        """
        with self._lock, _cuda.current(self._ordinal):
            for write, address in self._views.items():
                _cuda.call("cuMemSetAccess", address, self._size, byref(_access(ordinal, write=write)), 1)
            self._others = (*self._others, ordinal)

    def close(self) -> None:
        """Unmap and release the allocation. If a driver call fails, call `close` again to do the remaining steps."""
        with self._lock, _cuda.current(self._ordinal):
            for write, address in list(self._views.items()):
                _cuda.call("cuMemUnmap", address, self._size)
                del self._views[write]
                self._ranges.append(address)
            while self._ranges:
                _cuda.call("cuMemAddressFree", self._ranges[-1], self._size)
                self._ranges.pop()
            if self._handle is not None:
                _cuda.call("cuMemRelease", self._handle)
                self._handle = None


class PinnedPool:
    """An imported pool of host memory. Every GPU that the process sees gets access, if the driver allows it.

    Parameters
    ----------
    ordinal
        The GPU that must get access; if it gets no access, the constructor raises an error.
    fd
        The pool's descriptor. The caller keeps and closes the descriptor.
    """

    route = "driver"

    def __init__(self, ordinal: int, fd: int) -> None:
        self.ordinal = ordinal
        self._freed: set[int] = set()  # addresses of imports whose free is queued and may not be done yet
        with _cuda.current(ordinal):
            try:
                self._pool = _cuda.call("cuMemPoolImportFromShareableHandle", fd, _driver.FD, 0)
            except DriverError as error:
                raise InvalidArgumentError(f"the descriptor is of no memory pool: {error}") from error
            try:
                self._refused = self._let_in()
                self.grant(ordinal)
            except BaseException:
                _cuda.call("cuMemPoolDestroy", self._pool)
                raise

    def _let_in(self) -> dict[int, DriverError]:
        """Give all GPUs access; for each GPU that the driver refused, return the driver's error, by the GPU's ordinal.

        Each process that imports the pool must give its own GPUs access. After the process has mapped a block of the
        pool, the driver refuses to give more GPUs access to the pool. So this method gives all GPUs access before the
        process maps the first block.
        """
        refused: dict[int, DriverError] = {}
        for gpu in range(_cuda.call("cuDeviceGetCount")):
            try:
                _cuda.call("cuMemPoolSetAccess", self._pool, byref(_access(gpu, write=True)), 1)
            except DriverError as error:
                refused[gpu] = error.with_traceback(None)
        return refused

    def grant(self, ordinal: int) -> None:
        """Raise an error if the GPU `ordinal` did not get access when this process imported the pool.

        Raises
        ------
        DriverError
            The error with which the driver refused the access.
        """
        if ordinal in self._refused:
            raise DriverError(str(self._refused[ordinal]))

    def import_block(self, blob: bytes) -> int:
        """Import the allocation that `blob` describes. Return its address, which is the same for the CPU and the GPUs.

        `blob` is 64 bytes that the driver made in the process that owns the allocation.
        """
        data = _driver.Handle.from_buffer_copy(blob)
        with _cuda.current(self.ordinal):
            try:
                return int(_cuda.call("cuMemPoolImportPointer", self._pool, byref(data)))
            except DriverError as error:
                raise InvalidArgumentError(f"the export is of no block of this pool: {error}") from error

    def release_block(self, address: int) -> None:
        """Free the imported allocation at `address`, and return when the driver has freed it."""
        with _cuda.current(self.ordinal):
            # The driver forbids calls on the legacy default stream while a blocking stream is captured. So this method
            # uses poolbridge's own stream.
            stream = _cuda.own_stream(self.ordinal)
            if address not in self._freed:
                _cuda.call("cuMemFreeAsync", address, stream)
                self._freed.add(address)
            _cuda.call("cuStreamSynchronize", stream)
            self._freed.discard(address)

    def close(self) -> None:
        """Close the imported pool. Before this call, the caller must release all blocks of the pool."""
        with _cuda.current(self.ordinal):
            _cuda.call("cuMemPoolDestroy", self._pool)


def grant_pool(ordinal: int, pool: int, other: int) -> None:
    """Give the GPU `other`, in this process, access to a memory pool of the GPU `ordinal`."""
    with _cuda.current(ordinal):
        _cuda.call("cuMemPoolSetAccess", pool, byref(_access(other, write=True)), 1)


class OpenedBlock:
    """An allocation that this process has opened by a legacy handle in one context. All methods work in this context.

    Parameters
    ----------
    ordinal
        The device.
    handle
        The legacy handle: 64 bytes that the driver made.
    own_context
        True: open the handle in the calling thread's current context, if the thread has one. False: open the handle in
        the device's primary context.

    Attributes
    ----------
    address
        Address of the allocation's first byte.
    nbytes
        Bytes of the allocation.

    Raises
    ------
    OwnerDiedError
        The process that owns the memory is gone.
    SecondContextError
        The current context is not the primary context, and the driver does not open the handle in the current context,
        because memory of the same allocation is open in the primary context.
    UnavailableError
        This process owns the memory.
    InvalidArgumentError
        `handle` is no legacy handle. Or `own_context` is True and the current context belongs to another device.
    """

    def __init__(self, ordinal: int, handle: bytes, *, own_context: bool = False) -> None:
        self.ordinal = ordinal
        self._own = _own_context(ordinal) if own_context else None
        self.address = _open_handle(ordinal, handle, self._own)
        try:
            with _cuda.current(ordinal, self._own):
                _, self.nbytes = _cuda.call("cuMemGetAddressRange", self.address)
        except BaseException:
            self.close()
            raise

    def synchronize(self) -> None:
        """Wait until the device has done all work of the context."""
        if not self._is_gone():
            _cuda.synchronize(self.ordinal, self._own)

    def copy_to_host(self, out: np.ndarray[Any, Any], address: int) -> None:
        """Wait until the context's work is done, and copy from `address` to `out`. Return after the copy."""
        _cuda.copy_to_host(self.ordinal, out, address, self._own)

    def copy_from_host(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Wait until the context's work is done, and copy `data` to `address`. Return after the copy."""
        _cuda.copy_from_host(self.ordinal, address, data, self._own)

    def close(self) -> None:
        """Close the allocation, after the device has done its work on it. Do nothing if the context was destroyed."""
        if not self._is_gone():
            with _cuda.current(self.ordinal, self._own):
                _cuda.call("cuIpcCloseMemHandle", self.address)

    def _is_gone(self) -> bool:
        """Whether the program has destroyed the context. The driver has then closed the allocation."""
        if self._own is None:
            return False
        result, _ = _driver.attempt("cuCtxPushCurrent", self._own)
        if result in {Result.INVALID_CONTEXT, Result.CONTEXT_IS_DESTROYED}:
            return True
        if not result:
            _cuda.pop(self._own)
        return False


def _own_context(ordinal: int) -> Any:
    """Return the calling thread's current context; None: there is none, or it is the device's primary context."""
    current = _cuda.call("cuCtxGetCurrent")
    if not int(current):
        return None
    device = int(_cuda.call("cuCtxGetDevice"))
    if device != int(_cuda.call("cuDeviceGet", ordinal)):
        raise InvalidArgumentError(
            f"own_context=True opens a handle in the current context, which is of GPU {device}: the memory is on GPU "
            f"{ordinal}; make a context of that GPU current, or leave own_context out"
        )
    if has_primary(ordinal):
        with _cuda.current(ordinal):
            if int(current) == int(_cuda.call("cuCtxGetCurrent")):
                return None
    return current


def has_primary(ordinal: int) -> bool:
    """Whether the device's primary context exists in this process. This function does not create the context."""
    flags, active = c_int(), c_int()
    device = _cuda.call("cuDeviceGet", ordinal)
    result, _ = _driver.attempt("cuDevicePrimaryCtxGetState", device, byref(flags), byref(active))
    return not result and bool(active.value)


def _open_handle(ordinal: int, handle: bytes, own: Any) -> int:
    boxed = _driver.Handle.from_buffer_copy(handle)
    with _cuda.current(ordinal, own):
        result, address = _driver.attempt("cuIpcOpenMemHandle", boxed, _driver.LAZY_PEER_ACCESS)
    if not result:
        return int(address)
    name = _driver.name_of(result)
    if result == Result.INVALID_HANDLE and own is not None and _opens_in_primary(ordinal, handle):
        raise SecondContextError(
            "the driver does not open a legacy handle in a second context while memory of the same block is open in "
            f"the device's primary context: close it there, or leave own_context out ({name})"
        )
    if result == Result.INVALID_HANDLE:
        raise OwnerDiedError(
            f"the process that owns the memory is gone: its legacy handle is valid only while it lives ({name})"
        )
    if result == Result.INVALID_CONTEXT:
        raise UnavailableError(
            f"a legacy handle cannot be opened in the process that owns the memory: use its address ({name})"
        )
    raise InvalidArgumentError(f"these bytes are no legacy handle (cuIpcOpenMemHandle: {name})")


def _opens_in_primary(ordinal: int, handle: bytes) -> bool:
    """Whether the driver opens the handle in the primary context. If so, the process that owns the memory is alive.

    If the driver does not open the handle in another context, the driver's error does not say why. The error is the
    same if the process that owns the memory is dead.
    """
    if not has_primary(ordinal):
        return False
    try:
        address = _open_handle(ordinal, handle, None)
    except OwnerDiedError:
        return False
    with _cuda.current(ordinal):
        _cuda.call("cuIpcCloseMemHandle", address)
    return True
