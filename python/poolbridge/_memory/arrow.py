"""Makes and reads capsules of Arrow's C data interface.

The native module completes the capsules, because libraries release the structures in any thread, even while the
interpreter ends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from poolbridge._memory import dlpack as _dlpack
from poolbridge._memory.tensor import Description
from poolbridge._sys.native import NATIVE
from poolbridge.errors import UnavailableError

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

_SCHEMA, _ARRAY, _DEVICE_ARRAY = 0, 1, 2
_NULLABLE: Final = 2  # the usual flag, also of arrays without nulls
_NAMES: Final = {
    **dict(zip("csilCSIL", ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), strict=True)),
    **dict(zip("efg", ("float16", "float32", "float64"), strict=True)),
}
_FORMATS: Final = {name: code for code, name in _NAMES.items()}


class _Schema(ctypes.Structure):
    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("children", "dictionary", "release", "keeper")),
    )


class _Array(ctypes.Structure):
    """An ``ArrowDeviceArray``. Its fields before `device_id` are those of an ``ArrowArray``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("length", "nulls", "offset", "n_buffers", "n_children")),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        *((name, ctypes.c_void_p) for name in ("children", "dictionary", "release", "keeper")),
        ("device_id", ctypes.c_int64),
        ("device_type", ctypes.c_int32),
        ("sync_event", ctypes.c_void_p),
        ("reserved", ctypes.c_int64 * 3),
    )


def make_capsules(
    described: Description, address: int, owner: object, device: tuple[int, int] | None
) -> tuple[CapsuleType, CapsuleType]:
    """Make the capsules of an array, or of a record batch of several arrays, in the buffer at `address`.

    `owner` lives until the library has released the array and all its parts. `device` is DLPack's device type and id
    for ``__arrow_c_device_array__``, or None for ``__arrow_c_array__``.

    Raises
    ------
    BufferError, UnavailableError
        See `ArrayExports.__arrow_c_array__`.
    """
    if NATIVE is None:
        raise UnavailableError("Arrow needs poolbridge's native module, which is missing: copy it by lease.to_numpy()")
    parts = [*described.named.items()] or [("", described)]
    codes = [_code(name, part) for name, part in parts]
    lengths = {name: part.size for name, part in parts}
    if len(set(lengths.values())) > 1:
        raise BufferError(f"arrays of a record batch are equally long: export one of these, of lengths {lengths}")
    array = _Array() if device is None else _Array(device_type=device[0], device_id=device[1])
    array.length = parts[0][1].size
    kind = _ARRAY if device is None else _DEVICE_ARRAY
    at = [address + part.offset for _, part in parts]
    if not described.named:
        return _schema(codes[0], ""), _array(kind, array, owner, (None, at[0]))
    schemas = [_schema(code, name) for code, name in zip(codes, lengths, strict=True)]
    columns = [_array(_ARRAY, _Array(length=array.length), owner, (None, one)) for one in at]
    return _schema("+s", "", schemas), _array(kind, array, owner, (None,), columns)


def _code(name: str, part: Description) -> str:
    """Return Arrow's format of an array, or raise a `BufferError`."""
    element, of = part.element, f"array {name!r}" if name else "this lease"
    if element.name not in _FORMATS:
        lacks = "has bools as bits" if element.name == "bool" else f"has no {element.name}"
        bits = f', or export its bits, by view(dtype="uint{8 * element.itemsize}")' if element.itemsize <= 2 else ""
        raise BufferError(
            f"Arrow {lacks}: {of} cannot be exported in place: copy it, as by pyarrow.array(lease.to_numpy()){bits}"
        )
    if len(part.shape) != 1 or not part.contiguous:
        raise BufferError(
            f"an Arrow array has one axis and no gaps, and {of} is {part.text} with strides {part.strides}: copy it, "
            "as by pyarrow.array(lease.to_numpy().ravel())"
        )
    return _FORMATS[element.name]


def _schema(code: str, name: str, children: Sequence[CapsuleType] = ()) -> CapsuleType:
    return _capsule(_SCHEMA, _Schema(code.encode(), name.encode(), flags=_NULLABLE), children)


def _array(
    kind: int, array: _Array, owner: object, buffers: tuple[int | None, ...], children: Sequence[CapsuleType] = ()
) -> CapsuleType:
    array.n_buffers, array.buffers = len(buffers), (ctypes.c_void_p * len(buffers))(*buffers)
    return _capsule(kind, array, children, owner)


def _capsule(kind: int, structure: Any, children: Sequence[CapsuleType], *owner: object) -> CapsuleType:
    name = b"arrow_array" if kind else b"arrow_schema"
    pointers = (ctypes.c_void_p * (len(children) or 1))(*[_dlpack.pointer(child, name) for child in children])
    structure.n_children, structure.children = len(children), ctypes.addressof(pointers)
    keeper = structure, pointers, children, owner
    capsule: CapsuleType = NATIVE.arrow_capsule(kind, ctypes.addressof(structure), structure, keeper)
    return capsule


def read_array(capsules: tuple[object, object]) -> _dlpack.Seen | np.ndarray[Any, Any]:
    """Read the array of the capsules that ``__arrow_c_array__`` returned, which own its memory. Copy bools.

    Raises
    ------
    ValueError
        The capsules are not as they must be, or the array is not one that poolbridge can copy.
    """
    schema = _Schema.from_address(_dlpack.pointer(capsules[0], b"arrow_schema"))
    array = _Array.from_address(_dlpack.pointer(capsules[1], b"arrow_array"))
    if not (schema.release and array.release):
        raise ValueError("its Arrow capsules were used before: __arrow_c_array__ must make new ones for each call")
    code = schema.format.decode()
    if (code != "b" and code not in _NAMES) or schema.dictionary:
        what = "a dictionary" if schema.dictionary else f"of Arrow's format {code!r}"
        expected = f"expected an array of bool, {', '.join(_FORMATS)}; cast it, or pass a dict of a table's columns"
        raise ValueError(f"it is {what}: {expected}")
    nulls = array.nulls
    if nulls < 0:
        nulls = array.length - int(_bits(array, 0).sum()) if array.buffers[0] else 0
    if nulls:
        raise ValueError(f"it has {nulls} nulls, which would be lost: fill or drop them first")
    if code == "b":
        return _bits(array, 1).view(np.bool_)
    itemsize = np.dtype(_NAMES[code]).itemsize
    place = (array.buffers[1] or 0) + array.offset * itemsize
    return _dlpack.Seen(place, (array.length,), (itemsize,), _NAMES[code])


def _bits(array: _Array, buffer: int) -> np.ndarray[Any, Any]:
    """Unpack the bits of a buffer of an array into bytes."""
    end = array.offset + array.length
    packed = (ctypes.c_uint8 * -(-end // 8)).from_address(array.buffers[buffer] or 0)
    return np.unpackbits(np.asarray(packed, np.uint8), count=end, bitorder="little")[array.offset :]
