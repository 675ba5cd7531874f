"""The way to ``cuda.core`` and ``cuda.bindings``, which nothing loads before device memory is used.

Two routes lead to the same memory. The first is cuda.core's own import, which needs a private constructor to make its
descriptor from raw bytes. Where that is missing, ``cuda.bindings.driver`` imports pool and pointer directly. Every call
leaves the caller's current context as it was.
"""

from __future__ import annotations

import ctypes
import operator
import os
import sys
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import numpy as np

from poolbridge._sys.errors import (
    DeviceMemoryError,
    DeviceNotVisibleError,
    DriverError,
    InvalidArgumentError,
    PoolbridgeError,
    UnavailableError,
)

BLOB_BYTES: Final = 64
_INSTALL: Final = "pip install '/path/to/poolbridge[cuda]', where the path is that of a checkout"

_contexts_lock = threading.Lock()
_contexts: dict[int, Any] = {}


# The driver


@cache
def _driver() -> Any:
    """Load and initialise the driver's bindings.

    Raises
    ------
    UnavailableError
        What is missing, and what to install.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise UnavailableError(f"device memory needs the package cuda-bindings ({error}): {_INSTALL}") from error
    try:
        (result,) = driver.cuInit(0)
    except Exception as error:  # the class differs between versions of the bindings
        raise UnavailableError(f"device memory needs an NVIDIA driver (libcuda.so.1): {error}") from error
    if result == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        raise UnavailableError("device memory needs an NVIDIA GPU: the driver sees none")
    if result != driver.CUresult.CUDA_SUCCESS:
        raise UnavailableError(f"the NVIDIA driver does not start: {result.name}")
    return driver


def _call(name: str, *arguments: Any) -> Any:
    """Call the driver; give what it returns besides the result."""
    driver = _driver()
    result, *values = getattr(driver, name)(*arguments)
    if result != driver.CUresult.CUDA_SUCCESS:
        if result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise DeviceMemoryError(f"{name}: the GPU is out of memory")
        raise DriverError(f"{name}: {result.name}")
    return values[0] if values else None


@contextmanager
def _current(ordinal: int, own: Any = None) -> Iterator[None]:
    """Make a device's primary context current, or an own one that the program made, and then again what was."""
    context = _contexts.get(ordinal) if own is None else own
    if context is None:
        with _contexts_lock:
            context = _contexts.get(ordinal)
            if context is None:
                context = _contexts[ordinal] = _call("cuDevicePrimaryCtxRetain", _call("cuDeviceGet", ordinal))
    _call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        _pop(context)


def _pop(context: Any) -> None:
    """Take a context off again. What was done stays done if that fails: an exception would lose what was made."""
    driver = _driver()
    if driver.cuCtxPopCurrent()[0] == driver.CUresult.CUDA_SUCCESS:
        return
    result, current = driver.cuCtxGetCurrent()
    if result == driver.CUresult.CUDA_SUCCESS and int(current) == int(context):
        driver.cuCtxPopCurrent()


# Devices


def _uuid(ordinal: int) -> str:
    device = _call("cuDeviceGet", ordinal)
    name = "cuDeviceGetUuid_v2" if hasattr(_driver(), "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    return f"GPU-{uuid.UUID(bytes=bytes(_call(name, device).bytes))}"


def devices() -> list[dict[str, Any]]:
    """List the GPUs that this process sees: ordinal, name and UUID.

    Raises
    ------
    UnavailableError
        There is no driver, or the packages are missing.
    """
    found = []
    for ordinal in range(_call("cuDeviceGetCount")):
        name = _call("cuDeviceGetName", 256, _call("cuDeviceGet", ordinal))
        text = bytes(name).split(b"\0", 1)[0].decode(errors="replace")
        found.append({"ordinal": ordinal, "name": text, "uuid": _uuid(ordinal)})
    return found


def find_device(device_uuid: str) -> int:
    """Find a GPU by its UUID; give its ordinal as this process counts.

    Raises
    ------
    DeviceNotVisibleError
        This process cannot see it.
    """
    seen = devices()
    wanted = device_uuid.lower().removeprefix("gpu-").removeprefix("mig-")
    for device in seen:
        if device["uuid"].removeprefix("GPU-") == wanted:
            return int(device["ordinal"])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise DeviceNotVisibleError(
        f"the memory is on GPU {device_uuid}, which this process cannot see: it sees "
        f"{', '.join(device['uuid'] for device in seen) or 'none'}"
        + (f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else "")
    )


def ordinal_of(device: int | str | None) -> int:
    """Give the ordinal of a GPU that a user names: by ordinal, as ``"cuda:0"``, or by UUID; None is the first.

    Raises
    ------
    DeviceNotVisibleError
        This process cannot see it.
    """
    if isinstance(device, str):
        number = device.removeprefix("cuda:")
        if not number.isdecimal():
            return find_device(device)
        device = int(number)
    count = int(_call("cuDeviceGetCount"))
    ordinal = operator.index(device or 0)
    if not 0 <= ordinal < count:
        raise DeviceNotVisibleError(f"there is no GPU {ordinal}: this process sees {count}")
    return ordinal


def describe(ordinal: int) -> str:
    """Give a GPU's ordinal, name and UUID."""
    device = devices()[ordinal]
    return f"{ordinal} ({device['name']}, {device['uuid']})"


def can_access_peer(ordinal: int, owner: int) -> bool:
    """Whether a GPU can reach the memory of another one."""
    return bool(_call("cuDeviceCanAccessPeer", _call("cuDeviceGet", ordinal), _call("cuDeviceGet", owner)))


# Imports


class ImportedBlock(ABC):
    """One allocation of another process, imported.

    Attributes
    ----------
    address
        Its first byte, on the device.
    """

    address: int
    route: str

    @abstractmethod
    def close(self) -> None:
        """Give the import up; the device must be done with it."""

    @property
    @abstractmethod
    def is_mapped(self) -> bool:
        """Whether the memory is another process's."""


class ImportedPool(ABC):
    """A memory pool of another process, imported."""

    ordinal: int
    route: str

    @property
    @abstractmethod
    def handle(self) -> Any:
        """The driver's handle of the pool."""

    def grant(self, ordinal: int) -> None:
        """Let another GPU reach the pool, in this process."""
        from poolbridge._cuda import imports as _cuda_imports

        _cuda_imports.grant_pool(self.ordinal, self.handle, ordinal)

    @abstractmethod
    def import_block(self, blob: bytes, size: int) -> ImportedBlock:
        """Import one allocation of it."""

    @abstractmethod
    def close(self) -> None:
        """Give the import up, after its blocks."""


class _CorePool(ImportedPool):
    """The route through cuda.core."""

    route = "cuda.core"

    def __init__(self, core: Any, descriptors: Any, ordinal: int, fd: int) -> None:
        self.ordinal = ordinal
        self._descriptors = descriptors
        self._buffers = core.Buffer
        self._error = core._utils.cuda_utils.CUDAError  # noqa: SLF001 - it has no public name
        with _current(ordinal):
            device = core.Device(ordinal)
            device.set_current()
            self._resource = core.DeviceMemoryResource.from_allocation_handle(device, fd)
            self._stream = device.create_stream()

    @property
    def handle(self) -> Any:
        return self._resource.handle

    def import_block(self, blob: bytes, size: int) -> ImportedBlock:
        with _current(self.ordinal):
            descriptor = self._descriptors._init(blob, size)  # noqa: SLF001 - raw bytes have no public constructor
            try:
                buffer = self._buffers.from_ipc_descriptor(self._resource, descriptor, stream=self._stream)
            except (self._error, ValueError) as error:
                raise InvalidArgumentError(
                    f"the export is of no block of {size} bytes of this pool: {error}"
                ) from error
        return _CoreBlock(self.ordinal, buffer, self._stream)

    def close(self) -> None:
        with _current(self.ordinal):
            self._resource.close()
            self._stream.close()


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
        with _current(self._ordinal):
            self._buffer.close(self._stream)
            # Only a free that is done may be reported to the service, which then frees the block itself.
            self._stream.sync()


class _DriverPool(ImportedPool):
    """The route through the driver's bindings alone."""

    route = "cuda.bindings"

    def __init__(self, ordinal: int, fd: int) -> None:
        self.ordinal = ordinal
        kind = _driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        with _current(ordinal):
            self._pool = _call("cuMemPoolImportFromShareableHandle", fd, kind, 0)

    @property
    def handle(self) -> Any:
        return self._pool

    def import_block(self, blob: bytes, size: int) -> ImportedBlock:  # noqa: ARG002
        data = _driver().CUmemPoolPtrExportData()
        # Newer bindings do not show the bytes of opaque structures.
        ctypes.memmove(int(data.getPtr()), blob, BLOB_BYTES)
        with _current(self.ordinal):
            try:
                return _DriverBlock(self.ordinal, int(_call("cuMemPoolImportPointer", self._pool, data)))
            except DriverError as error:
                raise InvalidArgumentError(f"the export is of no block of this pool: {error}") from error

    def close(self) -> None:
        with _current(self.ordinal):
            _call("cuMemPoolDestroy", self._pool)


class _DriverBlock(ImportedBlock):
    route = "cuda.bindings"
    is_mapped = True

    def __init__(self, ordinal: int, address: int) -> None:
        self.address = address
        self._ordinal = ordinal

    def close(self) -> None:
        with _current(self._ordinal):
            _call("cuMemFree", self.address)


def _core_descriptors() -> tuple[Any, Any] | None:
    """Find cuda.core and its class of descriptors, or None where it cannot make one from raw bytes."""
    try:
        import cuda.core
        from cuda.core._memory._ipc import IPCBufferDescriptor
    except ImportError:
        return None
    return (cuda.core, IPCBufferDescriptor) if hasattr(IPCBufferDescriptor, "_init") else None


def import_pool(ordinal: int, fd: int) -> ImportedPool:
    """Import a memory pool; the descriptor stays the caller's and is not needed afterwards.

    Raises
    ------
    DriverError, UnavailableError
        The driver refuses, or a package is missing.
    """
    _driver()
    core = _core_descriptors()
    if core is None:
        return _DriverPool(ordinal, fd)
    try:
        return _CorePool(*core, ordinal, fd)
    except PoolbridgeError:
        raise
    # CUDAError has no public name; where a call is not supported, cuda.core says so with a plain RuntimeError.
    except (core[0]._utils.cuda_utils.CUDAError, RuntimeError) as error:  # noqa: SLF001
        raise DriverError(f"the pool cannot be imported: {error}") from error


# Work and copies


def synchronize(ordinal: int, own: Any = None) -> None:
    """Wait until the device has done all work of this process's primary context, or of its own one."""
    with _current(ordinal, own):
        _call("cuCtxSynchronize")


def copy_to_host(ordinal: int, out: np.ndarray[Any, Any], address: int, own: Any = None) -> None:
    """Copy from the device, after all work queued there; complete on return."""
    with _current(ordinal, own):
        _call("cuCtxSynchronize")
        # Not cuMemcpyDtoH: memory of a host pool has a device address, and is refused as a device's.
        _call("cuMemcpy", int(out.ctypes.data), address, out.nbytes)


def copy_from_host(ordinal: int, address: int, data: np.ndarray[Any, Any], own: Any = None) -> None:
    """Copy to the device, after all work queued there; complete on return."""
    with _current(ordinal, own):
        _call("cuCtxSynchronize")
        _call("cuMemcpy", address, int(data.ctypes.data), data.nbytes)
        # Copies from pageable memory may return before the device has the last bytes.
        _call("cuCtxSynchronize")


def copy_on_device(ordinal: int, destination: int, source: int, nbytes: int) -> None:
    """Copy between two addresses on devices, after all work queued there; complete on return."""
    with _current(ordinal):
        _call("cuCtxSynchronize")
        _call("cuMemcpy", destination, source, nbytes)
        _call("cuCtxSynchronize")


class Allocation:
    """Device memory of this process's own, freed with the object.

    Parameters
    ----------
    ordinal
        The device.
    nbytes
        How much; at least one.
    """

    def __init__(self, ordinal: int, nbytes: int) -> None:
        self._ordinal = ordinal
        self.address = 0
        with _current(ordinal):
            self.address = int(_call("cuMemAlloc", nbytes))

    def __del__(self) -> None:
        if self.address and not sys.is_finalizing():
            with _current(self._ordinal):
                _call("cuMemFree", self.address)


def pointer_facts(address: int) -> dict[str, Any]:
    """Ask the driver about an address: its kind of memory and its device."""
    attribute = _driver().CUpointer_attribute
    kind = _call("cuPointerGetAttribute", attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
    ordinal = _call("cuPointerGetAttribute", attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
    return {"memory_type": _driver().CUmemorytype(int(kind)).name, "ordinal": int(ordinal)}
