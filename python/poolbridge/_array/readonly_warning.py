"""Warns if the program uses a library that does not check whether memory is read-only before it writes the memory.

DLPack and ``__cuda_array_interface__`` say that memory is read-only, but some libraries ignore that mark. poolbridge
cannot see which library asks for the memory, except for NumPy, which respects read-only memory. So poolbridge warns if
the program has loaded a library that ignores the mark.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Final

from poolbridge._memory import dlpack as _dlpack
from poolbridge.errors import (
    ReadOnlyWarning,
)

if TYPE_CHECKING:
    from poolbridge._memory.kinds import PoolMemory

_ON_CPU: Final = {"torch": "PyTorch"}
_ON_GPU: Final = {"torch": "PyTorch", "cupy": "CuPy"}
_BY_INTERFACE: Final = {"cupy": "CuPy", "numba": "Numba"}

_warned = False


def check_consumer(pool: PoolMemory) -> None:
    """Warn if the library that calls ``__dlpack__`` may write read-only memory. Do not call this function for NumPy."""
    if not _warned and pool.write_fault:
        _warn_of_loaded(_ON_GPU if pool.device[0] == _dlpack.CUDA else _ON_CPU, pool)


def check_interface(pool: PoolMemory) -> None:
    """Warn if a library that reads ``__cuda_array_interface__`` of read-only memory may write the memory."""
    if not _warned and pool.write_fault:
        _warn_of_loaded(_BY_INTERFACE, pool)


def _warn_of_loaded(libraries: Mapping[str, str], pool: PoolMemory) -> None:
    """Warn of the libraries in `libraries` that the program has loaded."""
    loaded = [name for module, name in libraries.items() if module in sys.modules]
    if loaded:
        _warn(" and ".join(loaded), pool)


def _warn(library: str, pool: PoolMemory) -> None:
    global _warned  # noqa: PLW0603 - once for each process
    level, frame = 1, sys._getframe()  # noqa: SLF001 - CPython's, documented
    while _is_inside(frame) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"memory that is leased to be read is mapped read-only (kind {pool.kind!r}), and {library} does not check that "
        f"before it writes: a write, such as an operation in place, {pool.write_fault}. Copy what you write, by the "
        "tensor's clone() or the array's copy(), or lease it with write=True",
        ReadOnlyWarning,
        stacklevel=level,
    )
    _warned = True  # after the warning: if a filter turns the warning into an error, each attempt raises the error


def _is_inside(frame: FrameType) -> bool:
    """Whether the stack frame `frame` runs code of poolbridge or PyTorch. The warning names the caller of such code."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] in {"poolbridge", "torch"}
