"""Legacy handles: 64 bytes that name memory of a GPU to other processes, through whatever carries bytes."""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Final, Self

import numpy as np

from poolbridge._cuda import cuda as _cuda
from poolbridge._cuda import imports as _cuda_imports
from poolbridge._memory import dlpack as _dlpack
from poolbridge._memory import kind_gpu as _kind_gpu
from poolbridge._memory import tensor as _tensor
from poolbridge._sys.errors import InvalidArgumentError, LeaseReleasedError

HANDLE_BYTES: Final = 64
OFFSET_BYTES: Final = 8
SAVED_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LegacyHandle:
    """What ``cuIpcGetMemHandle`` made, and where in what it opens the memory lies.

    It is good while the process that made it lives, and cannot be opened in that process.

    Attributes
    ----------
    handle
        The driver's 64 bytes.
    offset
        Bytes from the beginning of what the handle opens.
    device
        UUID of the GPU, or ``""`` where the handle came without.
    nbytes
        How many bytes there are, or 0 for all that follow.
    dtype, shape
        What the memory holds, where that is known; ``dtype`` is None otherwise.
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
            raise InvalidArgumentError(f"an offset lies between 0 and 2**64-1, not at {self.offset}")

    def __bytes__(self) -> bytes:
        """Give the driver's 64 bytes, and the offset: 8 bytes, little-endian."""
        return self.handle + self.offset.to_bytes(OFFSET_BYTES, "little")

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, *, device: str = "", nbytes: int = 0) -> Self:
        """Make one of bytes.

        Parameters
        ----------
        data
            The 72 bytes that ``bytes(handle)`` gives, or the driver's 64 alone.
        device
            UUID of the GPU; left out: the current one when it is opened.
        nbytes
            Bytes of the memory; 0: all that the handle opens.

        Raises
        ------
        InvalidArgumentError
            Another number of bytes.
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
        """Read a file.

        Parameters
        ----------
        path
            A file that ``poolsvc export`` wrote, or one of 64 or 72 bytes.

        Raises
        ------
        InvalidArgumentError
            The file is short, or of another kind of memory.
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
        """Open the handle; give the block that it opens, and how many bytes there are from the offset on.

        The caller closes the block: `open` gives an object that does.

        Raises
        ------
        InvalidArgumentError
            It is no handle, or the bytes lie outside of what it opens.
        OwnerDiedError, SecondContextError, UnavailableError
            It cannot be opened: see `open`.
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
        """Map the memory; what is returned closes itself.

        Parameters
        ----------
        device
            Ordinal or UUID of the GPU that works on the memory: its kernels reach what is opened, also where the memory
            is on another one. Left out: that of the handle, or the first.
        shape, dtype
            What the memory holds; left out: what the handle says, or plain bytes.
        own_context
            Open it in the calling thread's current context, if it has one, and not in the device's primary one. Copies
            and `close` then work in that context, whatever is current later; destroying it ends what was opened in it.
            Array libraries use the primary one.

        Raises
        ------
        OwnerDiedError
            The process that owns the memory is gone.
        SecondContextError
            The current context is not the primary one, and the driver does not open the handle in it: memory of the
            same block is open in the primary one.
        PeerAccessError
            The hardware does not let this GPU reach the memory of the one that the handle names.
        UnavailableError
            There is no driver or GPU, or this is the process that owns the memory.
        InvalidArgumentError
            It is no handle, what is asked for lies outside, or the current context is of another GPU.
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
        """Raise if a GPU cannot reach the memory, where both GPUs are known."""
        own = next((d["ordinal"] for d in _cuda.devices() if d["uuid"] == self.device), ordinal)
        if own != ordinal:
            _kind_gpu.check_peer(ordinal, own)


class OpenedMemory:
    """Memory of another process, opened by its legacy handle: an array that other libraries can take.

    Arrays made from it keep it; it is closed when the last of them and it are gone, by ``close()``, or at the end of a
    ``with``.
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
        """Element type; the bits of ``bfloat16`` are ``uint16``."""
        return np.dtype(self._element.typestr)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self._element.itemsize

    def view(self, *, legacy: bool = False) -> Self:  # noqa: ARG002
        """Give itself: it is a view already, and may be written; `legacy` changes nothing."""
        return self

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the CUDA array interface."""
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
        """Give DLPack's device type and id, the id as this process counts."""
        return (_dlpack.CUDA, self._ordinal)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | EllipsisType | None = ...,
        copy: bool | None = None,
    ) -> object:
        """Export the memory as a DLPack capsule, in place.

        Raises
        ------
        BufferError
            Another device or a copy was asked for, or NumPy asks, which does not reach it.
        """
        if _dlpack.by_cpu(dl_device, stream):
            raise BufferError("NumPy cannot reach memory of a GPU in place: copy it by to_numpy()")
        target = self.__dlpack_device__() if dl_device is None or dl_device is ... else tuple(dl_device)
        if copy or target != self.__dlpack_device__():
            raise BufferError("memory that was opened by its handle is exported in place only")
        array = np.asarray(_Pointing(self, self._interface()))
        versioned = max_version is not None and max_version[0] >= 1
        return _dlpack.make_capsule(array, self._element, self.__dlpack_device__(), versioned=versioned)

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Copy the elements into a new NumPy array."""
        out = np.empty(self.shape, self.dtype)
        block = self._opened()
        if out.size:
            block.copy_to_host(out, self.address)
        return out

    def copy_from(self, source: Any) -> None:
        """Copy `source`, an array of NumPy's or what becomes one, into the memory; complete on return.

        It is broadcast to the memory's shape and cast to its dtype (``same_kind``).
        """
        staged = np.empty(self.shape, self.dtype)
        np.copyto(staged, np.asarray(source), casting="same_kind")
        block = self._opened()
        if staged.size:
            block.copy_from_host(self.address, staged)

    def close(self) -> None:
        """Unmap the memory; nothing may use it any more. Closing again does nothing."""
        block, self._block = self._block, None
        if block is not None:
            block.synchronize()
            block.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_block", None) is not None and not sys.is_finalizing():
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self.address:#x}"
        return f"<poolbridge.OpenedMemory {self._element.name}{list(self.shape)} on {self.device}, {state}>"


class _Pointing:
    """Has NumPy point at the memory, and keeps it."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: OpenedMemory, interface: dict[str, Any]) -> None:
        self.owner = owner
        self.__array_interface__ = interface
