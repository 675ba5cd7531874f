"""Publishes a copy of an array under a name, and makes an array of a chosen library from a lease."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from poolbridge._array import sources as _sources
from poolbridge._array.arrays import state_of
from poolbridge._array.copies import copy_into
from poolbridge._client import operations as _operations
from poolbridge._memory import tensor as _tensor
from poolbridge._session.flow import Do, Flow
from poolbridge.errors import (
    UnavailableError,
)

if TYPE_CHECKING:
    from poolbridge._client.lease import BaseLease
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session


def put(
    session: Session, given: Any, name: str, pool: int, *, keep: bool, replace: bool, timeout: float | None
) -> Flow[LeaseState]:
    """Copy an array into a new buffer of the pool whose id is `pool`, and publish the buffer."""
    name, timeout = _operations.check_name(name, "buffer"), _operations.check_timeout(timeout)
    source = _sources.source_of(given)
    _sources.check_not_sent(session, source)
    description = _tensor.describe(source.shape, source.element.name)
    state = yield from _operations.allocate(session, description, pool, timeout=timeout)
    try:
        yield Do(partial(copy_into, state, given))
        yield from _operations.publish(state, name, keep=keep, replace=replace, stream=None)
    except BaseException:
        if not state.released and session.ended is None:
            state.release(failed=state.write, force=True)
        raise
    return state


def check_library(library: str) -> str:
    """Check the name of an array library and return it.

    Raises
    ------
    InvalidArgumentError
        poolbridge cannot make arrays of this library.
    """
    return _operations.check_word(library, _MAKERS, "library", _MAKERS)


def array_of(lease: BaseLease, library: str) -> Any:
    """Make an array of the library `library` from a lease, without a copy if the library can use the memory.

    Raises
    ------
    UnavailableError
        The library is not installed.
    """
    try:
        return _MAKERS[library](lease)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise UnavailableError(f"{library} is not installed for this Python: pip install {library}") from error


def _numpy(lease: BaseLease) -> Any:
    on_cpu = state_of(lease).memory.pool.on_cpu
    if not on_cpu or not state_of(lease).description.element.in_numpy:
        return lease.to_numpy()
    source: Any = lease  # NumPy's type stubs do not accept all objects that DLPack allows
    return np.from_dlpack(source)


def _cupy(lease: BaseLease) -> Any:
    import cupy

    view = lease.view(device="cuda")
    with cupy.cuda.Device(view.__dlpack_device__()[1]):
        if any(step < 0 for step in lease.strides):  # a lease refuses to export negative strides by DLPack
            return cupy.asarray(view)
        return cupy.from_dlpack(view)


def _torch(lease: BaseLease) -> Any:
    import torch

    return torch.from_dlpack(lease)


def _jax(lease: BaseLease) -> Any:
    import jax

    return jax.dlpack.from_dlpack(lease.view(legacy=True))  # safe for read-only memory: JAX never writes


_MAKERS = {"numpy": _numpy, "cupy": _cupy, "torch": _torch, "jax": _jax}
