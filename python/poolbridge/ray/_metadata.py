"""What a sender tells receivers about its arrays. Ray pickles it and carries it with the object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shared:
    """An array in a buffer of a service.

    Attributes
    ----------
    epoch, path
        The life of the service, and where it listens on the sender's node.
    pool, kind
        The pool, and where its memory comes from.
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
    """An array in Ray's object store, because it could not be shared. The mover of the sender's node finds it.

    Attributes
    ----------
    token, index
        Which object it belongs to, and its place in it.
    dtype
        The element type, as the array's library has it.
    reason
        Why it could not be shared.
    """

    token: str
    index: int
    dtype: str
    reason: str


@dataclass(slots=True)
class Metadata:
    """What Ray keeps for an object. `tensor_meta` and `tensor_device` are what Ray reads.

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
        Where each array is.
    """

    tensor_meta: list[tuple[Any, Any]]
    tensor_device: str | None
    node: str
    library: str
    arrays: list[Shared | Kept]
