"""Has the serializers by which Dask sends arrays and leases from one worker to another.

If the receiver has the same service as the sender, a serializer sends a description of the buffer and no bytes. If the
receiver names no service or another service, Dask sends the bytes, as without poolbridge.

Dask has families of serializers. Dask tries the family ``"dask"`` first, and chooses a serializer of this family by the
class of the object. If poolbridge added a family, each worker, client and scheduler would have to know this family. A
process that does not know the family would fail. So poolbridge adds its serializers to the family ``"dask"``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np
from dask.sizeof import sizeof
from distributed.protocol.numpy import deserialize_numpy_ndarray, serialize_numpy_ndarray
from distributed.protocol.serialize import dask_deserialize, dask_serialize
from distributed.utils import has_keyword

from poolbridge._client import makers as _makers
from poolbridge._client.lease import BaseLease
from poolbridge.dask import _link
from poolbridge.dask._link import LEASE, Link

_KEY: Final = "poolbridge"
_MOVED: Final = "poolbridge-moved"
_Dump = Callable[..., tuple[dict[str, Any], list[Any]]]
_Load = Callable[[dict[str, Any], list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Sending:
    """A worker's answer to another process that asks for results of tasks.

    The worker keeps the results until the other process confirms the receipt. So if the answer describes the buffer of
    an array, this array lives until the receiver has its own lease, or until the connection to the receiver has ended.

    Attributes
    ----------
    link
        The `Link` of the worker that sends: this worker's connection to its service.
    sender
        The address of the worker that sends.
    recipient
        What the receiver says about its service; see `Link.says`.
    """

    link: Link
    sender: str
    recipient: object


SENDING: Final[ContextVar[Sending | None]] = ContextVar("poolbridge_sending", default=None)
"""The answer that Dask is serializing now; None: no answer.

Dask may serialize the answer in a thread other than the thread that set this variable. In that thread, too, the
variable has this value.
"""


def _put_before(cls: type, library: str, dump_bytes: _Dump | None, load_bytes: _Load | None) -> None:
    """Make Dask send descriptions of the objects of `cls`, and bytes only if a description is not possible.

    `dump_bytes` and `load_bytes` are the functions by which Dask serializes and deserializes the bytes of such an
    object; None: Dask uses its next family of serializers.
    """

    def dump(given: Any, context: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[Any]]:
        sending = SENDING.get()
        described = sending.link.describe(given, library, sending.recipient) if sending and given.nbytes else ""
        if sending and isinstance(described, dict):
            return {_KEY: described, "sender": sending.sender}, []
        if dump_bytes is None:
            raise NotImplementedError  # Dask takes its next family of serializers
        header, frames = dump_bytes(given, context=context) if has_keyword(dump_bytes, "context") else dump_bytes(given)
        return (header | {_MOVED: described} if described else header), frames

    def load(header: dict[str, Any], frames: list[Any]) -> Any:
        if _KEY in header:
            return _link.take(header[_KEY], header["sender"])
        if load_bytes is None:
            raise NotImplementedError(f"bytes of a {cls.__name__} that no serializer of Dask has written")
        loaded = load_bytes(header, frames)
        if _MOVED in header:
            _link.count_moved(loaded.nbytes, header[_MOVED])
        return loaded

    dask_serialize.register(cls, dump)  # type: ignore[no-untyped-call]
    dask_deserialize.register(cls, load)  # type: ignore[no-untyped-call]


# Leases, which Dask does not know


def _dump_lease(lease: BaseLease) -> tuple[dict[str, Any], list[Any]]:
    header, frames = serialize_numpy_ndarray(_makers.array_of(_link.as_numbers(lease), "numpy"))
    return {"elements": header, "dtype": lease.dtype_name, "pool": lease.pool}, frames


def _load_lease(header: dict[str, Any], frames: list[Any]) -> Any:
    elements = deserialize_numpy_ndarray(header["elements"], frames)
    return _link.adopt(elements, header["dtype"], header["pool"])


_put_before(BaseLease, LEASE, _dump_lease, _load_lease)
sizeof.register(BaseLease, lambda lease: lease.nbytes)  # type: ignore[no-untyped-call]


# Arrays of PyTorch, CuPy and JAX. This module does not import these libraries when it is imported: Dask calls
# `_Library.put_before` when Dask first handles an array of the library.


def _torch() -> type:
    import torch

    return torch.Tensor  # type: ignore[no-any-return]


def _cupy() -> type:
    import cupy

    return cupy.ndarray  # type: ignore[no-any-return]


def _jax() -> type:
    import jax

    return type(jax.numpy.zeros(0))  # `jax.Array` is no base class of this class


@dataclass(frozen=True, slots=True)
class _Library:
    name: str
    package: str  # package of the class of the library's arrays
    class_of: Callable[[], type]
    serializer: str | None  # the module of Dask that registers its own serializer; None: Dask pickles the arrays

    def put_before(self) -> None:
        """From now on, make Dask send descriptions of this library's arrays where possible."""
        cls = self.class_of()
        if cls in _PUT:
            return
        _PUT.add(cls)
        own: tuple[_Dump | None, _Load | None] = None, None
        if self.serializer is not None:
            try:
                import_module(self.serializer)
            except ImportError:
                pass  # Dask's serializer of CuPy needs more packages; without the serializer, Dask pickles the arrays
            else:
                own = dask_serialize.dispatch(cls), dask_deserialize.dispatch(cls)  # type: ignore[no-untyped-call]
        _put_before(cls, self.name, *own)


_PUT: Final[set[type]] = set()
_LIBRARIES: Final = (
    _Library("torch", "torch", _torch, "distributed.protocol.torch"),
    _Library("cupy", "cupy", _cupy, "distributed.protocol.cupy"),
    _Library("jax", "jaxlib", _jax, None),
)


def register() -> None:
    """Replace Dask's serializers of arrays. If a new serializer cannot describe an array, it calls the replaced one."""
    _put_before(np.ndarray, "numpy", serialize_numpy_ndarray, deserialize_numpy_ndarray)
    for library in _LIBRARIES:
        for dispatch in (dask_serialize, dask_deserialize):
            dispatch.register_lazy(library.package, library.put_before)  # type: ignore[no-untyped-call]
        if library.serializer is not None and library.package in sys.modules:
            library.put_before()  # Dask may already have serialized arrays of this library
