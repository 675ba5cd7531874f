"""Describe the array libraries to the tests: how each library takes, reads and writes a lease, and what it refuses."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import poolbridge
from poolbridge._memory import tensor as _tensor
from poolbridge._memory.kinds import ON_CPU

# Without this setting, JAX takes most of the GPU's memory at its start.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

GPU_KINDS = ("device", "vmm", "legacy", "pinned")
IN_PLACE = "in place"
COPY = "copy"
# The error that every library except NumPy reports for a lease with negative strides.
REVERSED = "BufferError: this lease has negative strides"


@dataclass(frozen=True)
class Layout:
    """How elements lie in a buffer. `strides` and `offset` are numbers of elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    offset: int = 0

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    @property
    def c_contiguous(self) -> bool:
        return not self.strides

    @property
    def reversed(self) -> bool:
        return any(stride < 0 for stride in self.strides)

    @property
    def compact(self) -> bool:
        """Whether the layout is C-contiguous, or becomes C-contiguous with its axes in another order."""
        return not self.strides or sorted(self.strides) == sorted(_tensor.c_strides(self.shape[::-1], 1))


LAYOUTS = {
    "matrix": Layout((3, 4)),
    "scalar": Layout(()),
    "scalar further on": Layout((), offset=3),
    "nothing": Layout((0,)),
    "an axis of nothing": Layout((3, 0, 2)),
    "transposed": Layout((4, 3), (1, 4)),
    "every other": Layout((5,), (2,)),
    "gaps": Layout((3, 2), (8, 2), 1),
    "backwards": Layout((4,), (-1,), 3),
    "rows backwards": Layout((2, 3), (-3, 1), 3),
    "one row for all": Layout((3, 4), (0, 1)),
    "further on": Layout((4,), offset=1),
}


def of_gpu(lease: poolbridge.Lease) -> Any:
    """Return what presents a lease's memory as memory of the GPU: the lease, or a view if the memory is `pinned`."""
    return lease.view(device="cuda") if lease.kind == "pinned" else lease


class Library:
    """One array library. Subclasses replace the methods that do not fit their library.

    Attributes
    ----------
    name
        The name of the library's module.
    kinds
        The kinds of memory that the library accepts.
    writes
        Whether the library can write its arrays.
    """

    name: str
    kinds: tuple[str, ...] = GPU_KINDS
    writes = True

    @property
    def installed(self) -> bool:
        try:
            return importlib.util.find_spec(self.name) is not None
        except ModuleNotFoundError:
            return False

    def lacks(self, kind: str) -> str:
        """Return why the installed library cannot use the GPU, or an empty text if it can use the GPU."""
        return ""

    def take(self, lease: poolbridge.Lease) -> Any:
        raise NotImplementedError

    def pointer(self, array: Any) -> int:
        raise NotImplementedError

    def read(self, array: Any, dtype: str) -> bytes:
        """Read the elements with the library, and return them in C order."""
        raise NotImplementedError

    def write_ones(self, array: Any) -> None:
        """Set every element to 1 with the library, and return when all elements are written."""
        raise NotImplementedError

    def can_write(self, dtype: str, layout: Layout, kind: str) -> bool:
        return self.writes

    def expected(self, dtype: str, layout: Layout, kind: str) -> str:
        """Return a pattern for `re` that the right result matches: `IN_PLACE`, `COPY`, or an error's name and text."""
        return IN_PLACE


class NumPy(Library):
    name = "numpy"
    kinds = ON_CPU

    def take(self, lease: poolbridge.Lease) -> Any:
        source: Any = lease  # the type stubs of NumPy do not accept a lease
        return np.from_dlpack(source)

    def pointer(self, array: Any) -> int:
        return int(array.ctypes.data)

    def read(self, array: Any, dtype: str) -> bytes:
        return bytes(array.tobytes())

    def write_ones(self, array: Any) -> None:
        array[...] = 1

    def expected(self, dtype: str, layout: Layout, kind: str) -> str:
        return IN_PLACE if _tensor.element_type(dtype).in_numpy else f"BufferError: NumPy has no {dtype}"


class Torch(Library):
    name = "torch"
    kinds = ("host", *GPU_KINDS)

    def lacks(self, kind: str) -> str:
        import torch

        return (
            ""
            if kind in ON_CPU or torch.cuda.is_available()
            else "this torch sees no GPU: install one that is built for CUDA"
        )

    def take(self, lease: poolbridge.Lease) -> Any:
        import torch

        return torch.from_dlpack(lease)

    def pointer(self, array: Any) -> int:
        return int(array.data_ptr())

    def read(self, array: Any, dtype: str) -> bytes:
        import torch

        bits = torch.view_as_real(array) if array.is_complex() else array
        bits = bits.view(getattr(torch, f"int{8 * bits.element_size()}"))
        return bytes(bits.cpu().contiguous().numpy().tobytes())

    def write_ones(self, array: Any) -> None:
        import torch

        array.fill_(1)
        if array.is_cuda:
            torch.cuda.synchronize(array.device)

    def can_write(self, dtype: str, layout: Layout, kind: str) -> bool:
        # PyTorch refuses to write an element that has several indices, and has no fill_ for pairs.
        return 0 not in layout.strides and not _tensor.element_type(dtype).packed

    def expected(self, dtype: str, layout: Layout, kind: str) -> str:
        return REVERSED if layout.reversed else IN_PLACE


class Jax(Library):
    name = "jax"
    kinds = ("host", *GPU_KINDS)
    writes = False

    def lacks(self, kind: str) -> str:
        import jax

        on_gpu = any(device.platform != "cpu" for device in jax.devices())
        return "" if kind in ON_CPU or on_gpu else "this jax sees no GPU: install its plugin for CUDA"

    def take(self, lease: poolbridge.Lease) -> Any:
        """Make a JAX array of the lease. Enable 64-bit types first, or JAX would make a copy with 32-bit elements."""
        import jax

        jax.config.update("jax_enable_x64", True)
        return jax.dlpack.from_dlpack(lease.view(legacy=lease.readonly))

    def pointer(self, array: Any) -> int:
        return int(array.unsafe_buffer_pointer())

    def read(self, array: Any, dtype: str) -> bytes:
        return bytes(np.array(self._twice()(array)[0]).tobytes()) if array.size else b""

    @staticmethod
    @cache
    def _twice() -> Any:
        """Return a kernel that copies an array twice. JAX checks the alignment of an array when a kernel uses it."""
        import jax

        return jax.jit(lambda x: jax.numpy.stack([x, x]))

    def expected(self, dtype: str, layout: Layout, kind: str) -> str:
        if layout.reversed:
            return REVERSED
        if _tensor.element_type(dtype).packed:
            return "JaxRuntimeError: UNIMPLEMENTED: DLPack types with lanes != "
        if not layout.compact:
            return "JaxRuntimeError: UNIMPLEMENTED: Only DLPack tensors with trivial .compact. striding"
        # On the CPU, JAX copies an array that is not aligned to 64 bytes. On a GPU, JAX needs alignment to 16 bytes.
        if kind not in ON_CPU and layout.size and layout.offset * _tensor.element_type(dtype).itemsize % 16:
            return "JaxRuntimeError: .*[Aa]ddress of buffer"
        return COPY if kind in ON_CPU and layout.offset else IN_PLACE


class CuPy(Library):
    name = "cupy"

    def take(self, lease: poolbridge.Lease) -> Any:
        import cupy

        return cupy.from_dlpack(of_gpu(lease))

    def pointer(self, array: Any) -> int:
        return int(array.data.ptr)

    def read(self, array: Any, dtype: str) -> bytes:
        import cupy

        bits = array if array.itemsize == 16 else array.view(f"u{array.itemsize}")
        return bytes(cupy.asnumpy(self._same()(bits)).tobytes())

    @staticmethod
    @cache
    def _same() -> Any:
        """Return a kernel that copies an array.

        CuPy's own copies tell the driver a direction, such as from GPU to CPU. For memory of a host pool, the driver
        refuses such copies.
        """
        import cupy

        return cupy.ElementwiseKernel("T x", "T y", "y = x", "same")

    def write_ones(self, array: Any) -> None:
        import cupy

        array[...] = 1
        cupy.cuda.get_current_stream().synchronize()

    def can_write(self, dtype: str, layout: Layout, kind: str) -> bool:
        return _tensor.element_type(dtype).in_numpy

    def expected(self, dtype: str, layout: Layout, kind: str) -> str:
        if layout.reversed:
            return REVERSED
        if dtype != "bfloat16":
            refused = "TypeError: .*[Uu]nsupported dtype|.*lanes"
            return IN_PLACE if _tensor.element_type(dtype).in_numpy else refused
        import cupy

        # CuPy 14 and later take the element type bfloat16 from the package ml_dtypes.
        has = int(cupy.__version__.split(".")[0]) >= 14 and importlib.util.find_spec("ml_dtypes") is not None
        return IN_PLACE if has else ".*bfloat16"


class Numba(Library):
    name = "numba"

    def take(self, lease: poolbridge.Lease) -> Any:
        from numba import cuda

        return cuda.as_cuda_array(lease.view(device="cuda"))

    def pointer(self, array: Any) -> int:
        return int(array.__cuda_array_interface__["data"][0])

    def read(self, array: Any, dtype: str) -> bytes:
        return bytes(array.copy_to_host().tobytes())

    def write_ones(self, array: Any) -> None:
        array.copy_to_device(np.ones(array.shape, array.dtype))

    def can_write(self, dtype: str, layout: Layout, kind: str) -> bool:
        return layout.c_contiguous and layout.size > 0

    def expected(self, dtype: str, layout: Layout, kind: str) -> str:
        if not _tensor.element_type(dtype).in_numpy:
            return f"UnsupportedError: .*has no {dtype}: use DLPack"
        if layout.reversed:
            return "NotImplementedError: .*negative strides"
        # Numba takes memory of a host pool. But Numba's copies tell the driver a direction, such as from GPU to CPU,
        # and the driver refuses such copies.
        return "CudaAPIError: .*INVALID_VALUE" if kind == "pinned" and layout.size else IN_PLACE


class CudaCore(Library):
    name = "cuda.core"
    writes = False

    def take(self, lease: poolbridge.Lease) -> Any:
        from cuda.core.utils import StridedMemoryView

        return StridedMemoryView.from_dlpack(of_gpu(lease), stream_ptr=1)

    def expected(self, dtype: str, layout: Layout, kind: str) -> str:
        return REVERSED if layout.reversed else IN_PLACE

    def pointer(self, array: Any) -> int:
        return int(array.ptr)

    def read(self, array: Any, dtype: str) -> bytes:
        """Copy the elements with the driver, because the view of cuda.core describes elements and cannot copy them."""
        from poolbridge._cuda import cuda as _cuda

        element = _tensor.element_type(dtype)
        strides = tuple(step * element.itemsize for step in array.strides or ())
        strides = strides or _tensor.c_strides(array.shape, element.itemsize)
        first, last = _tensor.span_of(array.shape, strides, 0, element.itemsize)
        data = np.empty(last - first, np.uint8)
        if last > first:
            _cuda.copy_to_host(array.device_id, data, array.ptr + first)
        found: np.ndarray[Any, Any] = np.ndarray(array.shape, element.typestr, data.tobytes(), -first, strides)
        return found.tobytes()


LIBRARIES = (NumPy(), Torch(), Jax(), CuPy(), Numba(), CudaCore())
