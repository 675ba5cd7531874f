"""Makes DLPack capsules for memory of GPUs and for element types that NumPy lacks.

NumPy makes the capsule from an array that has the memory's address and refers to an object that keeps the memory. The
capsule's deleter comes from NumPy. The deleter is C code and can free the array in any thread, even while the
interpreter ends. NumPy cannot say in a capsule that the memory is on a GPU, has the type ``bfloat16`` or is a copy. So
`make_capsule` writes these facts into the structure of the finished capsule. NumPy never reads the memory.
`ArrayExports.__dlpack__` in ``_array/arrays.py`` exports a lease.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from poolbridge._memory.tensor import ELEMENT_TYPES, ElementType, c_strides, is_contiguous
from poolbridge.errors import (
    InvalidArgumentError,
)

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

CPU: Final = 1
CUDA: Final = 2
CUDA_HOST: Final = 3
CUDA_MANAGED: Final = 13

_FLAG_COPIED = 2
_FLAG_PADDED = 4  # an element of less than 8 bits has a byte
_FLOAT4, _FLOAT4_X2 = (17, 4, 1), (17, 4, 2)


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Seen(NamedTuple):
    """The tensor that a capsule describes. The strides are in bytes, and `name` is the name of the element type."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    name: str


_NAMES: Final = {(element.code, element.bits, element.lanes): element.name for element in ELEMENT_TYPES.values()}
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype = ctypes.c_char_p
_name.argtypes = (ctypes.py_object,)
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype = ctypes.c_void_p
pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def make_capsule(
    array: np.ndarray[Any, Any],
    element: ElementType,
    device: tuple[int, int],
    *,
    versioned: bool,
    copied: bool = False,
) -> CapsuleType:
    """Make a DLPack capsule of `array`.

    Parameters
    ----------
    array
        An array that has the memory's address and keeps the memory alive. The memory may be on a device. If the array
        is not writeable, the capsule is read-only.
    element
        The element type of the memory. NumPy may lack this type.
    device
        DLPack's device type and id.
    versioned
        True: make a ``dltensor_versioned`` (DLPack 1.x). False: make a legacy ``dltensor``.
    copied
        True: set the flag "the data is a copy". Only a versioned capsule has this flag.

    Raises
    ------
    BufferError
        The array is read-only, and the capsule is a legacy capsule.
    """
    capsule = array.__dlpack__(max_version=(1, 0)) if versioned else array.__dlpack__()
    if element.in_numpy and device[0] == CPU and not copied and array.size:
        return capsule
    if versioned:
        managed = _Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
        if copied:
            managed.flags |= _FLAG_COPIED
        tensor = managed.tensor
    else:
        tensor = _Managed.from_address(pointer(capsule, b"dltensor")).tensor
    tensor.device.type, tensor.device.id = device
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = element.code, element.bits, element.lanes
    if not array.size:
        tensor.data = None
    return capsule


def check_reversed(shape: Iterable[int], strides: Iterable[int]) -> None:
    """Raise an error if an axis of more than one element has a negative stride.

    PyTorch and JAX do not support negative strides. Many versions of PyTorch end the process when they get a capsule
    with negative strides: a check in PyTorch's C++ code throws an exception in a function that must not throw.
    `check_reversed` refuses such capsules for these libraries and all others, because a call of ``__dlpack__`` does
    not say which library makes the call. If `by_cpu` returns True, the caller need not call `check_reversed`.

    Raises
    ------
    BufferError
        An axis of more than one element has a negative stride.
    """
    shape = tuple(shape)
    if all(shape) and any(stride < 0 and n > 1 for n, stride in zip(shape, strides, strict=True)):
        raise BufferError(
            "this lease has negative strides, which PyTorch and JAX lack, and DLPack does not say which library asks: "
            "copy it by lease.to_numpy(), or take it in place by numpy.asarray(lease) or cupy.asarray(lease)"
        )


def by_cpu(dl_device: object, stream: object) -> bool:
    """Whether the library that calls ``__dlpack__`` uses memory of the CPU only, as NumPy does.

    NumPy passes None as `dl_device`, and passes no stream. A library that uses a GPU passes its stream, or does not
    pass `dl_device`. If the library does not pass `dl_device`, its value is ``...``.
    """
    return dl_device is None and stream is None


def read_tensor(capsule: object, dtype: object = None) -> Seen:
    """Read the tensor of a capsule without consuming the capsule. `dtype` names the element type in the error.

    JAX's elements of ``float4_e2m1fn`` have half a byte each: two of the last axis become one ``float4_e2m1fn_x2``.

    Raises
    ------
    InvalidArgumentError
        The object is no capsule, or a library has used the capsule, so that its tensor may be freed. Or poolbridge's
        protocol does not have the element type.
    """
    try:
        name = _name(capsule)
    except ValueError:
        name = b""
    if name not in {b"dltensor", b"dltensor_versioned"}:
        used = name in {b"used_dltensor", b"used_dltensor_versioned"}
        what = "a DLPack capsule that was used before" if used else "no DLPack capsule"
        raise InvalidArgumentError(f"the array's __dlpack__ returned {what}: it must make a new capsule for each call")
    kind = _Versioned if name == b"dltensor_versioned" else _Managed
    managed = kind.from_address(pointer(capsule, name))
    tensor = managed.tensor
    extents = ctypes.c_int64 * tensor.ndim
    shape = tuple(extents.from_address(tensor.shape)) if tensor.ndim else ()
    steps = tuple(extents.from_address(tensor.strides)) if tensor.strides and tensor.ndim else c_strides(shape, 1)
    listed = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    if listed == _FLOAT4:
        padded = kind is _Versioned and managed.flags & _FLAG_PADDED
        if padded or not shape or shape[-1] % 2 or not is_contiguous(shape, steps, 1):
            raise InvalidArgumentError(
                "two elements of float4_e2m1fn become one of float4_e2m1fn_x2: expected an even last axis, and packed "
                f"elements in C order; the array has shape {shape}; or share its bytes as uint8"
            )
        listed, shape = _FLOAT4_X2, (*shape[:-1], shape[-1] // 2)
        steps = c_strides(shape, 1)
    element = _NAMES.get(listed)
    if element is None:
        shown_type = f"DLPack type {listed[0]} with {listed[1]} bits" if dtype is None else f"dtype {dtype}"
        raise InvalidArgumentError(
            f"elements of {shown_type} cannot be shared: expected one of {', '.join(ELEMENT_TYPES)}; or share their "
            "bytes as uint8"
        )
    strides = tuple(step * ELEMENT_TYPES[element].itemsize for step in steps)
    return Seen((tensor.data or 0) + tensor.byte_offset, shape, strides, element)
