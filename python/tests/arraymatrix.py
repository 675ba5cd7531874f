"""Tries one array library with every kind of memory: ``arraymatrix.py SOCKET LIBRARY``.

The first part of the matrix puts arrays of every element type into memory by every way in, and looks at what comes out.
The second part does with an array in a lease what users do with arrays. The program prints a line of JSON for each
cell, before and after it tries the cell, so that `test_array_matrix` can name the cell that ends the process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import poolbridge
from poolbridge._array.arrays import widen
from poolbridge._cuda import cuda as _cuda
from poolbridge._memory import dlpack as _dlpack
from poolbridge._memory.kinds import KINDS, ON_CPU
from poolbridge._memory.tensor import ELEMENT_TYPES, ElementType, c_strides

# Without this setting, JAX takes most of the GPU's memory at its start.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

SHAPE = (2, 3)
REFUSED = ("float8_e4m3b11fnuz",)
DTYPES = (*ELEMENT_TYPES, *REFUSED)
BEYOND_NUMPY = {name for name, element in ELEMENT_TYPES.items() if not element.in_numpy}
SECONDS = 30.0
# The driver refuses a copy of memory of kind `pinned` if the call names a direction, such as from the GPU to the CPU.
REFUSAL = "invalid argument|invalid value|invalid_value|invalidvalue"

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


class Lacks(Exception):
    """The library has no such arrays, or cannot do this."""


def itemsize(dtype: str) -> int:
    return ELEMENT_TYPES[dtype].itemsize if dtype in ELEMENT_TYPES else 1


def raw(dtype: str) -> np.ndarray[Any, Any]:
    """Return the bytes of six elements of a type."""
    if dtype == "bool":
        return np.array([1, 0, 0, 1, 1, 0], np.uint8)
    if dtype == "bfloat16":
        return (np.arange(6, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    if dtype.startswith(("float8", "float4")):
        return np.arange(0x38, 0x3E, dtype=np.uint8)
    values = np.arange(6).astype(dtype)
    return (values * (1 + 2j)).astype(dtype).view(np.uint8) if values.dtype.kind == "c" else values.view(np.uint8)


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    if dtype not in BEYOND_NUMPY and dtype in ELEMENT_TYPES:
        return np.dtype(dtype)
    if ml_dtypes is None:
        raise Lacks("ml_dtypes is not installed")
    if not hasattr(ml_dtypes, dtype):
        raise Lacks(f"ml_dtypes has no {dtype}")
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype))
    return found


def in_numpy(dtype: str) -> np.ndarray[Any, Any]:
    return raw(dtype).view(numpy_dtype(dtype)).reshape(SHAPE)


class Library:
    """One array library.

    Attributes
    ----------
    places
        Where the library's own arrays can be: ``"cpu"``, ``"gpu"``.
    """

    name: str
    places: tuple[str, ...] = ("gpu",)
    writes = True

    def __init__(self) -> None:
        if self.name != "stand-in":
            importlib.import_module(self.name)

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of memory that the library uses in place."""
        return tuple(kind for kind in KINDS if kind not in ON_CPU or kind == "pinned")

    def make(self, dtype: str, place: str) -> Any:
        """Make an array of the test values that is in no lease."""
        raise NotImplementedError

    def transposed(self, array: Any) -> Any:
        """Return a view whose elements do not lie in C order."""
        return array.T

    def take(self, lease: Any) -> Any:
        """Make an array in a lease's memory, as docs/arrays.md says."""
        raise NotImplementedError

    def host(self, array: Any, dtype: str) -> np.ndarray[Any, Any]:
        """Copy an array to the CPU, as the library's users do."""
        raise NotImplementedError

    def bits(self, array: Any, dtype: str) -> bytes:
        """Return the bytes of the elements in C order, also of memory that the library cannot copy to the CPU."""
        return self.host(array, dtype).tobytes()

    def assign(self, array: Any, source: Any) -> None:
        """Write the elements of `source` into `array`, which is in a lease."""
        raise Lacks("arrays of this library cannot be written")

    def stream(self) -> Any:
        return None

    def meaningless(self) -> Iterator[tuple[str, Any]]:
        """Make arrays whose memory alone does not say what the elements are: every way in must refuse them."""
        yield from ()

    def tasks(self) -> dict[str, Callable[[Any, Any], Any]]:
        """Return what users do with an array in a lease. A task gets the array and an expected array of NumPy."""
        return {}


class NumPy(Library):
    name = "numpy"
    places = ("cpu",)

    def kinds(self) -> tuple[str, ...]:
        return ON_CPU

    def make(self, dtype: str, place: str) -> Any:
        return in_numpy(dtype).copy()

    def take(self, lease: Any) -> Any:
        if lease.dtype_name in BEYOND_NUMPY:
            raise Lacks(f"NumPy has no {lease.dtype_name}")
        return np.from_dlpack(lease)

    def host(self, array: Any, dtype: str) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(array)

    def assign(self, array: Any, source: Any) -> None:
        array[...] = source

    def meaningless(self) -> Iterator[tuple[str, Any]]:
        yield "mask", np.ma.array(np.ones(SHAPE, "f4"), mask=np.arange(6).reshape(SHAPE) == 2)
        yield (
            "mask of a part",
            np.ma.array(np.ones((2, 6), "f4"), mask=np.array([[0, 0, 1, 0, 0, 0]] * 2, bool))[:, ::2],
        )

        class OnlyInterface:
            memory = np.ones(SHAPE, "f4")
            __array_interface__ = memory.__array_interface__ | {"mask": memory > 0}

        class OnlyArray:  # such as a variable of netCDF4
            def __array__(self, *_: Any, **__: Any) -> Any:
                return np.ma.array(np.ones(SHAPE, "f4"), mask=np.arange(6).reshape(SHAPE) == 2)

        yield "mask of the interface", OnlyInterface()
        yield "mask of what it makes", OnlyArray()

    def tasks(self) -> dict[str, Callable[[Any, Any], Any]]:
        def torch_too(array: Any, expected: Any) -> None:
            torch = other("torch")
            if array.flags.writeable:
                assert torch.from_numpy(array).tolist() == expected.tolist()

        def written(array: Any, expected: Any) -> None:
            if array.flags.writeable:
                array[...] = expected
                same(array, expected)

        return {
            "print": lambda array, expected: same(str(array), str(expected)),
            "one element": lambda array, expected: same(float(array[1, 2]), float(expected[1, 2])),
            "copy to the CPU": lambda array, expected: same(array.copy(), expected),
            "write": written,
            "arithmetic": lambda array, expected: same(array * 2 + 1, expected * 2 + 1),
            "slice": lambda array, expected: same(array[:, 1:], expected[:, 1:]),
            "contiguous": lambda array, expected: same(np.ascontiguousarray(array.T), expected.T),
            "sum": lambda array, expected: same(float(array.sum()), float(expected.sum())),
            "to PyTorch": torch_too,
        }


class Torch(Library):
    name = "torch"

    def __init__(self) -> None:
        super().__init__()
        import torch

        self.torch = torch
        self.on_gpu = torch.cuda.is_available()
        self.places = ("cpu", "gpu") if self.on_gpu else ("cpu",)

    def kinds(self) -> tuple[str, ...]:
        return KINDS if self.on_gpu else ON_CPU

    def make(self, dtype: str, place: str) -> Any:
        known = getattr(self.torch, dtype, None)
        if known is None:
            raise Lacks(f"this PyTorch has no {dtype}")
        tensor = self.torch.from_numpy(raw(dtype).copy()).view(known).reshape(SHAPE)
        return tensor.cuda() if place == "gpu" else tensor

    def take(self, lease: Any) -> Any:
        return self.torch.from_dlpack(lease)

    def host(self, array: Any, dtype: str) -> np.ndarray[Any, Any]:
        tensor = array.detach().cpu().contiguous()
        signed = getattr(self.torch, f"int{8 * tensor.element_size()}", None)
        bits = self.torch.view_as_real(tensor) if tensor.is_complex() else tensor.view(signed)
        found: np.ndarray[Any, Any] = bits.numpy()
        return found.view(ELEMENT_TYPES[dtype].typestr).reshape(tuple(array.shape))

    def assign(self, array: Any, source: Any) -> None:
        array.copy_(source)

    def stream(self) -> Any:
        return self.torch.cuda.current_stream() if self.on_gpu else None

    def meaningless(self) -> Iterator[tuple[str, Any]]:
        for place in self.places:
            device = "cuda" if place == "gpu" else "cpu"
            numbers = self.torch.full(SHAPE, 1 + 2j, dtype=self.torch.complex64, device=device)
            yield f"negative, {place}", numbers.conj().imag
            yield f"conjugate, {place}", numbers.conj()
            yield f"gradient, {place}", self.torch.ones(SHAPE, device=device, requires_grad=True)

    def tasks(self) -> dict[str, Callable[[Any, Any], Any]]:
        torch = self.torch

        def host(tensor: Any) -> Any:
            return tensor.cpu().numpy()

        def in_another_stream(array: Any, expected: Any) -> None:
            if not self.on_gpu:
                raise Lacks("this PyTorch sees no GPU")
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                result = array.to("cuda", non_blocking=True) + 1
            stream.synchronize()
            same(host(result), expected + 1)

        def to_gpu(array: Any, expected: Any) -> None:
            if not self.on_gpu:
                raise Lacks("this PyTorch sees no GPU")
            same(host(array.cuda()), expected)

        def back(array: Any, expected: Any) -> None:
            array.copy_(array.clone().zero_())
            same(host(array), expected * 0)
            array.copy_(torch.from_numpy(expected.copy()))
            same(host(array), expected)

        def cupy_too(array: Any, expected: Any) -> None:
            cupy = other("cupy")
            if not array.is_cuda:
                raise Lacks("CuPy takes no arrays of the CPU")
            same(cupy.asnumpy(cupy.from_dlpack(array)), expected)

        def jax_too(array: Any, expected: Any) -> None:
            if array.__dlpack_device__()[0] == _dlpack.CUDA_HOST:
                raise Lacks("JAX refuses memory of which PyTorch says that it is pinned")
            jax = other("jax")
            jax.devices()  # JAX's start leaves the last GPU current, and PyTorch then exports no tensor of another
            with torch.cuda.device(array.device) if array.is_cuda else contextlib.nullcontext():
                same(np.asarray(jax.dlpack.from_dlpack(array)), expected)

        return {
            "print": lambda array, expected: same("5" in repr(array), True),
            "one element": lambda array, expected: same(float(array[1, 2]), float(expected[1, 2])),
            "item": lambda array, expected: same(array[1, 2].item(), expected[1, 2].item()),
            "tolist": lambda array, expected: same(array.tolist(), expected.tolist()),
            "copy to the CPU": lambda array, expected: same(host(array), expected),
            "copy to a GPU": to_gpu,
            "clone": lambda array, expected: same(host(array.clone()), expected),
            "write": back,
            "fill": lambda array, expected: same(host(array.fill_(7)), expected * 0 + 7),
            "arithmetic": lambda array, expected: same(host(array * 2 + 1), expected * 2 + 1),
            "sum": lambda array, expected: same(float(array.sum()), float(expected.sum())),
            "slice": lambda array, expected: same(host(array[:, 1:]), expected[:, 1:]),
            "contiguous": lambda array, expected: same(host(array.T.contiguous()), expected.T),
            "another type": lambda array, expected: same(host(array.to(torch.float64)), expected.astype("f8")),
            "in another stream": in_another_stream,
            "to NumPy": lambda array, expected: same(
                np.from_dlpack(array) if not array.is_cuda else host(array), expected
            ),
            "to CuPy": cupy_too,
            "to JAX": jax_too,
        }


class CuPy(Library):
    name = "cupy"

    def __init__(self) -> None:
        super().__init__()
        import cupy

        self.cupy = cupy

    def make(self, dtype: str, place: str) -> Any:
        array = in_numpy(dtype)
        try:
            return self.cupy.asarray(array)
        except Exception as error:
            raise Lacks(f"this CuPy has no {dtype}: {error}") from error

    def take(self, lease: Any) -> Any:
        try:
            return self.cupy.from_dlpack(lease.view(device="cuda"))
        except (NotImplementedError, TypeError, ValueError, ImportError) as error:
            if lease.dtype_name not in BEYOND_NUMPY:
                raise
            raise Lacks(f"this CuPy has no {lease.dtype_name}: {error}") from error

    def host(self, array: Any, dtype: str) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.cupy.asnumpy(array)
        return found

    def bits(self, array: Any, dtype: str) -> bytes:
        plain = array if array.itemsize == 16 else array.view(f"u{array.itemsize}")
        same_kernel = self.cupy.ElementwiseKernel("T x", "T y", "y = x", "same")
        return bytes(self.cupy.asnumpy(same_kernel(plain)).tobytes())

    def assign(self, array: Any, source: Any) -> None:
        if array.dtype.kind == "V":
            raise Lacks("CuPy writes no bfloat16")
        self.cupy.ElementwiseKernel("T x", "T y", "y = x", "same")(source, array)

    def stream(self) -> Any:
        return self.cupy.cuda.get_current_stream()

    def tasks(self) -> dict[str, Callable[[Any, Any], Any]]:
        cupy = self.cupy

        def in_another_stream(array: Any, expected: Any) -> None:
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                result = array + 1
            stream.synchronize()
            same(result.get(), expected + 1)

        def torch_too(array: Any, expected: Any) -> None:
            same(other("torch").from_dlpack(array).cpu().numpy(), expected)

        def jax_too(array: Any, expected: Any) -> None:
            same(np.asarray(other("jax").dlpack.from_dlpack(array)), expected)

        def fill(array: Any, expected: Any) -> None:
            array.fill(7)
            same((array + 0).get(), expected * 0 + 7)

        def back(array: Any, expected: Any) -> None:
            array.set(np.zeros_like(expected))
            same(cupy.asnumpy(array), expected * 0)
            array.set(expected)
            same(cupy.asnumpy(array), expected)

        return {
            "print": lambda array, expected: same("5" in repr(array), True),
            "one element": lambda array, expected: same(float(array[1, 2]), float(expected[1, 2])),
            "copy to the CPU": lambda array, expected: same(cupy.asnumpy(array), expected),
            "copy": lambda array, expected: same(array.copy().get(), expected),
            "write": back,
            "fill": fill,
            "arithmetic": lambda array, expected: same((array * 2 + 1).get(), expected * 2 + 1),
            "sum": lambda array, expected: same(float(array.sum()), float(expected.sum())),
            "slice": lambda array, expected: same((array[:, 1:] + 0).get(), expected[:, 1:]),
            "contiguous": lambda array, expected: same(cupy.ascontiguousarray(array.T).get(), expected.T),
            "another type": lambda array, expected: same(array.astype("f8").get(), expected.astype("f8")),
            "in another stream": in_another_stream,
            "to PyTorch": torch_too,
            "to JAX": jax_too,
        }


class Jax(Library):
    name = "jax"

    def __init__(self) -> None:
        super().__init__()
        import jax

        self.jax = jax
        jax.config.update("jax_enable_x64", True)
        self.gpus = [device for device in jax.devices() if device.platform != "cpu"]
        self.places = ("cpu", "gpu") if self.gpus else ("cpu",)

    def kinds(self) -> tuple[str, ...]:
        return KINDS if self.gpus else ON_CPU

    def make(self, dtype: str, place: str) -> Any:
        device = self.gpus[0] if place == "gpu" else self.jax.devices("cpu")[0]
        return self.jax.device_put(in_numpy(dtype), device).block_until_ready()

    def take(self, lease: Any) -> Any:
        return self.jax.dlpack.from_dlpack(lease.view(legacy=lease.readonly))

    def host(self, array: Any, dtype: str) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def tasks(self) -> dict[str, Callable[[Any, Any], Any]]:
        jnp = self.jax.numpy

        def torch_too(array: Any, expected: Any) -> None:
            same(other("torch").from_dlpack(array).cpu().numpy(), expected)

        def to_gpu(array: Any, expected: Any) -> None:
            if not self.gpus:
                raise Lacks("this JAX sees no GPU")
            same(np.asarray(self.jax.device_put(array, self.gpus[0])), expected)

        return {
            "print": lambda array, expected: same("5" in repr(array), True),
            "one element": lambda array, expected: same(float(array[1, 2]), float(expected[1, 2])),
            "copy to the CPU": lambda array, expected: same(np.asarray(array), expected),
            "copy to a GPU": to_gpu,
            "copy": lambda array, expected: same(np.asarray(jnp.array(array, copy=True)), expected),
            "arithmetic": lambda array, expected: same(np.asarray(array * 2 + 1), expected * 2 + 1),
            "sum": lambda array, expected: same(float(array.sum()), float(expected.sum())),
            "slice": lambda array, expected: same(np.asarray(array[:, 1:]), expected[:, 1:]),
            "contiguous": lambda array, expected: same(np.asarray(jnp.transpose(array)), expected.T),
            "another type": lambda array, expected: same(np.asarray(array.astype("float64")), expected.astype("f8")),
            "to PyTorch": torch_too,
        }


class Numba(Library):
    name = "numba"

    def __init__(self) -> None:
        super().__init__()
        from numba import cuda

        self.cuda = cuda

    def make(self, dtype: str, place: str) -> Any:
        if dtype in BEYOND_NUMPY or dtype in REFUSED:
            raise Lacks(f"Numba has no {dtype}")
        return self.cuda.to_device(in_numpy(dtype))

    def transposed(self, array: Any) -> Any:
        raise Lacks("Numba transposes by a copy")

    def take(self, lease: Any) -> Any:
        if lease.dtype_name in BEYOND_NUMPY:
            raise Lacks(f"Numba has no {lease.dtype_name}")
        return self.cuda.as_cuda_array(lease.view(device="cuda"))

    def host(self, array: Any, dtype: str) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = array.copy_to_host()
        return found

    def assign(self, array: Any, source: Any) -> None:
        array.copy_to_device(source)

    def stream(self) -> Any:
        return 1

    def tasks(self) -> dict[str, Callable[[Any, Any], Any]]:
        def back(array: Any, expected: Any) -> None:
            array.copy_to_device(np.zeros_like(expected))
            same(array.copy_to_host(), expected * 0)
            array.copy_to_device(expected)
            same(array.copy_to_host(), expected)

        return {
            "print": lambda array, expected: repr(array),
            "one element": lambda array, expected: same(float(array[1, 2]), float(expected[1, 2])),
            "copy to the CPU": lambda array, expected: same(array.copy_to_host(), expected),
            "write": back,
            "slice": lambda array, expected: same(array[1].copy_to_host(), expected[1]),
            "to NumPy": lambda array, expected: same(np.asarray(array.copy_to_host()), expected),
        }


class CudaCore(Library):
    name = "cuda.core"

    def make(self, dtype: str, place: str) -> Any:
        raise Lacks("cuda.core has no arrays")

    def take(self, lease: Any) -> Any:
        from cuda.core.utils import StridedMemoryView

        return StridedMemoryView.from_dlpack(lease.view(device="cuda"), stream_ptr=1)

    def host(self, array: Any, dtype: str) -> np.ndarray[Any, Any]:
        out = np.empty(tuple(array.shape), ELEMENT_TYPES[dtype].typestr)
        _cuda.copy_to_host(array.device_id, out, array.ptr)
        return out


class StandIn(Library):
    """Arrays on a GPU that describe themselves as PyTorch's do, without PyTorch: also on the simulated driver."""

    name = "stand-in"
    # PyTorch 2.5 said that bfloat16 was float16. CuPy does not export bfloat16 by DLPack.
    places = ("gpu", "gpu of PyTorch 2.5", "gpu of CuPy")

    class Array:
        """An array with DLPack, and with the `__cuda_array_interface__` of some versions of PyTorch."""

        def __init__(self, dtype: str, typestr: str | None = None) -> None:
            self.dtype, self.shape = dtype, SHAPE
            self.element = ELEMENT_TYPES.get(dtype) or ElementType(dtype, 1, "|u1", 9, 8)
            self.memory = _cuda.Allocation(0, 128)
            self.typestr = typestr
            self.mask: Any = None
            self.exports = True
            _cuda.copy_from_host(0, self.memory.address, raw(dtype))

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, *, stream: Any = None, max_version: Any = None, **given: Any) -> Any:
            if not self.exports:
                raise BufferError("dtype is not supported for dlpack export")
            strides = c_strides(SHAPE, self.element.itemsize)
            owner = _Memory(self.memory, self.element.typestr, strides)
            return _dlpack.make_capsule(np.asarray(owner), self.element, (2, 0), versioned=max_version is not None)

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            if self.dtype.startswith(("float8", "float4")):
                raise KeyError(self.dtype)  # as PyTorch does
            data = (self.memory.address, False)
            found = {"version": 2, "shape": SHAPE, "strides": None, "data": data}
            typestr = self.typestr or ("<V2" if self.dtype == "bfloat16" else np.dtype(self.dtype).str)
            return found | {"typestr": typestr} | ({} if self.mask is None else {"mask": self.mask})

    def make(self, dtype: str, place: str) -> Any:
        array = self.Array(dtype, "<f2" if dtype == "bfloat16" and place == "gpu of PyTorch 2.5" else None)
        array.exports = dtype != "bfloat16" or place != "gpu of CuPy"
        return array

    def transposed(self, array: Any) -> Any:
        raise Lacks("the stand-in has one layout")

    def take(self, lease: Any) -> Any:
        raise Lacks("the stand-in takes nothing")

    def meaningless(self) -> Iterator[tuple[str, Any]]:
        class OnlyInterface:
            def __init__(self, array: Any) -> None:
                self.array = array
                self.__cuda_array_interface__ = array.__cuda_array_interface__ | {"mask": array}

        yield "mask of the interface", OnlyInterface(self.Array("float32"))


class _Memory:
    def __init__(self, memory: Any, typestr: str, strides: tuple[int, ...]) -> None:
        self.memory = memory
        data = (memory.address, False)
        self.__array_interface__ = {"version": 3, "shape": SHAPE, "typestr": typestr, "strides": strides, "data": data}


LIBRARIES = {one.name: one for one in (NumPy, Torch, CuPy, Jax, Numba, CudaCore, StandIn)}


def other(name: str) -> Any:
    """Import another library, to which a task passes its array."""
    try:
        module = importlib.import_module(name)
        if name == "jax":
            module.devices()
    except ImportError:
        raise Lacks(f"{name} is not installed") from None
    except RuntimeError as error:
        raise Lacks(f"{name} does not start beside another library: {error}") from None
    gc.freeze()  # so that the garbage collector skips the objects of the library
    return module


def same(found: Any, expected: Any) -> None:
    """Check that two values are the same, or two arrays in type, shape and elements."""
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), (found.dtype, found.shape)
        assert np.array_equal(found, expected), f"{found.tolist()} instead of {expected.tolist()}"
    else:
        assert found == expected, f"{found!r} instead of {expected!r}"


# Ways in: each makes, of an array, a read lease with the same elements


class World:
    """The clients, and a pool and a channel of each kind."""

    def __init__(self, socket: str) -> None:
        os.environ["POOLBRIDGE_SOCKET"] = socket
        self.client = poolbridge.connect(socket, timeout=SECONDS, wait=SECONDS)
        self.kinds: list[str] = []
        self.channels: dict[str, Any] = {}
        self.subscriptions: dict[str, Any] = {}
        self.numbers = itertools.count()

    def make_pool(self, kind: Any) -> None:
        self.client.create_pool(kind, kind=kind, max_bytes=1 << 27, exist_ok=True)
        self.channels[kind] = self.client.create_channel(f"matrix-{os.getpid()}-{kind}", pool=kind)
        self.subscriptions[kind] = self.client.subscribe(self.channels[kind])
        self.kinds.append(kind)

    def drain(self) -> None:
        """Receive the frames that a failed cell has left in the channels."""
        for frames in self.subscriptions.values():
            with contextlib.suppress(Exception):
                while (frame := frames.receive(0)) is not None:
                    frame.release()

    def put(self, library: Library, array: Any, dtype: str, kind: str) -> Any:
        name = f"put-{next(self.numbers)}"
        made = self.client.put(array, name, pool=kind, timeout=SECONDS)
        try:
            if library.name in {"numpy", "torch", "jax", "cupy"} and kind in library.kinds():
                found: Any = self.client.get_array(name, library.name, timeout=SECONDS)  # type: ignore[call-overload]
                plain = library.name != "numpy" or (dtype not in BEYOND_NUMPY and kind in ON_CPU)
                if plain and dtype in ELEMENT_TYPES and not (library.name == "cupy" and dtype in BEYOND_NUMPY):
                    assert library.bits(found, dtype) == elements(array, library, dtype), "by get(library=)"
        finally:
            self.client.unpublish(name)
        return made

    def copy_from(self, library: Library, array: Any, dtype: str, kind: str) -> Any:
        lease = self.client.allocate(tuple(array.shape), dtype if dtype in ELEMENT_TYPES else "float32", pool=kind)
        try:
            lease.copy_from(array)
        except BaseException:
            lease.release(force=True)
            raise
        return lease

    def publish(self, library: Library, array: Any, dtype: str, kind: str) -> Any:
        self.channels[kind].publish(array, timeout=SECONDS)
        return self.subscriptions[kind].receive(SECONDS)

    def in_place(self, library: Library, array: Any, dtype: str, kind: str) -> Any:
        if kind not in library.kinds() or dtype in REFUSED:
            raise Lacks(f"{library.name} does not use such memory in place")
        lease = self.client.allocate(tuple(array.shape), dtype, pool=kind)
        try:
            lease.copy_from(array)
            taken = library.take(lease)
            buffer = lease.buffer_id
            self.channels[kind].publish(taken, timeout=SECONDS)
        except BaseException:
            lease.release(force=True)
            raise
        frame = self.subscriptions[kind].receive(SECONDS)
        assert frame.buffer_id == buffer, "a copy instead of the array in place"
        return frame

    def publisher(self, library: Library, array: Any, dtype: str, kind: str) -> Any:
        if kind not in library.kinds() or dtype not in ELEMENT_TYPES:
            raise Lacks(f"{library.name} does not use such memory in place")
        if not library.writes:
            raise Lacks(f"{library.name} writes no arrays")
        on_gpu = kind not in ON_CPU or (kind == "pinned" and library.name == "cupy")
        if kind == "pinned" and library.name == "numba":
            raise Lacks("Numba cannot copy into such memory")
        stream = library.stream() if on_gpu else None
        if on_gpu and stream is None:
            raise Lacks("this library names no stream")
        with self.channels[kind].publisher(tuple(array.shape), dtype, wrap=library.take) as publisher:
            library.assign(publisher.loan(SECONDS, stream=stream), array)
            publisher.publish(timeout=SECONDS)
        return self.subscriptions[kind].receive(SECONDS)

    def ray(self, library: Library, array: Any, dtype: str, kind: str) -> Any:
        from raytransport import made

        if library.name not in {"numpy", "torch", "jax", "cupy"}:
            raise Lacks("poolbridge.ray passes no arrays of this library")
        place = "gpu" if kind not in ON_CPU else "cpu"
        if place != where(array, library) or kind not in library.kinds():
            raise Lacks("poolbridge.ray needs a pool of the array's device")
        if library.name == "numpy" and dtype in BEYOND_NUMPY:
            raise Lacks(f"Ray's receiver gets NumPy arrays, and NumPy has no {dtype}")
        transport = made(library=library.name, pool=kind, timeout=SECONDS)
        name = f"object-{next(self.numbers)}"
        metadata = transport.extract_tensor_transport_metadata(name, [array])
        try:
            (found,) = transport.recv_multiple_tensors(name, metadata, None)
            assert library.bits(found, dtype) == elements(array, library, dtype), "received by Ray"
            shared: Any = metadata.arrays[0]
            return self.client.lease(shared.buffer, shared.generation, timeout=SECONDS)
        finally:
            transport.garbage_collect(name, metadata, [])

    def dask(self, library: Library, array: Any, dtype: str, kind: str) -> Any:
        try:
            from poolbridge.dask import _link
            from poolbridge.dask._counts import Counts
        except ImportError:
            raise Lacks("distributed is not installed") from None
        if library.name not in {"numpy", "torch", "jax", "cupy"} or kind not in library.kinds() or dtype in REFUSED:
            raise Lacks("poolbridge.dask passes no such arrays")
        options = _link.Options(kind, self.client.path, False, None, kind, 1, SECONDS)  # type: ignore[arg-type]
        sender, receiver = (_link.Link(options, Counts(lambda _: None), lambda: None, lambda _: None) for _ in "12")
        try:
            lease = sender.client().allocate(tuple(array.shape), dtype, pool=kind)
            lease.copy_from(array)
            given = library.take(lease)
            described = sender.describe(given, library.name, receiver.says)
            assert isinstance(described, dict), described
            found = receiver.take(described)
            assert library.bits(found, dtype) == elements(array, library, dtype), "received by Dask"
            return self.client.lease(described["buffer"], described["generation"], timeout=SECONDS)
        finally:
            given = found = lease = None  # type: ignore[assignment]
            receiver.close()
            sender.close()


def where(array: Any, library: Library) -> str:
    if library.name == "torch":
        return "gpu" if array.is_cuda else "cpu"
    if library.name == "jax":
        return "cpu" if array.devices().pop().platform == "cpu" else "gpu"
    return "cpu" if isinstance(array, np.ndarray) else "gpu"


def elements(array: Any, library: Library, dtype: str) -> bytes:
    """Return the bytes of the test values in the layout of `array`."""
    bits = raw(dtype).view(ELEMENT_TYPES[dtype].typestr).reshape(SHAPE)
    return (bits.T if tuple(array.shape) != SHAPE else bits).tobytes()


WAYS = ("put", "copy_from", "publish", "in_place", "publisher", "ray", "dask")


def check_out(library: Library, lease: Any, dtype: str, kind: str, expected: bytes) -> None:
    """Check what comes out of a read lease: its type, `to_numpy`, and the library's own array."""
    assert lease.dtype_name == dtype, f"came out as {lease.dtype_name}"
    bits = np.frombuffer(expected, ELEMENT_TYPES[dtype].typestr).reshape(lease.shape)
    if ELEMENT_TYPES[dtype].packed:
        same(lease.view(dtype="uint8").to_numpy(), bits)
    else:
        same(lease.to_numpy(), widen(bits, ELEMENT_TYPES[dtype]) if dtype in BEYOND_NUMPY else bits)
    if kind in library.kinds():
        try:
            taken = library.take(lease)
        except Lacks:
            return
        try:
            found = library.bits(taken, dtype)
        except Exception as error:
            if not refused_by_driver(kind, library, error):
                raise
            return
        assert found == expected, f"{library.name} reads {found.hex()} instead of {expected.hex()}"


def refused_by_driver(kind: str, library: Library, error: Exception) -> bool:
    """Whether the driver refuses what docs/arrays.md says: copies of memory of `pinned` by CuPy and Numba."""
    import re

    return kind == "pinned" and library.name in {"cupy", "numba"} and bool(re.search(REFUSAL, str(error).lower()))


def part_in(world: World, library: Library) -> Iterator[tuple[str, Callable[[], str]]]:
    def attempt(way: str, dtype: str, kind: str, place: str, layout: str) -> str:
        array = library.make(dtype, place)
        if layout == "transposed":
            array = library.transposed(array)
        try:
            lease = getattr(world, way)(library, array, dtype, kind)
        except poolbridge.InvalidArgumentError as error:
            if dtype in REFUSED and (dtype.rpartition("_")[2] in str(error) or "float8" in str(error).lower()):
                return "refused"
            raise
        except TypeError as error:
            if library.name == "numpy" and dtype in BEYOND_NUMPY and f"NumPy has no {dtype}" in str(error):
                return "refused"
            raise
        try:
            if dtype in REFUSED:
                assert way == "copy_from", f"taken as {lease.dtype_name}"
                return "right"  # copy_from casts what NumPy can cast
            check_out(library, lease, dtype, kind, elements(array, library, dtype))
        finally:
            lease.release(force=True)
        return "right"

    for kind, place in itertools.product(world.kinds, library.places):
        for way, dtype, layout in itertools.product(WAYS, DTYPES, ("rows", "transposed")):
            cell = f"{place} -> {kind}, {way}, {dtype}, {layout}"
            yield cell, partial(attempt, way, dtype, kind, place, layout)

    def refuse(way: str, kind: str, array: Any) -> str:
        dtype = "complex64" if "complex" in str(getattr(array, "dtype", "")) else "float32"
        if not hasattr(array, "shape"):
            array.shape = SHAPE
        try:
            getattr(world, way)(library, array, dtype, kind).release(force=True)
        except poolbridge.InvalidArgumentError:
            return "refused"
        raise AssertionError("taken, although it loses its meaning")

    for kind, (name, array) in itertools.product(world.kinds, library.meaningless()):
        for way in ("put", "copy_from", "publish"):
            yield f"{name} -> {kind}, {way}", partial(refuse, way, kind, array)


def part_tasks(world: World, library: Library) -> Iterator[tuple[str, Callable[[], str]]]:
    expected = np.arange(6, dtype="f4").reshape(SHAPE)

    def attempt(name: str, kind: str, write: bool) -> str:
        lease = world.client.allocate(SHAPE, "float32", pool=kind)
        lease.copy_from(expected)
        if not write:
            lease.publish("task")
        try:
            array = library.take(lease)
            library.tasks()[name](array, expected)
        except Exception as error:
            if refused_by_driver(kind, library, error):
                return "refused by the driver"
            raise
        finally:
            array = None
            gc.collect()
            lease.release(force=True)
            if not write:
                world.client.unpublish("task")
        return "right"

    def deleted(order: tuple[str, ...], kind: str) -> str:
        lease = world.client.allocate(SHAPE, "float32", pool=kind)
        lease.copy_from(expected)
        array = library.take(lease)
        held = {"lease": lease, "array": array, "part": array[1]}
        state = lease._lease_state
        del lease, array
        for name in order:
            last = held.pop(name)
            if name == "lease" and not held:
                until(partial(no_arrays, last))
                last.release()
            del last
        gc.collect()
        if library.name == "torch" and library.on_gpu:  # type: ignore[attr-defined]
            library.torch.cuda.synchronize()  # type: ignore[attr-defined]
        until(lambda: not state.tokens)
        return "right"

    for kind in (kind for kind in world.kinds if kind in library.kinds()):
        for name in library.tasks():
            for write in (True,) if name in {"write", "fill"} else (True, False):
                yield (
                    f"{kind}, {name}, {'write' if write else 'read'} lease",
                    partial(attempt, name, kind, write),
                )
        if library.tasks():
            for order in itertools.permutations(("lease", "array", "part")):
                yield f"{kind}, delete {', '.join(order)}", partial(deleted, order, kind)


def no_arrays(lease: poolbridge.Lease) -> bool:
    return not lease.array_count


def until(condition: Callable[[], bool]) -> None:
    """Wait for the condition. JAX ends its arrays in a thread of its own, when the GPU's work is done."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "arrays are left"
        gc.collect()
        time.sleep(0.001)


def say(**what: str) -> None:
    print(json.dumps(what), flush=True)


def main(socket: str, name: str) -> None:
    warnings.simplefilter("ignore")
    world = World(socket)
    library = LIBRARIES[name]()
    gpus = 0
    try:
        gpus = len(_cuda.devices())
    except poolbridge.UnavailableError as error:
        say(about=f"this process sees no GPU: {error}")
    for kind in KINDS if gpus else ("host",):
        try:
            world.make_pool(kind)
        except poolbridge.UnavailableError as error:
            say(about=f"no memory of kind {kind}: {error}")
    gc.freeze()
    for cell, attempt in itertools.chain(part_in(world, library), part_tasks(world, library)):
        say(begin=cell)
        try:
            result, why = attempt(), ""
        except Lacks as lacking:
            result, why = "lacks", str(lacking)
        except Exception as error:  # noqa: BLE001 - the test shows it
            where_from = traceback.extract_tb(error.__traceback__)[-1]
            text = (str(error).splitlines() or [""])[0]
            world.drain()
            result, why = "wrong", f"{type(error).__name__}: {text[:300]} ({where_from.name}:{where_from.lineno})"
        say(cell=cell, result=result, why=why)
    say(about="complete")
    sys.stdout.flush()
    os._exit(0)  # libraries may crash when a process ends, after they have used a GPU together


if __name__ == "__main__":
    main(*sys.argv[1:])
