"""Defines views of leases, and exports leases to libraries that do not use DLPack, through array interfaces."""

from __future__ import annotations

from typing import Any

import numpy as np

from poolbridge._array import readonly_warning as _readonly
from poolbridge._array.arrays import ArrayExports, check_one, description_of, state_of
from poolbridge._array.copies import copy_into
from poolbridge._memory import dlpack as _dlpack
from poolbridge._memory.tensor import Description
from poolbridge._order import fences as _fences
from poolbridge._session.lease_state import LeaseState, Token
from poolbridge._sys.error_texts import shown
from poolbridge.errors import (
    InvalidArgumentError,
    UnsupportedError,
)


class LeaseView(ArrayExports):
    """A view of a lease. `BaseLease.view` makes views. A lease counts each of its views as one of its arrays.

    A view has ``__cuda_array_interface__`` if its device is a GPU, ``__array_interface__`` for memory of the CPU, and
    DLPack. An array that a library makes from the view keeps the view and the lease alive.
    """

    def __init__(
        self, state: LeaseState, *, part: Description | None = None, legacy: bool = False, device: Any = None
    ) -> None:
        pool = state.memory.pool
        named = isinstance(device, str)
        on_gpu = named and pool.device[0] == _dlpack.CUDA and device in {"cuda", pool.device_name}
        if not (on_gpu or device is None or (named and device == "cpu" and pool.on_cpu)):
            raise InvalidArgumentError(
                f"memory of {pool.device_name} cannot be used as memory of {shown(device)} in place: leave out "
                "device=, or copy"
            )
        self._lease_state = state
        self._part = part
        self._token = Token(state)
        self._legacy = legacy
        self._on_gpu = on_gpu

    def view(self, *, legacy: bool = False, device: str | None = None, dtype: Any = None) -> LeaseView:
        """Make another view of the same array; see `BaseLease.view`."""
        self._lease_state.check_usable()
        chosen = "cuda" if device is None and self._on_gpu else device
        part = self._part if dtype is None else self._described.as_type(dtype)
        return LeaseView(self._lease_state, part=part, legacy=legacy, device=chosen)

    def copy_from(self, source: Any) -> None:
        """Copy an array into the memory; see `Lease.copy_from`."""
        copy_into(self._lease_state, source, self._described)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the CUDA array interface, for memory that a GPU reaches.

        Raises
        ------
        AttributeError
            The view's `device` is ``"cpu"``.
        UnsupportedError
            The interface lacks the element type (``bfloat16``).
        LeaseReleasedError
            The lease has ended.
        """
        return cuda_array_interface(self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Version 3 of NumPy's array interface, for memory that the CPU reaches.

        Raises
        ------
        AttributeError
            The CPU does not reach the memory, or NumPy lacks the element type (``bfloat16``).
        WaitTimeoutError, ContentFailedError
            The content was not complete within the client's ``timeout``, or will never be complete.
        LeaseReleasedError
            The lease has ended.
        """
        state = self._lease_state
        state.check_usable()
        description = self._described
        check_one(description)
        if not state.memory.pool.on_cpu or not description.element.in_numpy:
            raise AttributeError("__array_interface__")
        _fences.before_cpu(state)
        return {
            "version": 3,
            "shape": description.shape,
            "typestr": description.element.typestr,
            "strides": None if description.contiguous else description.strides,
            "data": (state.address(write=state.write, part=description), not state.write),
        }

    def __repr__(self) -> str:
        return (
            f"<poolbridge.LeaseView {self.dtype_name}{list(self.shape)} on {self.device}, of {self._lease_state.title}>"
        )


def cuda_array_interface(lease: ArrayExports) -> dict[str, Any]:
    """Return version 3 of the CUDA array interface.

    The entry ``stream`` is a stream for which the consumer must wait. The entry is None if the consumer can use the
    memory without a wait.

    Raises
    ------
    AttributeError
        The device of the lease or view is ``"cpu"``.
    UnsupportedError
        The interface lacks the element type.
    """
    state = state_of(lease)
    state.check_usable()
    description = description_of(lease)
    if description.named:
        raise AttributeError("__cuda_array_interface__: there are several arrays, each of which has it")
    if lease.__dlpack_device__()[0] != _dlpack.CUDA:
        pinned = state.memory.pool.device[0] == _dlpack.CUDA
        raise AttributeError(
            "__cuda_array_interface__ is for memory of a GPU: "
            + ('use lease.view(device="cuda")' if pinned else "no GPU reaches this memory")
        )
    if not description.element.in_numpy:
        # Do not raise AttributeError here: to a library, an AttributeError means that the memory is the CPU's.
        raise UnsupportedError(
            f"__cuda_array_interface__ has no {description.element.name}: use DLPack, or the bits by "
            f'view(dtype="uint{8 * description.element.itemsize}")'
        )
    if not state.write:
        _readonly.check_interface(state.memory.pool)
    stream = _fences.stream_to_follow(state)
    return {
        "version": 3,
        "shape": description.shape,
        "typestr": np.dtype(description.element.typestr).str,
        "strides": None if description.contiguous else description.strides,
        "data": (state.address(write=state.write, part=description) if description.size else 0, not state.write),
        "stream": stream,
    }
