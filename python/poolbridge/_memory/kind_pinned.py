"""Implements the kind ``pinned``: imports a CUDA pool of host memory, which the CPU and the GPUs use."""

from __future__ import annotations

import ctypes
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
    from poolbridge._wire.messages import PoolInfo
    from poolbridge._wire.transport import Descriptors


class PinnedBlock(BlockMemory):
    """An imported allocation of the pool."""

    def __init__(self, pool: PinnedPool, address: int) -> None:
        self.pool: PinnedPool = pool
        self._address = address

    def address(self, *, write: bool) -> int:  # noqa: ARG002
        """Return the block's address for reading and for writing: CUDA cannot map a block of a pool read-only."""
        return self._address

    def synchronize(self) -> None:
        """Wait until the device has done its work."""
        self.pool.synchronize()

    def close(self) -> None:
        """Free this process's import of the block."""
        self.pool.imported.release_block(self._address)

    def evidence(self) -> dict[str, Any]:
        """Return what the driver knows about the block's address."""
        facts = _cuda.pointer_facts(self._address)
        return {"mapped": facts["memory_type"] != "0", "route": self.pool.imported.route, **facts}


class PinnedPool(GPUPool):
    """An imported pool of kind ``pinned``.

    For array libraries the memory is the CPU's (``kDLCPU``), because PyTorch, CuPy and JAX refuse ``kDLCUDAHost``. A
    view with ``device="cuda"`` says that the memory is the GPU's: kernels use it, but the driver refuses the copies
    between the GPU and the CPU that libraries make, because these copies name a direction.
    """

    @property
    def on_cpu(self) -> bool:
        """True: the memory is memory of the host."""
        return True

    def __init__(self, kind: KindName, imported: _cuda_imports.PinnedPool) -> None:
        super().__init__(kind, imported.ordinal)
        self.imported = imported

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> PinnedBlock:  # noqa: ARG002
        """Import one block by `export`: 64 bytes that the CUDA driver made for this block in the service's process."""
        if len(export) != _cuda_imports.HANDLE_BYTES:
            raise ProtocolError(
                f"the export of a pinned block has {_cuda_imports.HANDLE_BYTES} bytes, got {len(export)}"
            )
        return PinnedBlock(self, self.imported.import_block(export))

    def check_peer(self, ordinal: int) -> None:
        """Do nothing: a GPU needs no peer access to use host memory."""

    def grant(self, ordinal: int) -> None:
        """Raise an error if the GPU `ordinal` did not get access when this process imported the pool."""
        self.imported.grant(ordinal)

    def close(self) -> None:
        """Close this process's import of the pool."""
        self.imported.close()

    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Wait until the GPUs have done this process's work so far. Then copy from `address` to `out` on the CPU."""
        self.synchronize()
        ctypes.memmove(out.ctypes.data, address, out.nbytes)

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Wait until the GPUs have done this process's work so far. Then copy `data` to `address` on the CPU."""
        self.synchronize()
        ctypes.memmove(address, data.ctypes.data, data.nbytes)


class PinnedKind(Kind):
    """Host memory that the CPU and NVIDIA GPUs use."""

    name = "pinned"

    def map_pool(self, pool: PoolInfo, export: bytes, descriptors: Descriptors) -> PinnedPool:  # noqa: ARG002
        """Import the pool for the GPU that `pool` names. Close the descriptor: the import itself keeps the memory."""
        ordinal = _cuda.find_device(pool.device_uuid)
        with descriptors.lent() as fd:
            return PinnedPool(self.name, _cuda_imports.PinnedPool(ordinal, fd))
