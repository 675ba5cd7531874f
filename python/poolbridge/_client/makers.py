"""Makes an array of a chosen library from a lease."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from poolbridge._array.arrays import description_of, state_of
from poolbridge._array.leaseview import LeaseView
from poolbridge._client import operations as _operations
from poolbridge._memory import dlpack as _dlpack
from poolbridge.errors import (
    UnavailableError,
)

_dtype: Final = cache(np.dtype)

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

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
    names = lease.keys()
    state = state_of(lease)
    if library not in {"numpy", "torch"} or (library == "numpy" and not state.memory.pool.on_cpu):
        return {name: array_of(lease[name], library) for name in names}
    # Thousands of arrays, with little work for each: the first one waits for the content and says what the library
    # asks for. The others have one NumPy array of all bytes together, and PyTorch gets capsules that are ready. Each
    # tensor still has a storage of its own: PyTorch saves whole storages, and libraries take tensors of one storage for
    # tied weights.
    first = _Asked(state, part=state.description.named[names[0]])
    arrays = {names[0]: array_of(first, library)}
    versioned = first.versioned
    whole = state.array(flagged=versioned or state.write)
    import_capsule = None if library == "numpy" else sys.modules["torch"].from_dlpack
    device = first.__dlpack_device__()
    # Thousands of new tensors would make the garbage collector go through all objects, which are no garbage: with
    # PyTorch loaded, that takes twice as long as the tensors. Nothing waits meanwhile.
    collects = gc.isenabled()
    gc.disable()
    try:
        for name, part in islice(state.description.named.items(), 1, None):
            element = part.element
            if not part.contiguous or (import_capsule is None and not element.in_numpy):
                arrays[name] = array_of(lease[name], library)
                continue
            array: Any = np.ndarray(part.shape, _dtype(element.typestr), whole, part.offset)
            if import_capsule is not None:
                array = import_capsule(_dlpack.make_capsule(array, element, device, versioned=versioned))
            arrays[name] = array
    finally:
        if collects:
            gc.enable()
    return arrays


class _Asked(LeaseView):
    """A view that notes whether the library understands versioned capsules."""

    versioned = True

    def __dlpack__(self, **asked: Any) -> CapsuleType:
        self.versioned = (asked.get("max_version") or (0,))[0] >= 1
        return super().__dlpack__(**asked)


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
