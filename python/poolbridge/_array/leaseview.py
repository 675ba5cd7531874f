"""Views of leases, and what libraries that do not speak DLPack see of the memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from poolbridge._array import readonly as _readonly
from poolbridge._array.arrays import ArrayExports
from poolbridge._memory import dlpack as _dlpack
from poolbridge._order import order as _order
from poolbridge._session.lease_state import LeaseState, Token
from poolbridge._sys.errors import InvalidArgumentError, UnsupportedError


class LeaseView(ArrayExports):
    """A view of a lease that counts as an array of it, for consumers that keep the object they were given.

    It speaks ``__cuda_array_interface__`` on device memory and ``__array_interface__`` on memory of the CPU, besides
    DLPack; arrays made through any of them keep the view, and so the lease, alive. Made by ``lease.view()``.
    """

    def __init__(self, state: LeaseState, *, legacy: bool = False, device: str | None = None) -> None:
        pool = state.memory.pool
        if device not in {None, pool.device_name} and not (device == "cpu" and pool.on_cpu):
            raise InvalidArgumentError(f"memory of {pool.device_name} cannot be seen from {device!r} in place")
        self._lease_state = state
        self._token = Token(state)
        self._legacy = legacy
        self._from_cpu = device == "cpu"

    @property
    def device(self) -> str:
        """Where consumers see the memory: ``"cpu"`` or ``"cuda:0"``."""
        return "cpu" if self._from_cpu else super().device

    def __dlpack_device__(self) -> tuple[int, int]:
        """Give DLPack's device type (1: CPU, 2: CUDA) and id, the id as this process counts."""
        return (_dlpack.CPU, 0) if self._from_cpu else super().__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the CUDA array interface; device memory only, and not ``bfloat16``: see `UnsupportedError`."""
        if self._from_cpu:
            raise AttributeError("__cuda_array_interface__")
        return cuda_array_interface(self._lease_state)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Version 3 of NumPy's array interface; memory of the CPU only."""
        state = self._lease_state
        state.check_usable()
        description = state.description
        if not state.memory.pool.on_cpu or not description.element.in_numpy:
            raise AttributeError("__array_interface__")
        _order.before_cpu(state)
        return {
            "version": 3,
            "shape": description.shape,
            "typestr": description.element.typestr,
            "strides": None if description.contiguous else description.strides,
            "data": (state.address(write=state.write), not state.write),
        }

    def __repr__(self) -> str:
        return f"<poolbridge.LeaseView of lease {self._lease_state.grant.id}>"


def cuda_array_interface(state: LeaseState) -> dict[str, Any]:
    """Give version 3 of the CUDA array interface; its stream is one to follow, or None if nothing has to be waited for.

    Raises
    ------
    AttributeError
        No GPU reaches the memory.
    UnsupportedError
        The interface lacks the element type.
    """
    state.check_usable()
    description = state.description
    if state.memory.pool.device[0] != _dlpack.CUDA:
        raise AttributeError("__cuda_array_interface__ is for memory that a GPU reaches, and this is not")
    if not description.element.in_numpy:
        # No AttributeError, which would read as if the memory were not a GPU's.
        raise UnsupportedError(f"__cuda_array_interface__ has no {description.element.name}: use DLPack")
    if not state.write:
        _readonly.check_interface(state.memory.pool)
    stream = _order.stream_to_follow(state)
    return {
        "version": 3,
        "shape": description.shape,
        "typestr": np.dtype(description.element.typestr).str,
        "strides": None if description.contiguous else description.strides,
        "data": (state.address(write=state.write) if description.size else 0, not state.write),
        "stream": stream,
    }
