"""Maps files in such a way that a forked child cannot use the mappings.

When a process ends, the service lets other processes use the memory that the process has mapped. A child of the ended
process could still read and write that memory. So if C code forks, the kernel leaves these mappings out of the child
(``MADV_DONTFORK``). If Python forks, the child gets the mappings, and at once replaces each mapping by a reservation of
the same addresses, which no code can read or write. Without a reservation, the kernel could use the addresses for
another allocation of the child, and the child's copy of the `FileMapping` object would later unmap this allocation.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from poolbridge._sys.descriptors import descriptors_named
from poolbridge.errors import (
    DeviceMemoryError,
    ProtocolError,
)

_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10
_NOTHING: Final = _MAP_FIXED | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_F_GET_SEALS: Final = 1034
_F_SEAL_SHRINK: Final = 0x0002


def check_sealed(fd: int, size: int, what: str) -> None:
    """Check that a memfd has at least `size` bytes and is sealed against shrinking.

    If another process could shrink the file, SIGBUS would end this process when it uses a mapped page that is gone.

    Raises
    ------
    ProtocolError
        The file is smaller than `size`, is not sealed, or is no memfd.
    """
    try:
        sealed = fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK
    except OSError:
        sealed = 0
    if os.fstat(fd).st_size < size or not sealed:
        raise ProtocolError(f"the memfd of {what} is not sealed at {size} bytes")


class FileMapping:
    """A shared mapping of the first `size` bytes of a file.

    Parameters
    ----------
    fd
        The file's descriptor. The caller closes the descriptor, and may do so while the mapping exists.
    size
        Bytes to map.
    write
        Whether this process may write the bytes.

    Attributes
    ----------
    address
        Address of the first byte.
    memory
        The ``mmap`` object.

    Raises
    ------
    DeviceMemoryError
        The kernel refuses the mapping.
    PoolLimitError
        This process has no free file descriptor.
    """

    def __init__(self, fd: int, size: int, *, write: bool) -> None:
        protection = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
        options: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        failed = f"{size} bytes of shared memory cannot be mapped"
        try:
            with descriptors_named(failed):  # before Python 3.13, mmap keeps a copy of the descriptor
                self.memory = mmap.mmap(fd, size, mmap.MAP_SHARED, protection, **options)
        except OSError as error:
            raise DeviceMemoryError(f"{failed}: {error}") from error
        self.memory.madvise(mmap.MADV_DONTFORK)
        self.address = int(np.frombuffer(self.memory, np.uint8, 1).ctypes.data)
        self._size = size
        _mapped[self.address] = self

    def close(self) -> None:
        """Unmap the file. No memoryview of `memory` may exist."""
        _mapped.pop(self.address, None)
        self.memory.close()

    def reserve(self) -> None:
        """Reserve the mapping's addresses in a forked child, so that nothing else is mapped there."""
        _mmap(self.address, self._size, _PROT_NONE, _NOTHING, -1, 0)


_mapped: WeakValueDictionary[int, FileMapping] = WeakValueDictionary()


def _each(do: Callable[[FileMapping], object]) -> None:
    for reference in _mapped.valuerefs():  # `valuerefs` returns a list, because other threads map and unmap meanwhile
        mapping = reference()
        if mapping is not None and not mapping.memory.closed:
            do(mapping)


os.register_at_fork(
    before=lambda: _each(lambda mapping: mapping.memory.madvise(mmap.MADV_DOFORK)),
    after_in_parent=lambda: _each(lambda mapping: mapping.memory.madvise(mmap.MADV_DONTFORK)),
    after_in_child=lambda: _each(FileMapping.reserve),
)
