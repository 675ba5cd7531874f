"""Imports memory pools of other processes.

There are two ways to import a pool. The first way is cuda.core's own import. It needs a private constructor of
cuda.core, which makes a descriptor from raw bytes. If cuda.core lacks this constructor, this module imports the pool
and its allocations by calls of the driver.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from typing import Any

from poolbridge._cuda import driver as _driver
from poolbridge._cuda.cuda import call, current, own_stream
from poolbridge._cuda.imports import grant_pool
from poolbridge.errors import (
    DriverError,
    InvalidArgumentError,
    PoolbridgeError,
)


class ImportedBlock(ABC):
    """An imported allocation of another process.

    Attributes
    ----------
    address
        Address of the allocation's first byte, on the device.
    route
        The package that imported the allocation: ``"cuda.core"`` or ``"driver"``.
    """

    address: int
    route: str

    @abstractmethod
    def close(self) -> None:
        """Free this process's import of the allocation. Before the call, the device must have done its work on it."""

    @property
    @abstractmethod
    def is_mapped(self) -> bool:
        """Whether the allocation is memory of another process that is mapped into this process."""


class ImportedPool(ABC):
    """An imported memory pool of another process."""

    ordinal: int
    route: str

    @property
    @abstractmethod
    def handle(self) -> int:
        """The driver's handle of the pool."""

    def grant(self, ordinal: int) -> None:
        """Give the GPU `ordinal`, in this process, access to the pool."""
        grant_pool(self.ordinal, self.handle, ordinal)

    @abstractmethod
    def import_block(self, blob: bytes, size: int) -> ImportedBlock:
        """Import one allocation of the pool by `blob`: 64 bytes that the driver made in the pool owner's process."""

    @abstractmethod
    def close(self) -> None:
        """Close the imported pool. The caller has closed all blocks of the pool before."""


class _CorePool(ImportedPool):
    """A pool that was imported through cuda.core."""

    route = "cuda.core"

    def __init__(self, core: Any, descriptors: Any, ordinal: int, fd: int) -> None:
        self.ordinal = ordinal
        self._descriptors = descriptors
        self._buffers = core.Buffer
        self._error = core._utils.cuda_utils.CUDAError  # noqa: SLF001 - it has no public name
        with current(ordinal):
            device = core.Device(ordinal)
            device.set_current()
            self._resource = core.DeviceMemoryResource.from_allocation_handle(device, fd)
            # No stream of the pool's own: the driver may wait for all streams before it makes one (see `own_stream`).
            self._stream = core.Stream.from_handle(own_stream(ordinal, alone=True))

    @property
    def handle(self) -> int:
        return int(self._resource.handle)

    def import_block(self, blob: bytes, size: int) -> ImportedBlock:
        with current(self.ordinal):
            descriptor = self._descriptors._init(blob, size)  # noqa: SLF001 - raw bytes have no public constructor
            try:
                buffer = self._buffers.from_ipc_descriptor(self._resource, descriptor, stream=self._stream)
            except (self._error, ValueError) as error:
                raise InvalidArgumentError(
                    f"the export is of no block of {size} bytes of this pool: {error}"
                ) from error
        return _CoreBlock(self.ordinal, buffer, self._stream)

    def close(self) -> None:
        with current(self.ordinal):
            self._resource.close()


class _CoreBlock(ImportedBlock):
    route = "cuda.core"

    def __init__(self, ordinal: int, buffer: Any, stream: Any) -> None:
        self.address = int(buffer.handle)
        self._ordinal = ordinal
        self._buffer = buffer
        self._stream = stream

    @property
    def is_mapped(self) -> bool:
        return bool(self._buffer.is_mapped)

    def close(self) -> None:
        with current(self._ordinal):
            self._buffer.close(self._stream)
            # Wait until the driver has freed this import. Then this client sends the message `dropped`, after which the
            # service may free the block.
            self._stream.sync()


class _DriverPool(ImportedPool):
    """A pool that was imported by calls of the driver, without cuda.core."""

    route = "driver"

    def __init__(self, ordinal: int, fd: int) -> None:
        self.ordinal = ordinal
        with current(ordinal):
            self._pool = call("cuMemPoolImportFromShareableHandle", fd, _driver.FD, 0)

    @property
    def handle(self) -> int:
        return int(self._pool)

    def import_block(self, blob: bytes, size: int) -> ImportedBlock:  # noqa: ARG002
        data = _driver.Handle.from_buffer_copy(blob)
        with current(self.ordinal):
            try:
                return _DriverBlock(self.ordinal, int(call("cuMemPoolImportPointer", self._pool, ctypes.byref(data))))
            except DriverError as error:
                raise InvalidArgumentError(f"the export is of no block of this pool: {error}") from error

    def close(self) -> None:
        with current(self.ordinal):
            call("cuMemPoolDestroy", self._pool)


class _DriverBlock(ImportedBlock):
    route = "driver"
    is_mapped = True

    def __init__(self, ordinal: int, address: int) -> None:
        self.address = address
        self._ordinal = ordinal

    def close(self) -> None:
        with current(self._ordinal):
            call("cuMemFree", self.address)


def _core_descriptors() -> tuple[Any, Any] | None:
    """Return cuda.core and its descriptor class; None if the class cannot make a descriptor from raw bytes."""
    try:
        import cuda.core
        from cuda.core._memory._ipc import IPCBufferDescriptor
    except ImportError:
        return None
    return (cuda.core, IPCBufferDescriptor) if hasattr(IPCBufferDescriptor, "_init") else None


def import_pool(ordinal: int, fd: int) -> ImportedPool:
    """Import a memory pool. This function does not close the descriptor `fd`; the caller may close it after the call.

    Raises
    ------
    DriverError, UnavailableError
        The driver refuses the import, or a package is missing.
    """
    _driver.start()
    core = _core_descriptors()
    if core is None:
        return _DriverPool(ordinal, fd)
    try:
        return _CorePool(*core, ordinal, fd)
    except PoolbridgeError:
        raise
    # CUDAError has no public name. If the driver does not support a call, cuda.core raises a plain RuntimeError.
    except (core[0]._utils.cuda_utils.CUDAError, RuntimeError) as error:  # noqa: SLF001
        raise DriverError(f"the pool cannot be imported: {error}") from error
