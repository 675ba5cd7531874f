"""Describes tensors in buffers by element type, shape, strides and offset, and checks descriptions from the service."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from poolbridge._sys.error_texts import from_signal, shown
from poolbridge._wire.limits import MAX_DIMS, MAX_LAYOUT_BYTES, MAX_UINT
from poolbridge._wire.messages import Tensor
from poolbridge.errors import (
    InvalidArgumentError,
    ProtocolError,
)


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type of the protocol.

    Attributes
    ----------
    name
        The type's name in the protocol.
    itemsize
        Number of bytes of one element.
    typestr
        NumPy's type string. For a type that NumPy lacks, `typestr` is that of ``uint16`` or ``uint8``.
    code, bits, lanes
        DLPack's type code, the number of bits of one number, and how many numbers an element has.
    in_numpy
        Whether NumPy has this type itself. It lacks ``bfloat16`` and the types of 8-bit and 4-bit floats.
    """

    name: str
    itemsize: int
    typestr: str
    code: int
    bits: int
    lanes: int = 1
    in_numpy: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_numpy", self.code <= _BOOL and self.code != _BFLOAT)

    @property
    def packed(self) -> bool:
        """Whether an element is several numbers."""
        return self.lanes > 1

    @property
    def lacking(self) -> str:
        """What error texts say of this type if NumPy lacks it."""
        numbers = "" if self.packed else ", copy the elements as float32 by to_numpy()"
        return (
            f"NumPy has no {self.name} (see dtype_name): use a library that has this type, by DLPack{numbers}, or take "
            f'the bits by view(dtype="uint{8 * self.itemsize}")'
        )


_SHOWN: Final = 8  # arrays that a text names
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_E4M3FN, _E4M3FNUZ, _E5M2, _E5M2FNUZ, _E8M0FNU, _E2M1FN = 10, 11, 12, 13, 14, 17

ELEMENT_TYPES: Final[dict[str, ElementType]] = {
    element.name: element
    for element in (
        ElementType("bool", 1, "|b1", _BOOL, 8),
        ElementType("int8", 1, "|i1", _INT, 8),
        ElementType("int16", 2, "<i2", _INT, 16),
        ElementType("int32", 4, "<i4", _INT, 32),
        ElementType("int64", 8, "<i8", _INT, 64),
        ElementType("uint8", 1, "|u1", _UINT, 8),
        ElementType("uint16", 2, "<u2", _UINT, 16),
        ElementType("uint32", 4, "<u4", _UINT, 32),
        ElementType("uint64", 8, "<u8", _UINT, 64),
        ElementType("float16", 2, "<f2", _FLOAT, 16),
        ElementType("bfloat16", 2, "<u2", _BFLOAT, 16),
        ElementType("float32", 4, "<f4", _FLOAT, 32),
        ElementType("float64", 8, "<f8", _FLOAT, 64),
        ElementType("complex64", 8, "<c8", _COMPLEX, 64),
        ElementType("complex128", 16, "<c16", _COMPLEX, 128),
        ElementType("float8_e4m3fn", 1, "|u1", _E4M3FN, 8),
        ElementType("float8_e4m3fnuz", 1, "|u1", _E4M3FNUZ, 8),
        ElementType("float8_e5m2", 1, "|u1", _E5M2, 8),
        ElementType("float8_e5m2fnuz", 1, "|u1", _E5M2FNUZ, 8),
        ElementType("float8_e8m0fnu", 1, "|u1", _E8M0FNU, 8),
        ElementType("float4_e2m1fn_x2", 1, "|u1", _E2M1FN, 4, lanes=2),
    )
}
# NumPy computes the name of a dtype in Python each time.
_OF_NUMPY: Final = {np.dtype(element.typestr): element for element in ELEMENT_TYPES.values() if element.in_numpy}


def element_type(dtype: Any) -> ElementType:
    """Return the element type of a dtype.

    Parameters
    ----------
    dtype
        A name in `ELEMENT_TYPES`, such as ``"bfloat16"``, a dtype of PyTorch, or anything but None that NumPy accepts
        as a dtype.

    Raises
    ------
    InvalidArgumentError
        `dtype` is no dtype, is not in native byte order, or has no name in `ELEMENT_TYPES`.
    """
    if isinstance(dtype, str) and dtype in ELEMENT_TYPES:
        return ELEMENT_TYPES[dtype]
    if isinstance(dtype, np.dtype) and dtype in _OF_NUMPY:
        return _OF_NUMPY[dtype]
    if dtype is None:  # NumPy would make it float64
        raise InvalidArgumentError(f"None is no dtype: leave it out, or pass one of {', '.join(ELEMENT_TYPES)}")
    if type(dtype).__module__ == "torch":
        dtype = str(dtype).removeprefix("torch.")
        if dtype in ELEMENT_TYPES:
            return ELEMENT_TYPES[dtype]
    try:
        parsed = np.dtype(dtype)
    except Exception as error:  # also what its repr raises, which NumPy calls
        if from_signal(error):
            raise
        raise InvalidArgumentError(f"{shown(dtype)} is no dtype: expected one of {', '.join(ELEMENT_TYPES)}") from None
    element = _OF_NUMPY.get(parsed) or ELEMENT_TYPES.get(parsed.name)
    if element is None or not parsed.isnative:
        raise InvalidArgumentError(
            f"dtype {parsed} cannot be shared: expected one of {', '.join(ELEMENT_TYPES)}, in native byte order"
            f"{'' if parsed.hasobject else '; or share their bytes as uint8'}"
        )
    return element


class Description(Struct, frozen=True, gc=False):
    """The checked description of a tensor in a buffer. A model has thousands, so they are cheap to make and to keep.

    Attributes
    ----------
    element
        The element type.
    shape
        Number of elements along each axis.
    strides
        Number of bytes from an element to the next element along each axis.
    offset
        Bytes from the start of the buffer to element [0, …, 0].
    contiguous
        Whether the elements lie without gaps in C order.
    named
        The description of each array of a buffer or frame of several arrays, by name, of which this description has
        all bytes; empty for one array. Nobody changes it.
    layout_bytes
        How many bytes at the end of the buffer say which arrays it has; 0: the buffer has one array.
    metadata
        Texts about several arrays in a buffer.
    """

    element: ElementType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    contiguous: bool
    named: Mapping[str, Description] = MappingProxyType({})
    layout_bytes: int = 0
    metadata: Mapping[str, str] = MappingProxyType({})

    def __hash__(self) -> int:
        return hash((self.element.name, self.shape, self.strides, self.offset, self.layout_bytes))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of all elements, without the gaps between them: ``size * itemsize``."""
        return self.size * self.element.itemsize

    @property
    def content(self) -> Description:
        """The description without the layout of the buffer, and without the metadata."""
        if not self.layout_bytes:
            return self
        return replace(describe(self.nbytes - self.layout_bytes, "uint8"), named=self.named)

    @property
    def span(self) -> tuple[int, int]:
        """The positions in the buffer of the elements' first byte and of the byte after their last byte."""
        return span_of(self.shape, self.strides, self.offset, self.element.itemsize)

    def at(self, offset: int) -> Description:
        """Return the description of the same array at another place. ``replace`` takes longer."""
        return Description(self.element, self.shape, self.strides, offset, self.contiguous)

    def as_type(self, dtype: Any) -> Description:
        """Return the description of the same memory with elements of another type of the same size.

        Raises
        ------
        InvalidArgumentError
            `element_type` does not know the dtype, or its elements have another size.
        """
        element = element_type(dtype)
        if element.itemsize != self.element.itemsize:
            raise InvalidArgumentError(
                f"elements of {self.element.name} have {self.element.itemsize} bytes, and those of {element.name} "
                f'{element.itemsize}: expected a type of the same size, such as "uint{8 * self.element.itemsize}"'
            )
        return replace(self, element=element)

    @property
    def is_all_bytes(self) -> bool:
        """Whether this describes bytes, beginning with the first one of the buffer."""
        return self.element.name == "uint8" and len(self.shape) == 1 and self.contiguous and not self.offset

    @property
    def text(self) -> str:
        """The elements, for people, such as ``float32[2, 3]``; of several arrays, those of the first eight."""
        arrays = self.named or {"": self}
        named = [f"{name}: {one.element.name}{list(one.shape)}" for name, one in islice(arrays.items(), _SHOWN)]
        return ", ".join(named).removeprefix(": ") + (f", … {len(arrays) - _SHOWN} more" * (len(arrays) > _SHOWN))

    def to_wire(self) -> Tensor:
        """Return the description as a message of the protocol.

        The strides in the message count elements. The message of a C-contiguous tensor has no strides.
        """
        itemsize = self.element.itemsize
        strides = () if self.contiguous else tuple(stride // itemsize for stride in self.strides)
        return Tensor(
            dtype=self.element.name,
            shape=self.shape,
            strides=strides,
            offset=self.offset,
            layout_bytes=self.layout_bytes,
        )


def c_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the bytes between neighbouring elements along each axis of a C-contiguous array."""
    strides = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether elements with this shape and these strides, in bytes, lie in C order without gaps."""
    if 0 in shape:
        return True
    step = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1:
            if stride != step:
                return False
            step *= extent
    return True


def span_of(shape: Sequence[int], strides: Sequence[int], offset: int, itemsize: int) -> tuple[int, int]:
    """Return where the elements' first byte is and where their last byte ends. Element [0, …, 0] is at `offset`."""
    if 0 in shape:
        return offset, offset
    first = last = offset
    for extent, stride in zip(shape, strides, strict=True):
        reach = (extent - 1) * stride
        if reach < 0:
            first += reach
        else:
            last += reach
    return first, last + itemsize


def whole(value: Any) -> int:
    """Return a whole number as an int.

    Raises
    ------
    TypeError
        The value is no whole number, or it is a bool. A bool is refused because it is probably a mistake of the caller.
    """
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


# Iterables of whole numbers that are no shape: bytes, and those without an order.
_UNORDERED: Final = (str, bytes, bytearray, memoryview, AbstractSet, Mapping)


def describe(shape: int | Iterable[int], dtype: Any) -> Description:
    """Describe a new C-contiguous tensor.

    Parameters
    ----------
    shape
        Number of elements along each axis. A plain number means one axis; ``()`` means a scalar.
    dtype
        See `element_type`.

    Raises
    ------
    InvalidArgumentError
        A number in `shape` is negative or not whole, the shape has more than 32 axes, the tensor would have more than
        2**63 - 1 bytes, or `element_type` does not know the dtype.
    """
    element = element_type(dtype)
    if type(shape) is int:
        return _described(element.name, (shape,))
    if type(shape) is tuple and set(map(type, shape)) <= {int}:
        return _described(element.name, shape)
    try:
        if isinstance(shape, _UNORDERED):
            raise TypeError
        extents: Iterable[Any] = shape if isinstance(shape, Iterable) else (shape,)
        checked = tuple([whole(extent) for extent in islice(extents, MAX_DIMS + 1)])
    except TypeError:
        raise InvalidArgumentError(
            f"shape {shown(shape)} is not made of whole numbers: expected one for each axis, such as (480, 640)"
        ) from None
    return _described(element.name, checked)


@lru_cache(maxsize=256)
def _described(dtype: str, shape: tuple[int, ...]) -> Description:
    """Describe a C-contiguous tensor. The results are cached, because a program uses few different shapes."""
    element = ELEMENT_TYPES[dtype]
    if len(shape) > MAX_DIMS:
        raise InvalidArgumentError(f"more than {MAX_DIMS} axes: at most {MAX_DIMS} can be shared")
    if any(extent < 0 for extent in shape):
        raise InvalidArgumentError(f"shape {shape} has a negative extent")
    if math.prod(max(extent, 1) for extent in shape) * element.itemsize > MAX_UINT:
        raise InvalidArgumentError(f"shape {shape} of {element.name} has more than 2**63 - 1 bytes")
    return Description(element, shape, c_strides(shape, element.itemsize), 0, contiguous=True)


def from_wire(tensor: Tensor, nbytes: int) -> Description:
    """Check a description that the service or a producer sent, and return it as a `Description`.

    Parameters
    ----------
    tensor
        The message with the description.
    nbytes
        Number of bytes of the buffer. Every element must lie inside the buffer.

    Raises
    ------
    ProtocolError
        The description is inconsistent, or an element lies outside of the buffer.
    """
    described, first, last = form_of(tensor.dtype, tensor.shape, tensor.strides)
    if offset := tensor.offset:
        if offset % described.element.itemsize:
            raise ProtocolError(
                f"the byte offset {offset} is no multiple of the {described.element.itemsize} bytes of an element"
            )
        described = described.at(offset)
    if first + offset < 0 or last + offset > nbytes:
        raise ProtocolError(
            f"the tensor's elements lie in bytes {first + offset} to {last + offset} of a buffer of {nbytes} bytes"
        )
    if not tensor.layout_bytes:
        return described
    if not described.is_all_bytes or tensor.layout_bytes > min(described.nbytes, MAX_LAYOUT_BYTES):
        raise ProtocolError(f"the service describes a layout of {tensor.layout_bytes} bytes in {described.text}")
    return replace(described, layout_bytes=tensor.layout_bytes)


@lru_cache(maxsize=256)
def form_of(dtype: str, shape: tuple[int, ...], steps: tuple[int, ...]) -> tuple[Description, int, int]:
    """Check a description without its offset. Return it, and where its bytes begin and end.

    The results are cached, because the frames of a channel, and the arrays of a model, have few different descriptions.
    """
    element = ELEMENT_TYPES.get(dtype)
    if element is None:
        raise ProtocolError(f"the service describes elements of unknown type {dtype!r}")
    itemsize = element.itemsize
    if len(shape) > MAX_DIMS:
        raise ProtocolError(f"the service describes a tensor of {len(shape)} axes; at most {MAX_DIMS} can be")
    if steps:
        if len(steps) != len(shape):
            raise ProtocolError(f"the service sent {len(steps)} strides for {len(shape)} axes")
        strides = tuple(stride * itemsize for stride in steps)
    else:
        strides = c_strides(shape, itemsize)
    if math.prod(max(extent, 1) for extent in shape) > MAX_UINT or any(abs(stride) > MAX_UINT for stride in strides):
        raise ProtocolError(f"shape {shape} or strides {steps or 'in C order'} exceed 2**63 - 1 elements or bytes")
    described = Description(element, shape, strides, 0, is_contiguous(shape, strides, itemsize))
    return described, *described.span
