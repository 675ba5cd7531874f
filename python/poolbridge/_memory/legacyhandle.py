"""Makes legacy handles from bytes and files, and opens them.

A legacy handle of CUDA is 64 bytes. Another process opens memory of a GPU by these bytes. A program can send the bytes
to the other process by any means, for example in a file.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from poolbridge._cuda import cuda as _cuda, imports as _cuda_imports
from poolbridge._memory import dlpack as _dlpack, kind_gpu as _kind_gpu, tensor as _tensor
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.uncopied import Uncopied
from poolbridge._wire.limits import SAVED_VERSION
from poolbridge.errors import (
    InvalidArgumentError,
    LeaseReleasedError,
)

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

HANDLE_BYTES: Final = 64
OFFSET_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class LegacyHandle:
    """A legacy handle of CUDA (``cuIpcGetMemHandle``), by which another process opens memory of a GPU.

    The handle opens a whole allocation. `offset` and `nbytes` say which bytes of the allocation are the memory. The
    handle is valid while the process that made it lives. That process itself cannot open the handle.

    Attributes
    ----------
    handle
        The 64 bytes that the driver made.
    offset
        Bytes from the beginning of the allocation to the memory.
    device
        UUID of the GPU that has the memory; ``""``: not known.
    nbytes
        Number of bytes of the memory; 0: all bytes of the allocation from `offset` on.
    dtype
        Element type of the memory, such as ``"float32"``; None: not known.
    shape
        Number of elements along each axis. If `dtype` is None, `shape` has no meaning.

    Raises
    ------
    InvalidArgumentError
        `handle` does not have 64 bytes, or `offset` is out of range.
    """

    handle: bytes
    offset: int = 0
    device: str = ""
    nbytes: int = 0
    dtype: str | None = None
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.handle) != HANDLE_BYTES:
            raise InvalidArgumentError(f"a legacy handle has {HANDLE_BYTES} bytes, got {len(self.handle)}")
        if self.offset < 0 or self.offset >= 2**64:
            raise InvalidArgumentError(f"an offset is from 0 to 2**64-1, got {self.offset}")

    def __bytes__(self) -> bytes:
        """Return 72 bytes: first the driver's 64 bytes, then `offset` as 8 bytes in little-endian order."""
        return self.handle + self.offset.to_bytes(OFFSET_BYTES, "little")

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, *, device: str = "", nbytes: int = 0) -> Self:
        """Make a handle from bytes.

        Parameters
        ----------
        data
            The 72 bytes that ``bytes(handle)`` gives, or only the driver's 64 bytes.
        device
            UUID of the GPU that has the memory. If the caller passes no UUID here and no `device` to `open`, `open`
            uses the first GPU.
        nbytes
            Number of bytes of the memory; 0: all bytes of the allocation from the offset on.

        Raises
        ------
        InvalidArgumentError
            `data` does not have 64 or 72 bytes.
        """
        data = bytes(data)
        if len(data) not in {HANDLE_BYTES, HANDLE_BYTES + OFFSET_BYTES}:
            raise InvalidArgumentError(
                f"a legacy handle has {HANDLE_BYTES} bytes, or {HANDLE_BYTES + OFFSET_BYTES} with its offset, "
                f"got {len(data)}"
            )
        return cls(data[:HANDLE_BYTES], int.from_bytes(data[HANDLE_BYTES:], "little"), device, nbytes)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a legacy handle from a file.

        Parameters
        ----------
        path
            A file that ``poolsvc export`` wrote, or a file of 64 or 72 bytes.

        Raises
        ------
        InvalidArgumentError
            The file is malformed, or describes memory of a kind that has no legacy handles.
        OSError
            The file cannot be read.
        """
        content = Path(path).read_bytes()
        try:
            saved = json.loads(content)
        except ValueError:
            return cls.from_bytes(content)
        if not isinstance(saved, dict) or saved.get("poolbridge") != SAVED_VERSION:
            raise InvalidArgumentError(f"{path} is no saved buffer of version {SAVED_VERSION}")
        if saved.get("kind") != "legacy":
            raise InvalidArgumentError(
                f"{path} is of memory of kind {saved.get('kind')!r}, which no handle of bytes can open: get "
                f"{saved.get('name')!r} from the service on {saved.get('socket')}"
            )
        try:
            raw = base64.b64decode(saved["handle"], validate=True)
            shape = tuple(int(n) for n in saved.get("shape") or ())
            handle = cls.from_bytes(raw, device=saved.get("device", ""), nbytes=int(saved["bytes"]))
            skip = int(saved.get("byte_offset", 0))
            return cls(
                handle.handle, handle.offset + skip, handle.device, handle.nbytes - skip, str(saved["dtype"]), shape
            )
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise InvalidArgumentError(f"{path} is no saved buffer: {error}") from error

    def map(self, ordinal: int, nbytes: int, *, own_context: bool = False) -> tuple[_cuda_imports.OpenedBlock, int]:
        """Open the handle without making an `OpenedMemory`. Programs use `open` instead.

        Parameters
        ----------
        ordinal
            The ordinal, in this process, of the GPU that works on the memory.
        nbytes
            The smallest number of bytes that the allocation may have from `offset` on; 0: any number.
        own_context
            See `open`.

        Returns
        -------
        tuple
            The opened allocation, which the caller closes, and the size of the memory in bytes. The size is `nbytes`;
            if `nbytes` is 0, the size is the number of all bytes of the allocation from `offset` on.

        Raises
        ------
        InvalidArgumentError
            The bytes are no handle, or the memory lies outside of the allocation.
        OwnerDiedError, SecondContextError, UnavailableError
            See `open`.
        """
        block = _cuda_imports.OpenedBlock(ordinal, self.handle, own_context=own_context)
        if self.offset > block.nbytes or nbytes > block.nbytes - self.offset:
            block.close()
            raise InvalidArgumentError(
                f"{nbytes} bytes at {self.offset} lie outside of the {block.nbytes} that the handle opens"
            )
        return block, nbytes or block.nbytes - self.offset

    def open(
        self,
        device: int | str | None = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        own_context: bool = False,
    ) -> OpenedMemory:
        """Map the memory into this process.

        Parameters
        ----------
        device
            Ordinal or UUID of the GPU that works on the memory. Kernels of this GPU can use the memory, even if the
            memory is on another GPU. None: the handle's GPU, or the first GPU if the handle names no GPU.
        shape, dtype
            Shape and element type of the memory; None: the handle's shape and dtype. If the handle has no dtype, the
            elements are bytes.
        own_context
            True: open the handle in the calling thread's current context, if the thread has one. False: open the handle
            in the device's primary context. Copies and `OpenedMemory.close` always work in the context in which the
            handle was opened, even if another context is current later. If the program destroys that context, the
            memory is not mapped any more. Array libraries always work in the primary context.

        Returns
        -------
        OpenedMemory
            The mapped memory. The memory is unmapped when this object and the last array made from it are gone.

        Raises
        ------
        OwnerDiedError
            The process that owns the memory is gone.
        SecondContextError
            The current context is not the primary context, and the driver does not open the handle in the current
            context, because memory of the same allocation is open in the primary context.
        PeerAccessError
            The hardware does not let the GPU `device` use the memory of the handle's GPU.
        UnavailableError
            There is no driver or GPU, this process cannot see the GPU, or this process owns the memory.
        InvalidArgumentError
            The bytes are no handle, the memory lies outside of the allocation, or the current context belongs to
            another GPU.
        """
        name = self.device if device is None else device
        ordinal = _cuda.find_device(name) if isinstance(name, str) and name else int(name or 0)
        self._check_peer(ordinal)
        element = _tensor.element_type(dtype if dtype is not None else self.dtype or "uint8")
        if shape is None and self.dtype is not None and dtype is None:
            shape = self.shape
        wanted = self.nbytes if shape is None else math.prod(shape) * element.itemsize
        block, nbytes = self.map(ordinal, wanted, own_context=own_context)
        if shape is None:
            shape = (nbytes // element.itemsize,)
        return OpenedMemory(block, self.offset, tuple(shape), element)

    def _check_peer(self, ordinal: int) -> None:
        """Raise an error if the GPU `ordinal` cannot use the memory. Do nothing if the memory's GPU is not known."""
        own = next((d["ordinal"] for d in _cuda.devices() if d["uuid"] == self.device), ordinal)
        if own != ordinal:
            _kind_gpu.check_peer(ordinal, own)


class OpenedMemory(Uncopied):
    """Memory of another process, opened by a legacy handle. Array libraries use this object as an array without a copy.

    `LegacyHandle.open` makes this object. The end of a ``with`` block closes the memory. Without ``with``, the memory
    is closed when the program calls ``close()``, or when this object and the last array made from it are gone.

    Attributes
    ----------
    device
        The GPU that works on the memory, with its ordinal in this process, such as ``"cuda:0"``.
    shape
        Number of elements along each axis.
    address
        Address of the first element.
    """

    def __init__(
        self, block: _cuda_imports.OpenedBlock, offset: int, shape: tuple[int, ...], element: _tensor.ElementType
    ) -> None:
        self.device = f"cuda:{block.ordinal}"
        self.shape = shape
        self.address = block.address + offset
        self._ordinal = block.ordinal
        self._block: _cuda_imports.OpenedBlock | None = block
        self._element = element

    @property
    def closed(self) -> bool:
        """Whether the memory is unmapped."""
        return self._block is None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type, as a NumPy dtype; ``uint16`` for the bits of ``bfloat16``."""
        return np.dtype(self._element.typestr)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of all elements: ``size * dtype.itemsize``."""
        return self.size * self._element.itemsize

    def view(self, *, legacy: bool = False, device: str | None = None) -> Self:  # noqa: ARG002
        """Return this object, to be used like the view of a lease; ``legacy`` and ``device`` have no effect."""
        return self

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The description of the memory in version 3 of the CUDA array interface.

        Raises
        ------
        LeaseReleasedError
            The memory was closed.
        """
        return {**self._interface(), "stream": None}

    def _opened(self) -> _cuda_imports.OpenedBlock:
        if self._block is None:
            raise LeaseReleasedError("the memory has been closed")
        return self._block

    def _interface(self) -> dict[str, Any]:
        self._opened()
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self._element.typestr,
            "strides": None,
            "data": (self.address, False),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type (2: CUDA) and device id, which is the GPU's ordinal in this process."""
        return (_dlpack.CUDA, self._ordinal)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | EllipsisType | None = ...,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Export the memory as a DLPack capsule, without a copy. Libraries call this method in ``from_dlpack``.

        See `BaseLease.__dlpack__` for the parameters. This method makes no stream wait for work on the memory.

        Returns
        -------
        PyCapsule
            A capsule that keeps the memory open.

        Raises
        ------
        BufferError
            The library asks for another device or for a copy, or the library is NumPy, which cannot use memory of a
            GPU.
        LeaseReleasedError
            The memory was closed.
        """
        if _dlpack.by_cpu(dl_device, stream):
            raise BufferError("NumPy cannot reach memory of a GPU in place: copy it by to_numpy()")
        target = self.__dlpack_device__() if dl_device is None or dl_device is ... else tuple(dl_device)
        if copy or target != self.__dlpack_device__():
            raise BufferError("memory opened by its handle can be exported in place only: copy it by to_numpy()")
        array = np.asarray(_Pointing(self, self._interface()))
        versioned = max_version is not None and max_version[0] >= 1
        return _dlpack.make_capsule(array, self._element, self.__dlpack_device__(), versioned=versioned)

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Copy the elements into a new NumPy array.

        Returns
        -------
        numpy.ndarray
            A C-contiguous array of `shape` and `dtype`.

        Raises
        ------
        LeaseReleasedError
            The memory was closed.
        """
        out = np.empty(self.shape, self.dtype)
        block = self._opened()
        if out.size:
            block.copy_to_host(out, self.address)
        return out

    def copy_from(self, source: Any) -> None:
        """Copy `source` into the memory. The copy is complete when this method returns.

        `source` is a NumPy array or an object that NumPy can convert to an array. NumPy broadcasts `source` to the
        memory's shape, and casts `source` to the memory's dtype by NumPy's casting rule ``same_kind``.
        """
        staged = np.empty(self.shape, self.dtype)
        np.copyto(staged, np.asarray(source), casting="same_kind")
        block = self._opened()
        if staged.size:
            block.copy_from_host(self.address, staged)

    def close(self) -> None:
        """Wait until the GPU is idle, and unmap the memory. Do not use the memory's arrays any more. Idempotent."""
        block, self._block = self._block, None
        if block is not None:
            block.synchronize()
            block.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @while_running
    def __del__(self) -> None:
        if getattr(self, "_block", None) is not None:
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self.address:#x}"
        return f"<poolbridge.OpenedMemory {self._element.name}{list(self.shape)} on {self.device}, {state}>"


class _Pointing:
    """An object from which NumPy makes an array of the memory. This object keeps `owner`, and so the memory, alive."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: OpenedMemory, interface: dict[str, Any]) -> None:
        self.owner = owner
        self.__array_interface__ = interface
