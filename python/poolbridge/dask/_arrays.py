"""Dask's serializer of NumPy arrays, which describes the buffer where the receiver has the same service.

Dask chooses a serializer by the class of an object in its family ``"dask"``, the first that it tries. Another family
would have to be named to every worker, client and scheduler, and a process that lacked it would fail. So arrays keep
the family, and a process that does not say that it has the service gets what Dask always sends.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from distributed.protocol.numpy import deserialize_numpy_ndarray, serialize_numpy_ndarray
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from poolbridge.dask import _link
from poolbridge.dask._link import Array, Link

_KEY: Final = "poolbridge"
_MOVED: Final = "poolbridge-moved"


@dataclass(frozen=True, slots=True)
class Sending:
    """A worker's answer to another process that asks for data.

    The worker keeps the data until the other process says that it has them. So an array whose buffer is described lives
    until the receiver has a lease of its own, or until the connection has ended.

    Attributes
    ----------
    link
        The connection of the worker that sends.
    sender
        The worker's address.
    recipient
        What the receiver says of its service.
    """

    link: Link
    sender: str
    recipient: object


SENDING: Final[ContextVar[Sending | None]] = ContextVar("poolbridge_sending", default=None)
"""The answer that is being written, also in the thread in which Dask serializes what is large."""


def _dump(array: Array, context: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[Any]]:
    sending = SENDING.get()
    described = sending.link.describe(array, sending.recipient) if sending is not None and array.nbytes else ""
    if sending is not None and isinstance(described, dict):
        return {_KEY: described, "sender": sending.sender}, []
    header, frames = serialize_numpy_ndarray(array, context=context)
    return (header | {_MOVED: described} if described else header), frames


def _load(header: dict[str, Any], frames: list[Any]) -> Any:
    description = header.get(_KEY)
    if description is not None:
        return _link.take(description, header["sender"])
    array = deserialize_numpy_ndarray(header, frames)
    if _MOVED in header:
        _link.count_moved(array.nbytes, header[_MOVED])
    return array


def register() -> None:
    """Put the serializer in the place of Dask's own, which it calls for all that is not described."""
    dask_serialize.register(np.ndarray, _dump)  # type: ignore[no-untyped-call]
    dask_deserialize.register(np.ndarray, _load)  # type: ignore[no-untyped-call]
