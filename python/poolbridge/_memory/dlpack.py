"""DLPack capsules of memory that NumPy does not know.

NumPy makes the capsule, over an array that points at the memory and that owns the lease's token; its own C deleter
frees it, from whatever thread, with whatever life is left in the interpreter. What NumPy cannot say is then written
into the structure: the device, ``bfloat16``, and that the data is a copy. NumPy never reads the memory behind it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, Final, NamedTuple

import numpy as np

from poolbridge._memory.tensor import ELEMENT_TYPES, ElementType, c_strides
from poolbridge._sys.errors import InvalidArgumentError

CPU: Final = 1
CUDA: Final = 2
CUDA_HOST: Final = 3

_FLAG_COPIED = 2
# Where an argument of what JAX compiles for a GPU begins, in bytes.
_JAX_ALIGNMENT = 16


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
    """What a capsule says of its tensor: strides are in bytes, and `name` is the element type's name."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    name: str


_NAMES: Final = {(element.code, element.bits): element.name for element in ELEMENT_TYPES.values()}
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype = ctypes.c_char_p
_name.argtypes = (ctypes.py_object,)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def make_capsule(
    array: np.ndarray[Any, Any],
    element: ElementType,
    device: tuple[int, int],
    *,
    versioned: bool,
    copied: bool = False,
) -> object:
    """Make a capsule of an array.

    Parameters
    ----------
    array
        Points at the memory, which may be on a device, and keeps it alive. Read-only when it is not writeable.
    element
        The element type, which NumPy may lack.
    device
        DLPack's device type and id.
    versioned
        Make a ``dltensor_versioned`` (DLPack 1.x), otherwise a legacy ``dltensor``.
    copied
        Say in a versioned capsule that the data is a copy.

    Raises
    ------
    BufferError
        A legacy capsule of a read-only array.
    """
    capsule: object = array.__dlpack__(max_version=(1, 0)) if versioned else array.__dlpack__()
    if element.in_numpy and device[0] == CPU and not copied and array.size:
        return capsule
    if versioned:
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if copied:
            managed.flags |= _FLAG_COPIED
        tensor = managed.tensor
    else:
        tensor = _Managed.from_address(_pointer(capsule, b"dltensor")).tensor
    tensor.device.type, tensor.device.id = device
    tensor.dtype.code = element.code
    if not array.size:
        tensor.data = None
    return capsule


def check_reversed(shape: Iterable[int], strides: Iterable[int]) -> None:
    """Raise if elements lie backwards and PyTorch is who asks: call it from ``__dlpack__``, before a capsule is made.

    PyTorch has no negative strides. Given a capsule that has them, it ends the process in many versions (a check in C++
    throws where nothing may be thrown), for capsules of every maker. Others take them in place.

    Raises
    ------
    BufferError
        PyTorch asks, and an axis of more than one element is reversed.
    """
    shape = tuple(shape)
    backwards = all(shape) and any(stride < 0 and n > 1 for n, stride in zip(shape, strides, strict=True))
    if backwards and asked_by("torch.utils.dlpack"):
        raise BufferError(
            "PyTorch has no negative strides, and this lease has: copy it, for example by "
            "torch.from_numpy(lease.to_numpy())"
        )


def by_cpu(dl_device: object, stream: object) -> bool:
    """Whether the consumer that calls ``__dlpack__`` knows memory of the CPU alone, as NumPy does.

    NumPy passes None as the device, and no stream. Libraries that use a GPU pass their stream, or leave the device out,
    which is ``...`` here.
    """
    return dl_device is None and stream is None


def check_aligned(address: int) -> None:
    """Raise if JAX asks for memory of a GPU that it could not use: call it from ``__dlpack__``, as `check_reversed`.

    What JAX compiles for a GPU wants arguments at a multiple of 16 bytes (XLA's ``kEntryParameterAlignBytes``). It
    makes arrays that begin elsewhere without a word, and fails when one is used.

    Raises
    ------
    BufferError
        JAX asks, and the address is not such a multiple.
    """
    if address % _JAX_ALIGNMENT and asked_by("jax._src.dlpack"):
        raise BufferError(
            f"JAX uses memory of a GPU from a multiple of {_JAX_ALIGNMENT} bytes on, and this lease begins "
            f"{address % _JAX_ALIGNMENT} bytes after one: copy it, for example by jax.numpy.asarray(lease.to_numpy())"
        )


def asked_by(module: str) -> bool:
    """Whether a function of that module called ``__dlpack__``, perhaps of an object which only passes the question on.

    Nothing that they pass tells one library from another, but ``from_dlpack`` of some is a Python function that asks by
    itself.
    """
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - CPython's, documented
    while frame is not None and frame.f_code.co_name == "__dlpack__":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == module


def look(capsule: object) -> Seen:
    """Read what a capsule says, without taking it.

    Raises
    ------
    InvalidArgumentError
        Its elements are of a type that cannot be shared.
    """
    name = _name(capsule)
    kind = _Versioned if name == b"dltensor_versioned" else _Managed
    tensor = kind.from_address(_pointer(capsule, name)).tensor
    element = _NAMES.get((tensor.dtype.code, tensor.dtype.bits))
    if element is None or tensor.dtype.lanes != 1:
        raise InvalidArgumentError(
            f"elements of DLPack type {tensor.dtype.code} with {tensor.dtype.bits} bits cannot be shared: expected one "
            f"of {', '.join(ELEMENT_TYPES)}"
        )
    extents = ctypes.c_int64 * tensor.ndim
    shape = tuple(extents.from_address(tensor.shape)) if tensor.ndim else ()
    itemsize = ELEMENT_TYPES[element].itemsize
    if tensor.strides and tensor.ndim:
        strides = tuple(stride * itemsize for stride in extents.from_address(tensor.strides))
    else:
        strides = c_strides(shape, itemsize)
    return Seen((tensor.data or 0) + tensor.byte_offset, shape, strides, element)
