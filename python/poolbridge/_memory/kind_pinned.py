"""Kind ``pinned``: a CUDA pool of host memory. The CPU and the GPUs use this memory at the same address."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from poolbridge._cuda import cuda as _cuda, imports as _cuda_imports
from poolbridge._memory.kind_gpu import GPUPool
from poolbridge._memory.kinds import BlockMemory, Kind
from poolbridge.errors import (
    ProtocolError,
)

if TYPE_CHECKING:
    import numpy as np

    from poolbridge._sys.literals import Kind as KindName
    from poolbridge._wire.messages import Pool
    from poolbridge._wire.transport import Descriptors


class PinnedBlock(BlockMemory):
    """An imported allocation of the pool."""

    def __init__(self, pool: PinnedPool, address: int) -> None:
        self.pool: PinnedPool = pool
        self._address = address

    def address(self, *, write: bool) -> int:  # noqa: ARG002
        """Return the address. It is the same for reading and for writing: a CUDA pool cannot be mapped read-only."""
        return self._address

    def synchronize(self) -> None:
        """Wait for the device."""
        self.pool.synchronize()

    def close(self) -> None:
        """Free the import."""
        self.pool.imported.release_block(self._address)

    def evidence(self) -> dict[str, Any]:
        """Return what the driver knows about the address."""
        facts = _cuda.pointer_facts(self._address)
        return {"mapped": facts["memory_type"] != "0", "route": self.pool.imported.route, **facts}


class PinnedPool(GPUPool):
    """An imported pool of kind ``pinned``.

    For array libraries, DLPack reports the pool as memory of the GPU (``kDLCUDA``): PyTorch and CuPy use such memory
    without a copy, but not memory of type ``kDLCUDAHost``. For NumPy, DLPack reports the pool as memory of the CPU.
    """

    @property
    def on_cpu(self) -> bool:
        """True: the memory is memory of the host."""
        return True

    def __init__(self, kind: KindName, imported: _cuda_imports.PinnedPool) -> None:
        super().__init__(kind, imported.ordinal)
        self.imported = imported

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> PinnedBlock:  # noqa: ARG002
        """Import one block. Its `export` is 64 bytes that the driver of the service's process made."""
        if len(export) != _cuda_imports.HANDLE_BYTES:
            raise ProtocolError(
                f"the export of a pinned block has {_cuda_imports.HANDLE_BYTES} bytes, got {len(export)}"
            )
        return PinnedBlock(self, self.imported.import_block(export))

    def check_peer(self, ordinal: int) -> None:
        """Do nothing: a GPU needs no peer access to use host memory."""

    def grant(self, ordinal: int) -> None:
        """Raise if the GPU `ordinal` did not get access when the pool was imported."""
        self.imported.grant(ordinal)

    def close(self) -> None:
        """Close the import."""
        self.imported.close()

    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Wait until the GPUs have done their work so far, and let the CPU copy the bytes."""
        self.synchronize()
        ctypes.memmove(out.ctypes.data, address, out.nbytes)

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Wait until the GPUs have done their work so far, and let the CPU copy the bytes."""
        self.synchronize()
        ctypes.memmove(address, data.ctypes.data, data.nbytes)


class PinnedKind(Kind):
    """Host memory that the CPU and NVIDIA GPUs use."""

    name = "pinned"

    def map_pool(self, pool: Pool, export: bytes, descriptors: Descriptors) -> PinnedPool:  # noqa: ARG002
        """Import the pool for the GPU that the pool names. Close the descriptor; the import keeps the memory."""
        ordinal = _cuda.find_device(pool.du)
        fd = descriptors.one()
        try:
            return PinnedPool(self.name, _cuda_imports.PinnedPool(ordinal, fd))
        finally:
            os.close(fd)
