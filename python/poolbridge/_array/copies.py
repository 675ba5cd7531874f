"""Copies arrays of any library, on the CPU or on a GPU, into a lease."""

from __future__ import annotations

from typing import Any

import numpy as np

from poolbridge._array import sources as _sources
from poolbridge._array.arrays import ArrayExports, check_shape, dtype_of, state_of
from poolbridge._array.sources import Source
from poolbridge._cuda import cuda as _cuda
from poolbridge._memory import dlpack as _dlpack
from poolbridge._memory.tensor import Description, ElementType
from poolbridge._order import fences as _fences
from poolbridge._session.lease_state import LeaseState, Token
from poolbridge.errors import (
    InvalidArgumentError,
)


def copy_into(state: LeaseState, source: Any, part: Description | None = None) -> None:
    """Copy an array into the leased memory. The copy is complete on return.

    If the source and the lease are both on a GPU, contiguous, and of the same shape and dtype, the GPU copies the
    source. Otherwise the CPU broadcasts the source to the lease's shape and casts it to the lease's dtype, by NumPy's
    casting rule ``same_kind``.

    Parameters
    ----------
    state
        The state of a write lease.
    source
        Anything that NumPy turns into an array, or an array that is on a GPU and has ``__cuda_array_interface__`` or
        DLPack.
    part
        The array of the lease into which to copy, of a frame of several arrays; None: there is one.

    Raises
    ------
    InvalidArgumentError
        The lease is read-only, the source cannot be broadcast to the lease's shape, or the source's memory does not say
        all about its elements (see `check_meaning`).
    TypeError
        The source's dtype cannot be cast to the lease's dtype.
    UnavailableError
        The source or the lease has 8-bit floats, and the package ml_dtypes is not installed.
    """
    state.check_usable()
    _sources.check_meaning(source)
    if not state.write:
        raise InvalidArgumentError(f"lease {state.grant.id} is read-only: lease for writing to copy into it")
    _fences.before_copy(state)
    description = part or state.description
    host = _on_host(state, source, description)
    if host is None:
        return
    check_shape(host.shape, description.shape)
    if state.memory.pool.on_cpu:
        np.copyto(state.array(part=description), host, casting="same_kind")
        return
    first, last = description.span
    if last == first:
        return
    dtype = np.dtype(description.element.typestr)
    address = state.memory.address(write=True) + first
    token = Token(state)
    if description.contiguous:
        staged = np.empty(description.shape, dtype)
        np.copyto(staged, host, casting="same_kind")
        state.memory.pool.write(address, staged.reshape(-1).view(np.uint8))
    else:
        # The bytes between strided elements must not change: read all bytes, set the elements, and write all bytes
        # back.
        data = np.empty(last - first, np.uint8)
        state.memory.pool.read(address, data)
        strided: np.ndarray[Any, Any] = np.ndarray(
            description.shape, dtype, data, description.offset - first, description.strides
        )
        np.copyto(strided, host, casting="same_kind")
        state.memory.pool.write(address, data)
    del token


def _on_host(state: LeaseState, source: Any, description: Description) -> np.ndarray[Any, Any] | None:
    """Return `source` as an array on the CPU; or let the GPU copy `source` into the lease, and return None.

    If NumPy lacks the lease's type, the array has the bits of that type.
    """
    element = description.element
    if isinstance(source, np.ndarray):
        return _converted(source, element)
    if _sources.on_device(source):
        found = _sources.source_of(source)
        if found.unordered and isinstance(source, ArrayExports):
            state_of(source).memory.synchronize()  # other GPUs may write it
        if (
            found.contiguous
            and found.shape == description.shape
            and found.element == element
            and description.contiguous
            and state.memory.pool.device[0] == _dlpack.CUDA
        ):
            token = Token(state)
            _sources.order(found, _sources.LEGACY_STREAM)
            address = state.memory.address(write=True) + description.offset
            state.memory.synchronize()  # other GPUs may use the memory, too
            _cuda.copy_on_device(state.memory.pool.device[1], address, found.address, description.nbytes, found.ordinal)
            del token
            return None
        return _bits_of(found, element)
    has_array = hasattr(source, "__array__") and not element.packed
    if not (_sources.lacks_array(source) or hasattr(source, "__dlpack__")) or has_array:
        try:
            # NumPy turns bytes into text.
            host = _sources.plain(memoryview(source) if isinstance(source, bytes) else source)
        except (TypeError, RuntimeError):
            # NumPy may not know the element type, for example bfloat16; DLPack may know it, or says why not.
            if not hasattr(source, "__dlpack_device__"):
                raise
        else:
            return _converted(host, element)
    return _bits_of(_sources.source_of(source), element)


def _bits_of(source: Source, element: ElementType) -> np.ndarray[Any, Any]:
    """Return the elements of `source` on the CPU. Elements of the same type keep their bits, those of NaNs, too."""
    if source.element == element:
        return source.on_host()
    return _converted(source.to_host(), element)


def _converted(host: np.ndarray[Any, Any], element: ElementType) -> np.ndarray[Any, Any]:
    """Return the bits of `element` if NumPy lacks this type; otherwise NumPy converts `host` when it copies it."""
    return host if element.in_numpy else _to_bits(host, element)


def _to_bits(host: np.ndarray[Any, Any], element: ElementType) -> np.ndarray[Any, Any]:
    """Round each element to float32 and then to a type that NumPy lacks, and return the bits.

    Of two equally near values, take that with last bit 0. The types of the package ml_dtypes are numbers, too.
    """
    if host.dtype.name == element.name:
        return host.view(element.typestr)
    if host.dtype.kind not in "fiub" and host.dtype.type.__module__ != "ml_dtypes":
        raise TypeError(f"elements of {host.dtype} cannot become {element.name}")
    single = np.ascontiguousarray(host, np.float32)
    if element.name != "bfloat16":
        return single.astype(dtype_of(element)).view(element.typestr).reshape(host.shape)
    bits = single.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), rounded).reshape(host.shape)
