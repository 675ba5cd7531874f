"""Uses leases through array libraries, with one class for each library. A library is imported when it is first used."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from poolbridge._cuda import cuda as _cuda
from poolbridge._memory.kinds import KINDS, ON_CPU, ON_GPU
from poolbridge._sys.native import NATIVE
from poolbridge.errors import UnavailableError

if TYPE_CHECKING:
    from poolbridge._client.lease import BaseLease


class Consumer(ABC):
    """The interface to one array library.

    Attributes
    ----------
    name
        The library's name. The name of the library's Python module is the same.
    kinds
        The kinds of memory that the library can use without a copy.
    """

    name: str
    kinds: tuple[str, ...]

    def version(self) -> str:
        """Return the version of the installed library."""
        return str(getattr(importlib.import_module(self.name), "__version__", "?"))

    def lacks_gpu(self) -> bool:
        """Return True if the installed library cannot use the GPUs of this machine."""
        return False

    @abstractmethod
    def take(self, lease: BaseLease, stream: Any = None) -> Any:
        """Make an array in the lease's memory, for use on `stream`; None: for use on the library's current stream."""

    def take_plain(self, lease: BaseLease) -> Any:  # noqa: ARG002
        """Make an array without naming a device type; None: the library takes only memory of a GPU."""
        return None

    def stream(self, ordinal: int) -> Any:
        """Make a stream of a GPU that does not synchronize with the legacy default stream.

        Raises
        ------
        UnavailableError
            The library offers no streams, or this class cannot make them.
        """
        raise UnavailableError(f"{self.name} makes no streams on GPU {ordinal}")

    def pointer(self, array: Any) -> int:
        """Return the address that the array reports."""
        return int(array.__cuda_array_interface__["data"][0])

    @abstractmethod
    def copy(self, array: Any) -> np.ndarray[Any, Any]:
        """Return the array's elements on the CPU, which the library has read."""

    def fill(self, array: Any, lease: BaseLease, values: np.ndarray[Any, Any]) -> None:  # noqa: ARG002
        """Write the array `values` into the array. The content is complete on return.

        This default copies into the lease, for libraries that write no arrays in place.
        """
        lease.copy_from(values.reshape(lease.shape))


def _of_gpu(lease: BaseLease) -> Any:
    """Return what presents the memory as memory of a GPU if a GPU reaches it: for kind ``pinned``, a view."""
    return lease.view(device="cuda") if _is_pinned(lease) else lease


def _is_pinned(lease: BaseLease) -> bool:
    return getattr(lease, "kind", "legacy") == "pinned"  # `OpenedMemory` has no kind


class _NumPy(Consumer):
    """NumPy, on memory of the CPU."""

    name = "numpy"
    kinds = ON_CPU

    def take(self, lease: BaseLease, stream: Any = None) -> Any:  # noqa: ARG002
        source: Any = lease  # NumPy's type stubs do not know the newest standard
        return np.from_dlpack(source)

    def take_plain(self, lease: BaseLease) -> Any:
        return self.take(lease)

    def pointer(self, array: Any) -> int:
        return int(array.ctypes.data)

    def copy(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def fill(self, array: Any, lease: BaseLease, values: np.ndarray[Any, Any]) -> None:  # noqa: ARG002
        array[...] = values.reshape(array.shape)


class _CuPy(Consumer):
    """CuPy, on memory of a GPU.

    In memory of kind ``pinned``, the driver refuses CuPy's copies, so kernels read and write the arrays.
    """

    name = "cupy"
    kinds = ON_GPU

    def take(self, lease: BaseLease, stream: Any = None) -> Any:
        import cupy

        view = _of_gpu(lease)
        with cupy.cuda.Device(view.__dlpack_device__()[1]), stream or nullcontext():
            return cupy.from_dlpack(view)

    def stream(self, ordinal: int) -> Any:
        import cupy

        with cupy.cuda.Device(ordinal):
            return cupy.cuda.Stream(non_blocking=True)

    def pointer(self, array: Any) -> int:
        return int(array.data.ptr)

    def copy(self, array: Any) -> np.ndarray[Any, Any]:
        import cupy

        with array.device:
            out: np.ndarray[Any, Any] = cupy.asnumpy(array + array.dtype.type(0))
        return out

    def fill(self, array: Any, lease: BaseLease, values: np.ndarray[Any, Any]) -> None:  # noqa: ARG002
        import cupy

        with array.device:
            array[...] = cupy.asarray(values.reshape(array.shape))
            cupy.cuda.get_current_stream().synchronize()


class _Torch(Consumer):
    """PyTorch, on memory of the CPU and of a GPU.

    PyTorch tells the driver the direction of a copy, such as host to device, and the driver then refuses memory of kind
    ``pinned``. So kernels read and write the tensors.
    """

    name = "torch"
    kinds = (*ON_GPU, "host")

    def lacks_gpu(self) -> bool:
        import torch

        return not torch.cuda.is_available()

    def take(self, lease: BaseLease, stream: Any = None) -> Any:
        import torch

        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            return torch.from_dlpack(_of_gpu(lease))

    def take_plain(self, lease: BaseLease) -> Any:
        import torch

        return torch.from_dlpack(lease)

    def stream(self, ordinal: int) -> Any:
        import torch

        return torch.cuda.Stream(ordinal)

    def pointer(self, array: Any) -> int:
        return int(array.data_ptr())

    def copy(self, array: Any) -> np.ndarray[Any, Any]:
        import torch

        out: np.ndarray[Any, Any] = torch.add(self._plain(array), 0).cpu().numpy()
        return out.view(str(array.dtype).removeprefix("torch."))

    def fill(self, array: Any, lease: BaseLease, values: np.ndarray[Any, Any]) -> None:  # noqa: ARG002
        import torch

        plain = self._plain(array)
        source = self._plain(torch.from_numpy(values.reshape(tuple(array.shape))))
        torch.add(source.to(plain.device), 0, out=plain)
        if array.is_cuda:
            torch.cuda.synchronize(array.device)

    @staticmethod
    def _plain(part: Any) -> Any:
        import torch

        signed = {torch.uint32: torch.int32, torch.uint64: torch.int64}
        return part.view(signed.get(part.dtype, part.dtype))


class _CudaCore(Consumer):
    """``cuda.core`` alone: a GPU without an array library."""

    name = "cuda.core"
    kinds = ON_GPU

    def take(self, lease: BaseLease, stream: Any = None) -> Any:
        from cuda.core.utils import StridedMemoryView

        return StridedMemoryView.from_dlpack(_of_gpu(lease), stream_ptr=1 if stream is None else int(stream.handle))

    def stream(self, ordinal: int) -> Any:
        from cuda.core import Device

        device = Device(ordinal)
        device.set_current()
        return device.create_stream()

    def pointer(self, array: Any) -> int:
        return int(array.ptr)

    def copy(self, array: Any) -> np.ndarray[Any, Any]:
        out = np.empty(array.shape, array.dtype)
        if out.size:
            _cuda.copy_to_host(array.device_id, out, array.ptr)
        return out


class _Numba(Consumer):
    """Numba, on memory of a GPU. Numba makes its arrays by the CUDA array interface."""

    name = "numba"
    # Kind ``pinned`` is missing: Numba tells the driver the direction of a copy, such as device to host, and the driver
    # then refuses memory of kind ``pinned``.
    kinds = ("device", "vmm", "legacy")

    def lacks_gpu(self) -> bool:
        from numba import cuda

        return not cuda.is_available()

    def take(self, lease: BaseLease, stream: Any = None) -> Any:  # noqa: ARG002
        from numba import cuda

        return cuda.as_cuda_array(lease.view(device="cuda"))

    def copy(self, array: Any) -> np.ndarray[Any, Any]:
        out: np.ndarray[Any, Any] = array.copy_to_host()
        return out


class _Jax(Consumer):
    """JAX, on memory of the CPU and of a GPU. JAX does not change arrays, so `fill` copies into the lease."""

    name = "jax"
    kinds = (*ON_GPU, "host")

    def lacks_gpu(self) -> bool:
        import jax

        return all(device.platform == "cpu" for device in jax.devices())

    def take(self, lease: BaseLease, stream: Any = None) -> Any:  # noqa: ARG002
        import jax

        return jax.dlpack.from_dlpack(lease.view(legacy=True, device="cuda" if _is_pinned(lease) else None))

    def take_plain(self, lease: BaseLease) -> Any:
        import jax

        return jax.dlpack.from_dlpack(lease.view(legacy=True))

    def pointer(self, array: Any) -> int:
        return int(array.unsafe_buffer_pointer())

    def copy(self, array: Any) -> np.ndarray[Any, Any]:
        import jax

        return np.array(jax.jit(lambda x: jax.numpy.stack([x, x]))(array)[0])


# The consumers of all array libraries. `_verify` prefers the first library that it can use.
CONSUMERS: tuple[type[Consumer], ...] = (_NumPy, _CuPy, _Torch, _CudaCore, _Jax, _Numba)
_PACKAGES = ("poolbridge", "numpy", "msgspec", "cuda-core", "cuda-bindings")


def load(name: str) -> Consumer:
    """Make the consumer for the library `name`.

    Raises
    ------
    UnavailableError
        The library is not installed, or this module has no consumer for the library.
    """
    for consumer in CONSUMERS:
        if consumer.name == name:
            if not _installed(name):
                raise UnavailableError(f"{name} is not installed for this Python")
            return consumer()
    known = ", ".join(consumer.name for consumer in CONSUMERS)
    raise UnavailableError(f"{name!r} is no array library that the worker knows: expected one of {known}")


def preload(name: str) -> str:
    """Import the libraries that the consumer `name` needs; return the version of the library `name`.

    Raises
    ------
    UnavailableError
        The library is not installed, or this module has no consumer for the library.
    """
    consumer = load(name)
    if "device" in consumer.kinds and _installed("cuda.core"):
        importlib.import_module("cuda.core")
    return consumer.version()


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def installed() -> list[str]:
    """Return the names of the installed libraries, the preferred library first, without importing any library."""
    return [consumer.name for consumer in CONSUMERS if _installed(consumer.name)]


def probe(only: str | None = None) -> dict[str, Any]:
    """Find out which libraries can use which kind of memory in this process.

    Parameters
    ----------
    only
        The library to try; None: every installed library.

    Returns
    -------
    dict
        ``packages``: the version of each installed package. ``native``: whether poolbridge has its native module.
        ``consumers``: for each kind of memory, the names of the libraries that can use it, the preferred library first.
        ``missing``: for each kind of memory, a text that says which libraries cannot use it, and why. ``cuda``: whether
        this process sees a GPU. ``devices``: the GPUs that this process sees.
    """
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    consumers: dict[str, list[str]] = {kind: [] for kind in KINDS}
    broken: list[str] = []
    devices: list[dict[str, Any]] = []
    absent = "this process sees no GPU"
    try:
        devices = _cuda.devices()
    except UnavailableError as error:
        absent = str(error)
    on_gpu = [kind for kind in KINDS if kind != "host"]
    lacking: list[str] = []
    for consumer in CONSUMERS:
        if not _installed(consumer.name) or only not in (None, consumer.name):
            continue
        try:
            packages[consumer.name] = preload(consumer.name)
            lacks = bool(devices) and consumer().lacks_gpu()
        except Exception as error:  # noqa: BLE001 - a broken library is a finding, not a failure
            broken.append(f"{consumer.name} cannot be imported: {error}")
            continue
        if lacks:
            lacking.append(f"{consumer.name} {packages[consumer.name]} is installed without support for CUDA")
        for kind in consumer.kinds:
            if kind == "host" or (devices and not lacks):
                consumers[kind].append(consumer.name)
    missing = {"host": "; ".join(broken)}
    missing.update(dict.fromkeys(on_gpu, "; ".join(broken + lacking) if devices else absent))
    return {
        "packages": packages,
        "native": NATIVE is not None,
        "consumers": consumers,
        "missing": {kind: why for kind, why in missing.items() if why},
        "cuda": bool(devices),
        "devices": devices,
    }
