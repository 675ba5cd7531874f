"""Kind ``device``: a CUDA memory pool of the service, imported by its descriptor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from poolbridge import _dlpack
from poolbridge._errors import ProtocolError
from poolbridge._kinds import BlockMemory, Kind, PoolMemory

if TYPE_CHECKING:
    import numpy as np

    from poolbridge._cuda import ImportedBlock, ImportedPool
    from poolbridge._messages import Pool
    from poolbridge._transport import Descriptors


class DeviceBlock(BlockMemory):
    """One allocation of the pool, imported."""

    def __init__(self, pool: DevicePool, block: ImportedBlock) -> None:
        self.pool: DevicePool = pool
        self._block = block

    def address(self, *, write: bool) -> int:  # noqa: ARG002
        """Give the one address: CUDA pools cannot be mapped read-only."""
        return self._block.address

    def synchronize(self) -> None:
        """Wait for the device."""
        self.pool.synchronize()

    def close(self) -> None:
        """Give the import up."""
        self._block.close()

    def evidence(self) -> dict[str, Any]:
        """Say what cuda.core and the driver know of the address."""
        from poolbridge import _cuda

        return {
            "mapped": self._block.is_mapped,
            "route": self._block.route,
            **_cuda.pointer_facts(self._block.address),
        }


class DevicePool(PoolMemory):
    """The pool, imported."""

    kind = "device"

    def __init__(self, ordinal: int, pool: ImportedPool) -> None:
        self.device = (_dlpack.CUDA, ordinal)
        self._ordinal = ordinal
        self._pool = pool

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> DeviceBlock:  # noqa: ARG002
        """Import one allocation; its 64 bytes are the export."""
        from poolbridge import _cuda

        if len(export) != _cuda.BLOB_BYTES:
            raise ProtocolError(f"the export of a device block has {_cuda.BLOB_BYTES} bytes, got {len(export)}")
        return DeviceBlock(self, self._pool.import_block(export, size))

    def close(self) -> None:
        """Give the import up."""
        self._pool.close()

    def synchronize(self) -> None:
        """Wait for the device."""
        from poolbridge import _cuda

        _cuda.synchronize(self._ordinal)

    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Copy from the device."""
        from poolbridge import _cuda

        _cuda.copy_to_host(self._ordinal, out, address)

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy to the device."""
        from poolbridge import _cuda

        _cuda.copy_from_host(self._ordinal, address, data)

    def duplicate(self, address: int, nbytes: int) -> tuple[int, object]:
        """Copy into memory of this process on the same device."""
        from poolbridge import _cuda

        copy = _cuda.Allocation(self._ordinal, max(nbytes, 1))
        if nbytes:
            _cuda.copy_on_device(self._ordinal, copy.address, address, nbytes)
        return copy.address, copy


class DeviceKind(Kind):
    """Memory of an NVIDIA GPU."""

    name = "device"

    def map_pool(self, pool: Pool, export: bytes, descriptors: Descriptors) -> DevicePool:  # noqa: ARG002
        """Import the pool on the GPU that its UUID names; the descriptor is closed, the import keeps the memory."""
        from poolbridge import _cuda

        # Found first: where there is no driver, the descriptor stays for another attempt.
        ordinal = _cuda.find_device(pool.du)
        fd = descriptors.one()
        try:
            return DevicePool(ordinal, _cuda.import_pool(ordinal, fd))
        finally:
            os.close(fd)
