"""Implements the kind ``legacy``: opens GPU memory of a running service by a handle of ``cuIpcGetMemHandle``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolbridge._cuda import cuda as _cuda, imports as _cuda_imports
from poolbridge._memory import dlpack as _dlpack
from poolbridge._memory.kind_gpu import GPUPool, peer_error
from poolbridge._memory.kinds import BlockMemory, Kind
from poolbridge._memory.legacyhandle import LegacyHandle
from poolbridge.errors import (
    InvalidArgumentError,
    OwnerDiedError,
    PoolbridgeError,
)

if TYPE_CHECKING:
    from poolbridge._wire.messages import PoolInfo
    from poolbridge._wire.transport import Descriptors


class LegacyBlock(BlockMemory):
    """A block that this process has opened by the block's handle."""

    def __init__(self, pool: LegacyPool, block: _cuda_imports.OpenedBlock, offset: int) -> None:
        self.pool: LegacyPool = pool
        self._block = block
        self._address = block.address + offset

    def address(self, *, write: bool) -> int:  # noqa: ARG002
        """Return the block's address for reading and for writing: CUDA cannot open a legacy handle read-only."""
        return self._address

    def close(self) -> None:
        """Close the opened handle."""
        self._block.close()

    def evidence(self) -> dict[str, Any]:
        """Return what the driver knows about the block's address."""
        facts = _cuda.pointer_facts(self._block.address)
        return {"mapped": facts["memory_type"] == "CU_MEMORYTYPE_DEVICE", "route": "driver", **facts}


class LegacyPool(GPUPool):
    """A pool whose blocks a client opens one by one, for the GPU that works on them. The pool itself has no handle.

    The driver maps the memory for one GPU only: the GPU of the context that opens the handle. No other GPU can use this
    mapping, even if the contexts of the two GPUs have peer access to each other. So one `LegacyPool` is for one GPU,
    which `grant` chooses before the first block is opened.
    """

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> LegacyBlock:  # noqa: ARG002
        """Open a block's handle, so that this process's GPU can use the block."""
        handle = LegacyHandle.from_bytes(export)
        try:
            block, _ = handle.map(self.device[1], size)
        except (OwnerDiedError, InvalidArgumentError) as error:
            if self.device[1] == self.ordinal or not self._opens(handle, size):
                raise
            reason = f"the driver opens the legacy handle for the memory's own GPU only: {error}"
            raise peer_error(self.device[1], self.ordinal, reason) from error
        return LegacyBlock(self, block, handle.offset)

    def _opens(self, handle: LegacyHandle, size: int) -> bool:
        """Whether the driver opens `handle` for the GPU that has the memory; `map_block` has failed for another GPU."""
        try:
            block, _ = handle.map(self.ordinal, size)
        except PoolbridgeError:
            return False
        block.close()
        return True

    def grant(self, ordinal: int) -> None:
        """Make `map_block` open all blocks for the GPU `ordinal`.

        The caller calls `grant` before it opens the first block. All blocks of this `LegacyPool` are for that GPU: see
        `LegacyKind.apart`.
        """
        self.device = (_dlpack.CUDA, ordinal)  # in these mappings, kernels of the memory's own GPU would fault

    def synchronize(self) -> None:
        """Wait until the GPU that works on the memory has done this process's work so far."""
        _cuda.synchronize(self.device[1])

    def close(self) -> None:
        """Do nothing: the client opens and closes each block separately, and the pool has no mapping."""


class LegacyKind(Kind):
    """Memory of an NVIDIA GPU that other processes open by a handle of 64 bytes."""

    name = "legacy"

    def apart(self, pool: PoolInfo, device: int | str | None) -> int | None:
        """Return the ordinal of the GPU `device`, which needs its own mapping; None if this GPU has the memory."""
        if device is None:
            return None
        ordinal = _cuda.ordinal_of(device)
        return None if ordinal == _cuda.find_device(pool.device_uuid) else ordinal

    def map_pool(self, pool: PoolInfo, export: bytes, descriptors: Descriptors) -> LegacyPool:  # noqa: ARG002
        """Find the GPU that has the pool's memory, by its UUID. There is no mapping of the whole pool."""
        return LegacyPool(self.name, _cuda.find_device(pool.device_uuid))
