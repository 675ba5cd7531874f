"""Finds the lease that an array lives in, and leases the buffers of arrays that other processes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import poolbridge
from poolbridge._array import owners as _owners, sources as _sources
from poolbridge._array.arrays import state_of
from poolbridge._client.base_client import session_of
from poolbridge._memory import tensor as _tensor
from poolbridge._session.lease_state import LeaseState
from poolbridge._wire.messages import Tensor
from poolbridge.ray._metadata import Shared

_T = TypeVar("_T")


def again(work: Callable[[], _T]) -> _T:
    """Run `work`. If `work` loses the connection to the service, run `work` once more: a new service may run now."""
    try:
        return work()
    except poolbridge.ConnectionLostError:
        return work()


def lost(one: Shared) -> poolbridge.StaleError:
    """Make the error that says that an array is lost because its service has ended."""
    return poolbridge.StaleError(
        f"{one} is lost: the service at {one.path} that had it has ended since it was sent. Have its sender make the "
        "object again"
    )


def lease(client: poolbridge.Client, one: Shared) -> poolbridge.Lease:
    """Lease the buffer of an array for reading. The lease describes this array, which may be a part of the buffer.

    Raises
    ------
    StaleError, NotFoundError
        The buffer is gone.
    """
    found = client.lease(one.buffer, one.generation, timeout=client.timeout)
    state = state_of(found)
    tensor = Tensor(dtype=one.dtype, shape=one.shape, strides=one.strides, offset=one.offset)
    state.description = _tensor.from_wire(tensor, state.grant.nbytes)
    return found


def span(lease: poolbridge.Lease) -> tuple[int, int, int]:
    """Return where a lease's array is in the buffer.

    The result is the position of the array's first byte in the buffer, the position after its last byte, and the number
    of bytes from the first byte to element [0, …, 0].
    """
    of = state_of(lease).description
    low, high = _tensor.span_of(of.shape, of.strides, of.offset, of.element.itemsize)
    return low, high, of.offset - low


def place(lease: poolbridge.Lease, one: Shared, offset: int) -> None:
    """Make a lease describe the array `one`, whose element [0, …, 0] is at byte `offset` of the lease's buffer."""
    state = state_of(lease)
    tensor = Tensor(dtype=one.dtype, shape=one.shape, strides=one.strides, offset=offset)
    state.description = _tensor.from_wire(tensor, state.grant.nbytes)


def describe(client: poolbridge.Client, state: LeaseState, description: _tensor.Description) -> Shared:
    """Return what other processes need to lease the buffer of an array and to find the array in the buffer."""
    wire = description.to_wire()
    return Shared(
        epoch=client.epoch,
        path=client.path,
        pool=state.pool.name,
        kind=state.memory.pool.kind,
        buffer=state.grant.buffer,
        generation=state.grant.generation,
        dtype=wire.dtype,
        shape=tuple(wire.shape),
        strides=tuple(wire.strides),
        offset=wire.offset,
    )


def find(client: poolbridge.Client, source: _sources.Source) -> tuple[LeaseState, _tensor.Description] | str:
    """Return an array's lease and description; or a text that says why the sender must copy the array."""
    session = session_of(client)
    state = _owners.owner(session, source.array, source.address)
    if state is None:
        return "the array did not live in a pool"
    if state.consumer is not None:
        return "the array is a frame of a channel"
    if state.released or state.session.core.epoch != session.core.epoch:
        return "the array's lease has ended"
    if state.write and state.session is not session:
        return "the array lives in a lease of another client than poolbridge.ray.client()"
    for write in (True, False):
        first = state.memory.address(write=write)
        offset = source.address - first
        low, high = _tensor.span_of(source.shape, source.strides, offset, source.element.itemsize)
        aligned = not any(step % source.element.itemsize for step in (offset, *source.strides))
        if low >= 0 and high <= state.grant.nbytes and aligned:
            element = _sources.element_at(state.description, source, offset)
            return state, _tensor.Description(
                element, source.shape, source.strides, offset, contiguous=source.contiguous
            )
    return "the array reaches beyond its lease, or its elements are not aligned"


def stream_of(array: Any, library: str) -> Any:
    """Return the library's current stream if an array is on a GPU; None for JAX and for an array on the CPU."""
    if array is None or not _sources.on_device(array):
        return None
    if library == "torch":
        import torch

        return torch.cuda.current_stream(array.device)
    if library == "cupy":
        import cupy

        return cupy.cuda.get_current_stream()
    return None  # JAX says by DLPack when its arrays are complete
