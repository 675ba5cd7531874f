"""Memory of other processes that cuda.core has no public way to import: see `_cuda` for the rest.

Everything here goes through ``cuda.bindings.driver``. cuda.core cannot import a single ``cuMemCreate`` allocation or a
legacy handle, and does not let the GPU reach an imported pool of the host.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Final

from poolbridge import _cuda
from poolbridge._errors import (
    DriverError,
    InvalidArgumentError,
    OwnerDiedError,
    SecondContextError,
    UnavailableError,
)

HANDLE_BYTES: Final = 64


def _access(ordinal: int, *, write: bool) -> Any:
    driver = _cuda._driver()  # noqa: SLF001 - the same adapter, in two files
    flags = driver.CUmemAccess_flags
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = ordinal
    access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if write else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    return access


def _fd_type() -> Any:
    return _cuda._driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR  # noqa: SLF001


def _call(name: str, *arguments: Any) -> Any:
    return _cuda._call(name, *arguments)  # noqa: SLF001


def _current(ordinal: int) -> Any:
    return _cuda._current(ordinal)  # noqa: SLF001


def is_primary(ordinal: int) -> bool:
    """Whether the calling thread's context is the device's primary one, or there is none."""
    current = int(_call("cuCtxGetCurrent"))
    with _current(ordinal):
        return current in {0, int(_call("cuCtxGetCurrent"))}


class VirtualBlock:
    """One ``cuMemCreate`` allocation: one handle, mapped at one address to read and at another to write, on demand.

    Parameters
    ----------
    ordinal
        The device.
    fd
        Its descriptor; stays the caller's.
    size
        Its size in bytes, which the driver does not tell.
    others
        More GPUs that are to reach it.
    """

    route = "cuda.bindings"

    def __init__(self, ordinal: int, fd: int, size: int, others: tuple[int, ...] = ()) -> None:
        self._ordinal = ordinal
        self._others = others
        self._size = size
        self._views: dict[bool, int] = {}
        self._ranges: list[int] = []  # unmapped, and still reserved
        self._lock = threading.Lock()
        with _current(ordinal):
            try:
                self._handle = _call("cuMemImportFromShareableHandle", fd, _fd_type())
            except DriverError as error:
                raise InvalidArgumentError(f"the descriptor is of no memory of a GPU: {error}") from error

    def address(self, *, write: bool) -> int:
        """Address of the mapping to read or to write; it is mapped when it is first asked for."""
        address = self._views.get(write)
        if address is not None:
            return address
        with self._lock, _current(self._ordinal):
            if write not in self._views:
                self._views[write] = self._map(write=write)
            return self._views[write]

    def _map(self, *, write: bool) -> int:
        address = int(_call("cuMemAddressReserve", self._size, 0, 0, 0))
        try:
            _call("cuMemMap", address, self._size, 0, self._handle, 0)
            try:
                access = [_access(ordinal, write=write) for ordinal in (self._ordinal, *self._others)]
                _call("cuMemSetAccess", address, self._size, access, len(access))
            except BaseException:
                _call("cuMemUnmap", address, self._size)
                raise
        except BaseException as error:
            _call("cuMemAddressFree", address, self._size)
            if isinstance(error, DriverError):
                raise InvalidArgumentError(f"{self._size} bytes cannot be mapped of this block: {error}") from error
            raise
        return address

    def grant(self, ordinal: int) -> None:
        """Let another GPU reach the mappings, each as it is."""
        with self._lock, _current(self._ordinal):
            for write, address in self._views.items():
                _call("cuMemSetAccess", address, self._size, [_access(ordinal, write=write)], 1)
            self._others = (*self._others, ordinal)

    def close(self) -> None:
        """Unmap and let go; takes up where it left off if it failed before."""
        with self._lock, _current(self._ordinal):
            for write, address in list(self._views.items()):
                _call("cuMemUnmap", address, self._size)
                del self._views[write]
                self._ranges.append(address)
            while self._ranges:
                _call("cuMemAddressFree", self._ranges[-1], self._size)
                self._ranges.pop()
            if self._handle is not None:
                _call("cuMemRelease", self._handle)
                self._handle = None


class PinnedPool:
    """A memory pool of the host, imported; the GPU is let in.

    Parameters
    ----------
    ordinal
        The GPU that is to reach it.
    fd
        Its descriptor; stays the caller's.
    """

    route = "cuda.bindings"

    def __init__(self, ordinal: int, fd: int) -> None:
        self.ordinal = ordinal
        self._freed: set[int] = set()  # what the driver unmaps, if not yet for good
        with _current(ordinal):
            try:
                self._pool = _call("cuMemPoolImportFromShareableHandle", fd, _fd_type(), 0)
            except DriverError as error:
                raise InvalidArgumentError(f"the descriptor is of no memory pool: {error}") from error
            try:
                # Access is granted in each process by itself, and a pool of the host has none at first.
                _call("cuMemPoolSetAccess", self._pool, [_access(ordinal, write=True)], 1)
            except BaseException:
                _call("cuMemPoolDestroy", self._pool)
                raise

    def grant(self, ordinal: int) -> None:
        """Let another GPU in."""
        grant_pool(self.ordinal, self._pool, ordinal)

    def import_block(self, blob: bytes) -> int:
        """Import one allocation; give its address, the same for CPU and GPU."""
        data = _cuda._driver().CUmemPoolPtrExportData()  # noqa: SLF001
        ctypes.memmove(int(data.getPtr()), blob, HANDLE_BYTES)
        with _current(self.ordinal):
            try:
                return int(_call("cuMemPoolImportPointer", self._pool, data))
            except DriverError as error:
                raise InvalidArgumentError(f"the export is of no block of this pool: {error}") from error

    def release_block(self, address: int) -> None:
        """Give an import up; complete on return."""
        with _current(self.ordinal):
            if address not in self._freed:
                _call("cuMemFreeAsync", address, 0)
                self._freed.add(address)
            _call("cuStreamSynchronize", 0)
            self._freed.discard(address)

    def close(self) -> None:
        """Give the pool up, after its blocks."""
        with _current(self.ordinal):
            _call("cuMemPoolDestroy", self._pool)


def grant_pool(ordinal: int, pool: Any, other: int) -> None:
    """Let another GPU reach a memory pool, in this process."""
    with _current(ordinal):
        _call("cuMemPoolSetAccess", pool, [_access(other, write=True)], 1)


def enable_peer(ordinal: int, owner: int) -> None:
    """Let work on a GPU reach all plain memory of another one, in this process; again is no error."""
    with _current(owner):
        theirs = _call("cuCtxGetCurrent")
    driver = _cuda._driver()  # noqa: SLF001
    results = driver.CUresult
    with _current(ordinal):
        (result,) = driver.cuCtxEnablePeerAccess(theirs, 0)
    if result not in {results.CUDA_SUCCESS, results.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED}:
        raise DriverError(f"cuCtxEnablePeerAccess: {result.name}")


def open_handle(ordinal: int, handle: bytes, *, own_context: bool = False) -> tuple[int, int]:
    """Open a legacy handle; give the address of the block's beginning, and its size.

    Parameters
    ----------
    ordinal
        The device.
    handle
        The driver's 64 bytes.
    own_context
        Open it in the calling thread's current context instead of the device's primary one.

    Raises
    ------
    OwnerDiedError
        The process that owns the memory is gone.
    SecondContextError
        The current context is not the primary one.
    UnavailableError
        This is the process that owns the memory.
    InvalidArgumentError
        It is no handle.
    """
    driver = _cuda._driver()  # noqa: SLF001
    results = driver.CUresult
    boxed = driver.CUipcMemHandle()
    ctypes.memmove(int(boxed.getPtr()), handle, HANDLE_BYTES)
    lazy = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    primary = not own_context or is_primary(ordinal)
    if own_context:
        result, address = driver.cuIpcOpenMemHandle(boxed, lazy)
    else:
        with _current(ordinal):
            result, address = driver.cuIpcOpenMemHandle(boxed, lazy)
    if result == results.CUDA_ERROR_INVALID_HANDLE and not primary:
        raise SecondContextError(
            "a legacy handle opens only in the primary context of its device while that one is alive, and another "
            f"context is current ({result.name})"
        )
    if result == results.CUDA_ERROR_INVALID_HANDLE:
        raise OwnerDiedError(
            f"the process that owns the memory is gone: its legacy handle is good only while it lives ({result.name})"
        )
    if result == results.CUDA_ERROR_INVALID_CONTEXT:
        raise UnavailableError(
            f"a legacy handle cannot be opened in the process that owns the memory: use its address ({result.name})"
        )
    if result != results.CUDA_SUCCESS:
        raise InvalidArgumentError(f"these bytes are no legacy handle (cuIpcOpenMemHandle: {result.name})")
    try:
        with _current(ordinal):
            result, _, size = driver.cuMemGetAddressRange(address)
        if result != results.CUDA_SUCCESS:
            raise DriverError(f"cuMemGetAddressRange: {result.name}")
    except BaseException:
        close_handle(ordinal, int(address))
        raise
    return int(address), int(size)


def close_handle(ordinal: int, address: int) -> None:
    """Close what `open_handle` opened; the device must be done with it."""
    with _current(ordinal):
        _call("cuIpcCloseMemHandle", address)
