"""Describes the arrays of one of Ray's objects for receivers. Ray pickles the description and carries it to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shared:
    """Says where an array is. The array lives in a buffer of a service.

    Attributes
    ----------
    epoch, path
        The epoch of the service, and the path of its socket on the sender's node.
    pool, kind
        The name of the buffer's pool, and the kind of the pool's memory.
    buffer, generation
        The id and the generation of the buffer; see `BaseLease.buffer_id`.
    dtype, shape, strides, offset
        The layout of the array in the buffer. Strides are in elements, and empty for a C-contiguous array; the offset
        is in bytes.
    """

    epoch: str
    path: str
    pool: str
    kind: str
    buffer: int
    generation: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def __str__(self) -> str:
        return f"buffer {self.buffer} ({self.dtype}{list(self.shape)} in pool {self.pool!r})"


@dataclass(frozen=True, slots=True)
class Kept:
    """Says where an array is that the sender could not share. The array is in Ray's object store.

    The `Mover` of the sender's node keeps a reference to the array.

    Attributes
    ----------
    token, index
        The id of the object to which the array belongs, and the array's index in this object.
    dtype
        The element type's name.
    reason
        Why the sender could not share the array.
    """

    token: str
    index: int
    dtype: str
    reason: str


@dataclass(slots=True)
class Metadata:
    """The description of an object's arrays, which Ray keeps. Ray itself reads only `tensor_meta` and `tensor_device`.

    Attributes
    ----------
    tensor_meta
        The shape and dtype of each array.
    tensor_device
        ``"cpu"`` or ``"cuda"``; None if there is no array.
    node
        The id of the sender's node.
    library
        The name of the library of the arrays.
    arrays
        Where each array is: in a buffer (`Shared`), or in Ray's object store (`Kept`).
    """

    tensor_meta: list[tuple[Any, Any]]
    tensor_device: str | None
    node: str
    library: str
    arrays: list[Shared | Kept]
