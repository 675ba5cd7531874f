"""Kind ``pinned``: a CUDA memory pool of the host, which CPU and GPU reach at the same address."""

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
        """Return the address, the same for reading and writing: CUDA pools cannot be mapped read-only."""
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
    """An imported pool.

    Array libraries see the pool as memory of the GPU, because PyTorch and CuPy accept DLPack's ``kDLCUDA`` in place but
    not ``kDLCUDAHost``. NumPy sees the pool as memory of the CPU.
    """

    @property
    def on_cpu(self) -> bool:
        """True: the memory is memory of the host."""
        return True

    def __init__(self, kind: KindName, imported: _cuda_imports.PinnedPool) -> None:
        super().__init__(kind, imported.ordinal)
        self.imported = imported

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> PinnedBlock:  # noqa: ARG002
        """Import one allocation by its export, the driver's 64 bytes."""
        if len(export) != _cuda_imports.HANDLE_BYTES:
            raise ProtocolError(
                f"the export of a pinned block has {_cuda_imports.HANDLE_BYTES} bytes, got {len(export)}"
            )
        return PinnedBlock(self, self.imported.import_block(export))

    def check_peer(self, ordinal: int) -> None:
        """Do nothing: memory of the host needs no peer access."""

    def grant(self, ordinal: int) -> None:
        """Raise if another GPU did not get access when the pool was imported."""
        self.imported.grant(ordinal)

    def close(self) -> None:
        """Close the import."""
        self.imported.close()

    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Copy by the CPU, after all work that is queued on the GPUs."""
        self.synchronize()
        ctypes.memmove(out.ctypes.data, address, out.nbytes)

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy by the CPU, after all work that is queued on the GPUs."""
        self.synchronize()
        ctypes.memmove(address, data.ctypes.data, data.nbytes)


class PinnedKind(Kind):
    """Memory of the host for the CPU and for an NVIDIA GPU."""

    name = "pinned"

    def map_pool(self, pool: Pool, export: bytes, descriptors: Descriptors) -> PinnedPool:  # noqa: ARG002
        """Import the pool for the GPU with the pool's UUID. Close the descriptor; the import keeps the memory."""
        ordinal = _cuda.find_device(pool.du)
        fd = descriptors.one()
        try:
            return PinnedPool(self.name, _cuda_imports.PinnedPool(ordinal, fd))
        finally:
            os.close(fd)
