"""What a sender tells receivers about its arrays. Ray pickles this data and carries it with the object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shared:
    """An array in a buffer of a service.

    Attributes
    ----------
    epoch, path
        The epoch of the service, and the path of its socket on the sender's node.
    pool, kind
        The pool, and the kind of its memory.
    buffer, generation
        The buffer; see `BaseLease.buffer_id`.
    dtype, shape, strides, offset
        The array in the buffer. Strides are in elements, and empty for a C-contiguous array; the offset is in bytes.
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
    """An array in Ray's object store, because it could not be shared. The mover of the sender's node keeps a reference.

    Attributes
    ----------
    token, index
        The token of the object that the array belongs to, and the array's index in that object.
    dtype
        The element type, as the array's library names it.
    reason
        Why the array could not be shared.
    """

    token: str
    index: int
    dtype: str
    reason: str


@dataclass(slots=True)
class Metadata:
    """The data that Ray keeps for an object. Ray itself reads only `tensor_meta` and `tensor_device`.

    Attributes
    ----------
    tensor_meta
        Shape and dtype of each array.
    tensor_device
        ``"cpu"`` or ``"cuda"``; None if there is no array.
    node
        Id of the sender's node.
    library
        The library of the arrays.
    arrays
        Where each array is: in a buffer (`Shared`), or in Ray's object store (`Kept`).
    """

    tensor_meta: list[tuple[Any, Any]]
    tensor_device: str | None
    node: str
    library: str
    arrays: list[Shared | Kept]
