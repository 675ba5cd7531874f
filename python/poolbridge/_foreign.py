"""Arrays of other libraries on a device, as sources of copies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolbridge import _cuda, _tensor
from poolbridge._tensor import ElementType


@dataclass(frozen=True, slots=True)
class ForeignArray:
    """An array on a device, whose work is done.

    Attributes
    ----------
    owner
        Keeps the memory.
    address
        Element [0, …, 0].
    ordinal
        The device, as this process counts.
    shape
        Elements along each axis.
    strides
        Bytes between neighbours along each axis.
    element
        Element type.
    """

    owner: object
    address: int
    ordinal: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: ElementType

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie without gaps in C order."""
        return _tensor.is_contiguous(self.shape, self.strides, self.element.itemsize)

    def to_host(self) -> np.ndarray[Any, Any]:
        """Copy the elements to the CPU, with their strides."""
        first, last = _tensor.span_of(self.shape, self.strides, 0, self.element.itemsize)
        data = np.empty(max(last - first, 1), np.uint8)
        if last > first:
            _cuda.copy_to_host(self.ordinal, data[: last - first], self.address + first)
        return np.ndarray(self.shape, self.element.typestr, data, -first, self.strides)


def take(source: Any) -> ForeignArray:
    """Look at an array on a device, once its work is done.

    Parameters
    ----------
    source
        Speaks ``__cuda_array_interface__`` or DLPack.
    """
    interface = getattr(source, "__cuda_array_interface__", None)
    if interface is not None:
        element = _tensor.element_type(interface["typestr"])
        shape = tuple(interface["shape"])
        strides = interface.get("strides") or _tensor.c_strides(shape, element.itemsize)
        address = int(interface["data"][0])
        ordinal = _cuda.pointer_facts(address)["ordinal"] if math.prod(shape) else 0
        return ForeignArray(source, address, ordinal, shape, tuple(strides), element)
    from cuda.core.utils import StridedMemoryView

    view = StridedMemoryView.from_dlpack(source, stream_ptr=1)
    element = _tensor.element_type(view.dtype)
    strides = tuple(stride * element.itemsize for stride in view.strides or ())
    if not view.strides:
        strides = _tensor.c_strides(view.shape, element.itemsize)
    return ForeignArray(view, view.ptr, view.device_id, tuple(view.shape), strides, element)
