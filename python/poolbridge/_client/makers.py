"""Makes an array of a chosen library from a lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from poolbridge._array.arrays import description_of, state_of
from poolbridge._client import operations as _operations
from poolbridge.errors import (
    UnavailableError,
)

if TYPE_CHECKING:
    from poolbridge._array.leaseview import LeaseView
    from poolbridge._client.lease import BaseLease


def check_library(library: str) -> str:
    """Check the name of an array library and return it.

    Raises
    ------
    InvalidArgumentError
        poolbridge cannot make arrays of this library.
    """
    return _operations.check_word(library, _MAKERS, "library", _MAKERS)


def arrays_of(lease: BaseLease, library: str) -> dict[str, Any]:
    """Make a dict of arrays from a lease of several arrays; see `array_of`.

    Raises
    ------
    TypeError
        The lease is one array.
    """
    return {name: array_of(view, library) for name, view in lease.items()}


def array_of(lease: BaseLease | LeaseView, library: str) -> Any:
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
        raise not_installed(library) from error


def not_installed(library: str) -> UnavailableError:
    """Return the error for an array library that this Python lacks."""
    package = "cupy-cuda13x, or cupy-cuda12x for a driver of CUDA 12" if library == "cupy" else library
    return UnavailableError(f"{library} is not installed for this Python: pip install {package}")


def _numpy(lease: BaseLease | LeaseView) -> Any:
    on_cpu = state_of(lease).memory.pool.on_cpu
    if not on_cpu or not description_of(lease).element.in_numpy:
        return lease.to_numpy()
    source: Any = lease  # NumPy's type stubs do not accept all objects that DLPack allows
    return np.from_dlpack(source)


def _cupy(lease: BaseLease | LeaseView) -> Any:
    import cupy

    view = lease.view(device="cuda")
    with cupy.cuda.Device(view.__dlpack_device__()[1]):
        if any(step < 0 for step in lease.strides):  # a lease refuses to export negative strides by DLPack
            return cupy.asarray(view)
        return cupy.from_dlpack(view)


def _torch(lease: BaseLease | LeaseView) -> Any:
    import torch

    return torch.from_dlpack(lease)


def _jax(lease: BaseLease | LeaseView) -> Any:
    import jax

    if description_of(lease).element.packed:  # JAX takes no such type by DLPack, and makes a copy of the bytes
        return jax.dlpack.from_dlpack(lease.view(legacy=True, dtype="uint8")).view(jax.numpy.float4_e2m1fn)
    return jax.dlpack.from_dlpack(lease.view(legacy=True))  # safe for read-only memory: JAX never writes


_MAKERS: dict[str, Callable[[Any], Any]] = {"numpy": _numpy, "cupy": _cupy, "torch": _torch, "jax": _jax}
