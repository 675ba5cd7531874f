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
from poolbridge._libraries import patterns as _patterns
from poolbridge._libraries.patterns import Comparison, Pattern, chunks
from poolbridge._memory.kinds import KINDS, ON_CPU, ON_GPU
from poolbridge._session.membership import NATIVE
from poolbridge.errors import (
    UnavailableError,
)

if TYPE_CHECKING:
    from poolbridge._client.lease import BaseLease, Lease


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

    def stream(self, ordinal: int) -> Any:
        """Make a stream of a GPU that does not synchronize with the legacy default stream.

        Raises
        ------
        UnavailableError
            The library offers no streams, or this class cannot make them.
        """
        raise UnavailableError(f"{self.name} makes no streams on GPU {ordinal}")

    @abstractmethod
    def pointer(self, array: Any) -> int:
        """Return the array's address."""

    @abstractmethod
    def everyday(self, lease: BaseLease) -> np.ndarray[Any, Any]:
        """Make an array as docs/arrays.md says, print it, read an element, and return a copy on the CPU."""

    @abstractmethod
    def compare(self, array: Any, pattern: Pattern) -> Comparison:
        """Compare every element of `array` with `pattern`."""

    @abstractmethod
    def fill(self, array: Any, lease: Lease, pattern: Pattern) -> None:
        """Write `pattern` into `array`. The pattern is complete on return."""

    @abstractmethod
    def transform(self, array: Any, lease: Lease, scale: float, offset: float) -> None:
        """Replace every element x of `array` by ``scale * x + offset``. The result is complete on return."""


def _of_gpu(lease: BaseLease) -> Any:
    """Return what presents the memory as memory of a GPU if a GPU reaches it: for kind ``pinned``, a view."""
    return lease.view(device="cuda") if _is_pinned(lease) else lease


def _read(array: Any) -> None:
    """Print an array, and read its first element."""
    repr(array)
    if all(array.shape):
        float(array.reshape(-1)[0])


def _is_pinned(lease: BaseLease) -> bool:
    return getattr(lease, "kind", "legacy") == "pinned"  # `OpenedMemory` has no kind


class NumPy(Consumer):
    """NumPy, on memory of the CPU."""

    name = "numpy"
    kinds = ON_CPU

    def take(self, lease: BaseLease, stream: Any = None) -> Any:  # noqa: ARG002
        """Make the array by DLPack."""
        source: Any = lease  # NumPy's type stubs do not know the newest standard
        return np.from_dlpack(source)

    def pointer(self, array: Any) -> int:
        """Return the memory address that the array reports."""
        return int(array.ctypes.data)

    def everyday(self, lease: BaseLease) -> np.ndarray[Any, Any]:
        """Copy by NumPy."""
        array = self.take(lease)
        _read(array)
        copy: np.ndarray[Any, Any] = array.copy()
        return copy

    def compare(self, array: Any, pattern: Pattern) -> Comparison:
        """Compare on the CPU."""
        return _patterns.compare(np, array.reshape(-1), pattern)

    def fill(self, array: Any, lease: Lease, pattern: Pattern) -> None:  # noqa: ARG002
        """Write on the CPU."""
        _patterns.fill(np, array.reshape(-1), pattern)

    def transform(self, array: Any, lease: Lease, scale: float, offset: float) -> None:  # noqa: ARG002
        """Compute on the CPU."""
        array *= scale
        array += offset


class CuPy(Consumer):
    """CuPy, on memory of a GPU."""

    name = "cupy"
    kinds = ON_GPU

    def take(self, lease: BaseLease, stream: Any = None) -> Any:
        """Make the array by DLPack."""
        import cupy

        view = _of_gpu(lease)
        with cupy.cuda.Device(view.__dlpack_device__()[1]), stream or nullcontext():
            return cupy.from_dlpack(view)

    def stream(self, ordinal: int) -> Any:
        """Make a stream of CuPy."""
        import cupy

        with cupy.cuda.Device(ordinal):
            return cupy.cuda.Stream(non_blocking=True)

    def pointer(self, array: Any) -> int:
        """Return the memory address that the array reports."""
        return int(array.data.ptr)

    def everyday(self, lease: BaseLease) -> np.ndarray[Any, Any]:
        """Copy by CuPy. In memory of kind ``pinned``, the driver refuses CuPy's copies, so a kernel copies first."""
        import cupy

        array = self.take(lease)
        with array.device:
            array = array + 0 if _is_pinned(lease) else array
            _read(array)
            copy: np.ndarray[Any, Any] = cupy.asnumpy(array)
        return copy

    def compare(self, array: Any, pattern: Pattern) -> Comparison:
        """Compare on the GPU."""
        import cupy

        with array.device:
            return _patterns.compare(cupy, array.reshape(-1), pattern)

    def fill(self, array: Any, lease: Lease, pattern: Pattern) -> None:  # noqa: ARG002
        """Write on the GPU."""
        import cupy

        with array.device:
            _patterns.fill(cupy, array.reshape(-1), pattern)
            cupy.cuda.get_current_stream().synchronize()

    def transform(self, array: Any, lease: Lease, scale: float, offset: float) -> None:  # noqa: ARG002
        """Compute on the GPU."""
        import cupy

        with array.device:
            array *= scale
            array += offset
            cupy.cuda.get_current_stream().synchronize()


class Torch(Consumer):
    """PyTorch, on memory of the CPU and of a GPU."""

    name = "torch"
    kinds = (*ON_GPU, "host")

    def lacks_gpu(self) -> bool:
        """Whether PyTorch was built without CUDA, or cannot use CUDA."""
        import torch

        return not torch.cuda.is_available()

    def take(self, lease: BaseLease, stream: Any = None) -> Any:
        """Make the tensor by DLPack."""
        import torch

        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            return torch.from_dlpack(_of_gpu(lease))

    def stream(self, ordinal: int) -> Any:
        """Make a stream of PyTorch."""
        import torch

        return torch.cuda.Stream(ordinal)

    def pointer(self, array: Any) -> int:
        """Return the memory address that the tensor reports."""
        return int(array.data_ptr())

    def everyday(self, lease: BaseLease) -> np.ndarray[Any, Any]:
        """Copy by ``tensor.cpu()``."""
        import torch

        array = torch.from_dlpack(lease)
        _read(array)
        copy: np.ndarray[Any, Any] = array.cpu().numpy().copy()
        return copy

    def compare(self, array: Any, pattern: Pattern) -> Comparison:
        """Compare on the tensor's device."""
        flat = array.reshape(-1)
        result = Comparison()
        for first, count in chunks(flat.numel()):
            part = self._plain(flat[first : first + count])
            expected = self._expected(part, pattern, first)
            wrong = part != expected
            if pattern.tolerance:
                wrong = ~((part.double() - expected.double()).abs() <= pattern.tolerance)
            mismatches = int(wrong.sum())
            if mismatches:
                at = wrong.nonzero().reshape(-1)[:5]
                result.add(mismatches, (at + first).tolist(), expected[at].tolist(), part[at].tolist())
        return result

    def fill(self, array: Any, lease: Lease, pattern: Pattern) -> None:  # noqa: ARG002
        """Write on the tensor's device."""
        import torch

        flat = array.reshape(-1)
        for first, count in chunks(flat.numel()):
            part = self._plain(flat[first : first + count])
            # Let a kernel write the part, and do not use PyTorch's copies: PyTorch tells the driver the direction of a
            # copy, such as host to device, and the driver then refuses memory of kind ``pinned``.
            torch.add(self._expected(part, pattern, first), 0, out=part)
        if flat.is_cuda:
            torch.cuda.synchronize(flat.device)

    def transform(self, array: Any, lease: Lease, scale: float, offset: float) -> None:  # noqa: ARG002
        """Compute on the tensor's device."""
        import torch

        array.mul_(scale).add_(offset)
        if array.is_cuda:
            torch.cuda.synchronize(array.device)

    @staticmethod
    def _plain(part: Any) -> Any:
        """Return unsigned integers as signed integers with the same bits, for which PyTorch has more operations."""
        import torch

        signed = {torch.uint32: torch.int32, torch.uint64: torch.int64}
        return part.view(signed.get(part.dtype, part.dtype))

    @staticmethod
    def _expected(part: Any, pattern: Pattern, first: int) -> Any:
        import torch

        if pattern.kind == "fibonacci":
            numbers = _patterns.fibonacci(int(pattern.offset) + first, part.numel())
            return torch.from_numpy(numbers.view(np.int64)).to(part.device)
        if pattern.kind == "masked":
            whole = torch.arange(first, first + part.numel(), dtype=torch.int64, device=part.device)
            whole.mul_(int(pattern.scale)).add_(int(pattern.offset)).bitwise_xor_(pattern.mask).bitwise_and_(0xFFFFFFFF)
            whole[whole >= 1 << 31] -= 1 << 32
            return whole.to(part.dtype)
        values = torch.arange(first, first + part.numel(), dtype=torch.float64, device=part.device)
        return values.mul_(pattern.scale).add_(pattern.offset).to(part.dtype)


class OnHost(Consumer):
    """A library whose arrays use the lease's memory. This class copies the arrays to the CPU to compare them there."""

    def pointer(self, array: Any) -> int:
        """Return the address in the array's ``__cuda_array_interface__``."""
        return int(array.__cuda_array_interface__["data"][0])

    @abstractmethod
    def copy(self, array: Any) -> np.ndarray[Any, Any]:
        """Return a copy of the array's elements on the CPU."""

    def everyday(self, lease: BaseLease) -> np.ndarray[Any, Any]:
        """Copy the array to the CPU."""
        return self.copy(self.take(lease))

    def compare(self, array: Any, pattern: Pattern) -> Comparison:
        """Compare a copy on the CPU."""
        return _patterns.compare(np, self.copy(array).reshape(-1), pattern)

    def fill(self, array: Any, lease: Lease, pattern: Pattern) -> None:  # noqa: ARG002
        """Make the pattern on the CPU and copy it into the lease."""
        lease.copy_from(_patterns.make(pattern, lease.size, lease.dtype).reshape(lease.shape))

    def transform(self, array: Any, lease: Lease, scale: float, offset: float) -> None:
        """Copy the library's array to the CPU, compute there, and copy the result into the lease."""
        lease.copy_from((self.copy(array) * scale + offset).astype(lease.dtype))


class CudaCore(OnHost):
    """``cuda.core`` alone: a GPU without an array library."""

    name = "cuda.core"
    kinds = ON_GPU

    def take(self, lease: BaseLease, stream: Any = None) -> Any:
        """Make a `StridedMemoryView` by DLPack, for use on `stream`; None: for use on the legacy default stream."""
        from cuda.core.utils import StridedMemoryView

        return StridedMemoryView.from_dlpack(_of_gpu(lease), stream_ptr=1 if stream is None else int(stream.handle))

    def stream(self, ordinal: int) -> Any:
        """Make a stream of cuda.core."""
        from cuda.core import Device

        device = Device(ordinal)
        device.set_current()
        return device.create_stream()

    def pointer(self, array: Any) -> int:
        """Return the memory address that the view reports."""
        return int(array.ptr)

    def copy(self, array: Any) -> np.ndarray[Any, Any]:
        """Copy the view's elements to the CPU, by a driver call with the view's address."""
        out = np.empty(array.shape, array.dtype)
        if out.size:
            _cuda.copy_to_host(array.device_id, out, array.ptr)
        return out


class Numba(OnHost):
    """Numba, on memory of a GPU. Numba makes its arrays by the CUDA array interface."""

    name = "numba"
    # Kind ``pinned`` is missing: Numba tells the driver the direction of a copy, such as device to host, and the driver
    # then refuses memory of kind ``pinned``.
    kinds = ("device", "vmm", "legacy")

    def lacks_gpu(self) -> bool:
        """Whether Numba's CUDA target is missing."""
        from numba import cuda

        return not cuda.is_available()

    def take(self, lease: BaseLease, stream: Any = None) -> Any:  # noqa: ARG002
        """Make a Numba device array from a view of the lease."""
        from numba import cuda

        return cuda.as_cuda_array(lease.view(device="cuda"))

    def copy(self, array: Any) -> np.ndarray[Any, Any]:
        """Copy the elements to the CPU by Numba's own copy."""
        out: np.ndarray[Any, Any] = array.copy_to_host()
        return out


class Jax(OnHost):
    """JAX, on memory of the CPU and of a GPU. JAX does not change arrays, so `fill` copies patterns into the lease."""

    name = "jax"
    kinds = (*ON_GPU, "host")

    def lacks_gpu(self) -> bool:
        """Whether JAX's plugin for CUDA is missing."""
        import jax

        return all(device.platform == "cpu" for device in jax.devices())

    def take(self, lease: BaseLease, stream: Any = None) -> Any:  # noqa: ARG002
        """Make the array by a legacy DLPack capsule.

        A legacy capsule cannot say that the memory is read-only. JAX need not know this, because JAX never writes into
        an array.
        """
        import jax

        return jax.dlpack.from_dlpack(lease.view(legacy=True, device="cuda" if _is_pinned(lease) else None))

    def pointer(self, array: Any) -> int:
        """Return the memory address that the array reports."""
        return int(array.unsafe_buffer_pointer())

    def everyday(self, lease: BaseLease) -> np.ndarray[Any, Any]:
        """Copy by ``numpy.array``."""
        import jax

        array = jax.dlpack.from_dlpack(lease.view(legacy=True))
        _read(array)
        return np.array(array)

    def copy(self, array: Any) -> np.ndarray[Any, Any]:
        """Let a kernel copy the array on its device, and copy the result to the CPU.

        If the array has memory of kind ``pinned``, the driver refuses a direct copy by JAX.
        """
        import jax

        return np.array(jax.jit(lambda x: jax.numpy.stack([x, x]))(array)[0])


# The consumers of all array libraries. `_verify` prefers the first library that it can use.
CONSUMERS: tuple[type[Consumer], ...] = (NumPy, CuPy, Torch, CudaCore, Jax, Numba)
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
