"""Memory of other processes that cuda.core has no public way to import: see `pools` for the rest.

Everything here goes through ``cuda.bindings.driver``. cuda.core cannot import a single ``cuMemCreate`` allocation or a
legacy handle, and does not let the GPU reach an imported pool of the host.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Final

import numpy as np

from poolbridge._cuda import cuda as _cuda
from poolbridge._sys.errors import (
    DriverError,
    InvalidArgumentError,
    OwnerDiedError,
    SecondContextError,
    UnavailableError,
)

HANDLE_BYTES: Final = 64


def _access(ordinal: int, *, write: bool) -> Any:
    driver = _cuda.bindings()
    flags = driver.CUmemAccess_flags
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = ordinal
    access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if write else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    return access


def _fd_type() -> Any:
    return _cuda.bindings().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


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
        with _cuda.current(ordinal):
            try:
                self._handle = _cuda.call("cuMemImportFromShareableHandle", fd, _fd_type())
            except DriverError as error:
                raise InvalidArgumentError(f"the descriptor is of no memory of a GPU: {error}") from error

    def address(self, *, write: bool) -> int:
        """Address of the mapping to read or to write; it is mapped when it is first asked for."""
        address = self._views.get(write)
        if address is not None:
            return address
        with self._lock, _cuda.current(self._ordinal):
            if write not in self._views:
                self._views[write] = self._map(write=write)
            return self._views[write]

    def _map(self, *, write: bool) -> int:
        address = int(_cuda.call("cuMemAddressReserve", self._size, 0, 0, 0))
        try:
            _cuda.call("cuMemMap", address, self._size, 0, self._handle, 0)
            try:
                access = [_access(ordinal, write=write) for ordinal in (self._ordinal, *self._others)]
                _cuda.call("cuMemSetAccess", address, self._size, access, len(access))
            except BaseException:
                _cuda.call("cuMemUnmap", address, self._size)
                raise
        except BaseException as error:
            _cuda.call("cuMemAddressFree", address, self._size)
            if isinstance(error, DriverError):
                raise InvalidArgumentError(f"{self._size} bytes cannot be mapped of this block: {error}") from error
            raise
        return address

    def grant(self, ordinal: int) -> None:
        """Let another GPU reach the mappings, each as it is."""
        with self._lock, _cuda.current(self._ordinal):
            for write, address in self._views.items():
                _cuda.call("cuMemSetAccess", address, self._size, [_access(ordinal, write=write)], 1)
            self._others = (*self._others, ordinal)

    def close(self) -> None:
        """Unmap and let go; takes up where it left off if it failed before."""
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
    """A memory pool of the host, imported; every GPU is let in.

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
        with _cuda.current(ordinal):
            try:
                self._pool = _cuda.call("cuMemPoolImportFromShareableHandle", fd, _fd_type(), 0)
            except DriverError as error:
                raise InvalidArgumentError(f"the descriptor is of no memory pool: {error}") from error
            try:
                self._refused = self._let_in()
                self.grant(ordinal)
            except BaseException:
                _cuda.call("cuMemPoolDestroy", self._pool)
                raise

    def _let_in(self) -> dict[int, DriverError]:
        """Let all GPUs in; give the errors of those that were not.

        Access is granted in each process by itself, and to a pool of the host not any more to a second GPU once a block
        of it is mapped.
        """
        refused: dict[int, DriverError] = {}
        for gpu in range(_cuda.call("cuDeviceGetCount")):
            try:
                _cuda.call("cuMemPoolSetAccess", self._pool, [_access(gpu, write=True)], 1)
            except DriverError as error:
                refused[gpu] = error
        return refused

    def grant(self, ordinal: int) -> None:
        """Raise if a GPU was not let in.

        Raises
        ------
        DriverError
            What the driver said.
        """
        if ordinal in self._refused:
            raise DriverError(str(self._refused[ordinal]))

    def import_block(self, blob: bytes) -> int:
        """Import one allocation; give its address, the same for CPU and GPU."""
        data = _cuda.bindings().CUmemPoolPtrExportData()
        ctypes.memmove(int(data.getPtr()), blob, HANDLE_BYTES)
        with _cuda.current(self.ordinal):
            try:
                return int(_cuda.call("cuMemPoolImportPointer", self._pool, data))
            except DriverError as error:
                raise InvalidArgumentError(f"the export is of no block of this pool: {error}") from error

    def release_block(self, address: int) -> None:
        """Give an import up; complete on return."""
        with _cuda.current(self.ordinal):
            if address not in self._freed:
                _cuda.call("cuMemFreeAsync", address, 0)
                self._freed.add(address)
            _cuda.call("cuStreamSynchronize", 0)
            self._freed.discard(address)

    def close(self) -> None:
        """Give the pool up, after its blocks."""
        with _cuda.current(self.ordinal):
            _cuda.call("cuMemPoolDestroy", self._pool)


def grant_pool(ordinal: int, pool: Any, other: int) -> None:
    """Let another GPU reach a memory pool, in this process."""
    with _cuda.current(ordinal):
        _cuda.call("cuMemPoolSetAccess", pool, [_access(other, write=True)], 1)


class OpenedBlock:
    """What a legacy handle opens. It knows in which context it was opened: whatever is done with it is done there.

    Parameters
    ----------
    ordinal
        The device.
    handle
        The driver's 64 bytes.
    own_context
        Open it in the calling thread's current context, if it has one, instead of the device's primary one.

    Attributes
    ----------
    address
        Where it begins.
    nbytes
        Its size.

    Raises
    ------
    OwnerDiedError
        The process that owns the memory is gone.
    SecondContextError
        The current context is not the primary one, and the driver does not open the handle in it.
    UnavailableError
        This is the process that owns the memory.
    InvalidArgumentError
        It is no handle, or the current context is of another device.
    """

    def __init__(self, ordinal: int, handle: bytes, *, own_context: bool = False) -> None:
        self.ordinal = ordinal
        self._own = _own_context(ordinal) if own_context else None
        self.address = _open_handle(ordinal, handle, self._own)
        try:
            with _cuda.current(ordinal, self._own):
                # The bindings give base and size.
                result, _, size = _cuda.bindings().cuMemGetAddressRange(self.address)
            if result != _cuda.bindings().CUresult.CUDA_SUCCESS:
                raise DriverError(f"cuMemGetAddressRange: {result.name}")
        except BaseException:
            self.close()
            raise
        self.nbytes = int(size)

    def synchronize(self) -> None:
        """Wait for all work of its context."""
        if not self._is_gone():
            _cuda.synchronize(self.ordinal, self._own)

    def copy_to_host(self, out: np.ndarray[Any, Any], address: int) -> None:
        """Copy from an address in it, after all work of its context; complete on return."""
        _cuda.copy_to_host(self.ordinal, out, address, self._own)

    def copy_from_host(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy to an address in it, after all work of its context; complete on return."""
        _cuda.copy_from_host(self.ordinal, address, data, self._own)

    def close(self) -> None:
        """Close it; the device must be done with it. Nothing is left to close where its own context was destroyed."""
        if not self._is_gone():
            with _cuda.current(self.ordinal, self._own):
                _cuda.call("cuIpcCloseMemHandle", self.address)

    def _is_gone(self) -> bool:
        """Whether the program has destroyed the context, and with it what was opened in it."""
        if self._own is None:
            return False
        driver = _cuda.bindings()
        (result,) = driver.cuCtxPushCurrent(self._own)
        if result in {driver.CUresult.CUDA_ERROR_INVALID_CONTEXT, driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED}:
            return True
        if result == driver.CUresult.CUDA_SUCCESS:
            _cuda.pop(self._own)
        return False


def _own_context(ordinal: int) -> Any:
    """Give the calling thread's current context, or None where that is the device's primary one or there is none."""
    current = _cuda.call("cuCtxGetCurrent")
    if not int(current):
        return None
    device = int(_cuda.call("cuCtxGetDevice"))
    if device != int(_cuda.call("cuDeviceGet", ordinal)):
        raise InvalidArgumentError(
            f"own_context=True opens a handle in the current context, which is of GPU {device}: the memory is on GPU "
            f"{ordinal}; make a context of that GPU current, or leave own_context out"
        )
    if _has_primary(ordinal):
        with _cuda.current(ordinal):
            if int(current) == int(_cuda.call("cuCtxGetCurrent")):
                return None
    return current


def _has_primary(ordinal: int) -> bool:
    """Whether the device's primary context is alive in this process; it is not made for the answer."""
    driver = _cuda.bindings()
    result, _, active = driver.cuDevicePrimaryCtxGetState(_cuda.call("cuDeviceGet", ordinal))
    return bool(result == driver.CUresult.CUDA_SUCCESS and active)


def _open_handle(ordinal: int, handle: bytes, own: Any) -> int:
    driver = _cuda.bindings()
    results = driver.CUresult
    boxed = driver.CUipcMemHandle()
    ctypes.memmove(int(boxed.getPtr()), handle, HANDLE_BYTES)
    lazy = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    with _cuda.current(ordinal, own):
        result, address = driver.cuIpcOpenMemHandle(boxed, lazy)
    if result == results.CUDA_ERROR_INVALID_HANDLE and own is not None and _opens_in_primary(ordinal, handle):
        raise SecondContextError(
            "the driver opens no legacy handle in a second context while memory of the same block is open in the "
            f"primary one of the device: close it there, or leave own_context out ({result.name})"
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
    return int(address)


def _opens_in_primary(ordinal: int, handle: bytes) -> bool:
    """Whether it is the context that the driver refuses: it has the same word for a dead owner."""
    if not _has_primary(ordinal):
        return False
    try:
        address = _open_handle(ordinal, handle, None)
    except OwnerDiedError:
        return False
    with _cuda.current(ordinal):
        _cuda.call("cuIpcCloseMemHandle", address)
    return True
