"""Implements the kind ``pinned``: imports a CUDA pool of host memory, which the CPU and the GPUs use."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from poolbridge._cuda import cuda as _cuda, imports as _cuda_imports
from poolbridge._memory.kind_gpu import GPUPool
from poolbridge._memory.kinds import BlockMemory, Kind
from poolbridge._memory.pool_imports import PoolImports

if TYPE_CHECKING:
    import numpy as np

    from poolbridge._sys.literals import Kind as KindName
    from poolbridge._wire.messages import PoolInfo
    from poolbridge._wire.transport import Descriptors


class PinnedBlock(BlockMemory):
    """An imported allocation of the pool."""

    def __init__(self, pool: PinnedPool, number: int, of: _cuda_imports.PinnedPool, address: int) -> None:
        self.pool: PinnedPool = pool
        self._number = number
        self._of = of
        self._address = address
        pool.imports.mapped(number)

    def address(self, *, write: bool) -> int:  # noqa: ARG002
        """Return the block's address for reading and for writing: CUDA cannot map a block of a pool read-only."""
        return self._address

    def close(self) -> None:
        """Free this process's import of the block."""
        self._of.release_block(self._address)
        self.pool.imports.unmapped(self._number)

    def evidence(self) -> dict[str, Any]:
        """Return what the driver knows about the block's address."""
        facts = _cuda.pointer_facts(self._address)
        return {"mapped": facts["memory_type"] != "0", "route": self._of.route, **facts}


class PinnedPool(GPUPool):
    """An imported pool of kind ``pinned``.

    For array libraries the memory is the CPU's (``kDLCPU``), because PyTorch, CuPy and JAX refuse ``kDLCUDAHost``. A
    view with ``device="cuda"`` says that the memory is the GPU's: kernels use it, but the driver refuses the copies
    between the GPU and the CPU that libraries make, because these copies name a direction.
    """

    on_cpu = True

    def __init__(self, kind: KindName, ordinal: int, export: bytes, descriptors: Descriptors) -> None:
        super().__init__(kind, ordinal)
        self.imports = PoolImports(lambda fd: _cuda_imports.PinnedPool(ordinal, fd), export, descriptors)

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> PinnedBlock:  # noqa: ARG002
        """Import one block by `export`, which the CUDA driver made for this block in the service's process."""
        number, pool, blob = self.imports.import_for(export, descriptors)
        return PinnedBlock(self, number, pool, pool.import_block(blob))

    def synchronize(self) -> None:
        """Wait until all GPUs that this process uses have done its work so far: each of them reaches the memory."""
        for ordinal in range(_cuda.call("cuDeviceGetCount")):
            if _cuda_imports.has_primary(ordinal):
                _cuda.synchronize(ordinal)

    def check_peer(self, ordinal: int) -> None:
        """Do nothing: a GPU needs no peer access to use host memory."""

    def grant(self, ordinal: int) -> None:
        """Raise an error if the GPU `ordinal` did not get access when this process imported the pool."""
        self.imports.grant(lambda pool: pool.grant(ordinal))

    def close(self) -> None:
        """Close this process's import of the pool."""
        self.imports.close()

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

    def map_pool(self, pool: PoolInfo, export: bytes, descriptors: Descriptors) -> PinnedPool:
        """Import the pool for the GPU that `pool` names. Close the descriptor: the import itself keeps the memory."""
        return PinnedPool(self.name, _cuda.find_device(pool.device_uuid), export, descriptors)
