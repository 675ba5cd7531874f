"""What the kinds of memory on a GPU have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolbridge import _dlpack
from poolbridge._kinds import PoolMemory

if TYPE_CHECKING:
    import numpy as np


class GPUPool(PoolMemory):
    """Memory on one GPU, which copies it.

    Parameters
    ----------
    kind
        The kind's name.
    ordinal
        The GPU, as this process counts.
    """

    def __init__(self, kind: str, ordinal: int) -> None:
        self.kind = kind
        self.device = (_dlpack.CUDA, ordinal)
        self.ordinal = ordinal

    def synchronize(self) -> None:
        """Wait for the device."""
        from poolbridge import _cuda

        _cuda.synchronize(self.ordinal)

    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Copy from the device."""
        from poolbridge import _cuda

        _cuda.copy_to_host(self.ordinal, out, address)

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy to the device."""
        from poolbridge import _cuda

        _cuda.copy_from_host(self.ordinal, address, data)

    def duplicate(self, address: int, nbytes: int) -> tuple[int, object]:
        """Copy into memory of this process on the same device."""
        from poolbridge import _cuda

        copy = _cuda.Allocation(self.ordinal, max(nbytes, 1))
        if nbytes:
            _cuda.copy_on_device(self.ordinal, copy.address, address, nbytes)
        return copy.address, copy
