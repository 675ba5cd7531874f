"""Mappings of files that a forked child does not get.

When a process is gone, the service gives its memory to others. A child that it forked before would still see that
memory, and could write it, so the kernel is told to leave such a mapping out of children. Nothing else may come to lie
there in the child: its copies of these objects unmap the addresses when they go.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import sys
from typing import Any, Final
from weakref import WeakSet

import numpy as np

from poolbridge._sys.errors import DeviceMemoryError, ProtocolError

_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10
_NOTHING: Final = _MAP_FIXED | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_F_GET_SEALS: Final = 1034
_F_SEAL_SHRINK: Final = 0x0002


def check_sealed(fd: int, size: int, what: str) -> None:
    """Check that a memfd has `size` bytes and will keep them: it could shrink, and reading would then be SIGBUS.

    Raises
    ------
    ProtocolError
        It is smaller, not sealed, or no memfd.
    """
    try:
        sealed = fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK
    except OSError:
        sealed = 0
    if os.fstat(fd).st_size < size or not sealed:
        raise ProtocolError(f"the memfd of {what} is not sealed at {size} bytes")


class FileMapping:
    """A shared mapping of a file from its start.

    Parameters
    ----------
    fd
        The file; it stays the caller's.
    size
        Bytes to map.
    write
        Whether this process may write them.

    Attributes
    ----------
    address
        Where it is.
    memory
        The mapping, as an object with a buffer.

    Raises
    ------
    DeviceMemoryError
        The kernel refuses.
    """

    def __init__(self, fd: int, size: int, *, write: bool) -> None:
        protection = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
        options: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        try:
            self.memory = mmap.mmap(fd, size, mmap.MAP_SHARED, protection, **options)
        except OSError as error:
            raise DeviceMemoryError(f"{size} bytes of shared memory cannot be mapped: {error}") from error
        self.memory.madvise(mmap.MADV_DONTFORK)
        self.address = int(np.frombuffer(self.memory, np.uint8, 1).ctypes.data)
        self._size = size
        _mapped.add(self)

    def close(self) -> None:
        """Unmap it; nothing may have its buffer."""
        _mapped.discard(self)
        self.memory.close()

    def reserve(self) -> None:
        """In a forked child: have nothing else come to lie where the parent has the mapping."""
        _mmap(self.address, self._size, _PROT_NONE, _NOTHING, -1, 0)


_mapped: WeakSet[FileMapping] = WeakSet()


def _forked() -> None:
    for mapping in _mapped:
        mapping.reserve()


os.register_at_fork(after_in_child=_forked)
