"""The warning that a library does not keep from writing what is leased to be read.

DLPack and ``__cuda_array_interface__`` say that memory is read-only; some libraries do not look. Nothing that a
consumer says by DLPack tells whether it will: PyTorch, which does not, asks for versioned capsules as others do.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Final

from poolbridge._memory import dlpack as _dlpack
from poolbridge._sys.errors import ReadOnlyWarning

if TYPE_CHECKING:
    from poolbridge._memory.kinds import PoolMemory

_BY_DLPACK: Final = {"cupy": "CuPy"}
_BY_INTERFACE: Final = {"cupy": "CuPy", "numba": "Numba"}

_warned = False


def check_consumer(pool: PoolMemory) -> None:
    """Warn if the library that asks for read-only memory may write it: call it from ``__dlpack__``."""
    if _warned or not pool.write_fault:
        return
    if _dlpack.asked_by("torch.utils.dlpack"):
        _warn("PyTorch", pool)
    elif pool.device[0] == _dlpack.CUDA and not _dlpack.asked_by("jax._src.dlpack"):
        _warn_of_loaded(_BY_DLPACK, pool)


def check_interface(pool: PoolMemory) -> None:
    """Warn if a library that reads ``__cuda_array_interface__`` of read-only memory may write it."""
    if not _warned and pool.write_fault:
        _warn_of_loaded(_BY_INTERFACE, pool)


def _warn_of_loaded(libraries: Mapping[str, str], pool: PoolMemory) -> None:
    """Warn of the libraries that this process has loaded: they are compiled, so that no frame tells who asks."""
    loaded = [name for module, name in libraries.items() if module in sys.modules]
    if loaded:
        _warn(" and ".join(loaded), pool)


def _warn(library: str, pool: PoolMemory) -> None:
    global _warned  # noqa: PLW0603 - once for each process
    level, frame = 1, sys._getframe()  # noqa: SLF001 - CPython's, documented
    while _is_inside(frame) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"memory that is leased to be read is mapped read-only (kind {pool.kind!r}), and {library} does not keep from "
        f"writing it: a write, such as an operation in place, {pool.write_fault}. Copy what is to be written, by the "
        "tensor's clone() or the array's copy(), or lease it with write=True",
        ReadOnlyWarning,
        stacklevel=level,
    )
    _warned = True  # not before: where a filter makes an error of it, each try is one


def _is_inside(frame: FrameType) -> bool:
    """Whether a frame is this package's or PyTorch's: the warning is about the line that called them."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] in {"poolbridge", "torch"}
