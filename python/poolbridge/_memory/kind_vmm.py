"""Implements the kind ``vmm``: imports blocks of ``cuMemCreate`` by their descriptors. Readers map them read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from poolbridge._cuda import cuda as _cuda, imports as _cuda_imports
from poolbridge._memory.kind_gpu import GPUPool
from poolbridge._memory.kinds import BlockMemory, Kind
from poolbridge.errors import (
    ProtocolError,
)

if TYPE_CHECKING:
    from poolbridge._cuda.imports import VirtualBlock
    from poolbridge._sys.literals import Kind as KindName
    from poolbridge._wire.messages import PoolInfo
    from poolbridge._wire.transport import Descriptors


class VMMBlock(BlockMemory):
    """One imported block. This process maps the block at most twice: once for reading and once for writing.

    Parameters
    ----------
    pool
        The pool.
    block
        The import. The object closes it.
    protected
        Whether readers have a mapping of their own, which is read-only.
    """

    def __init__(self, pool: VMMPool, block: VirtualBlock, *, protected: bool = True) -> None:
        self.pool: VMMPool = pool
        self._block = block
        self._protected = protected

    def address(self, *, write: bool) -> int:
        """Return the block's address for writing if `write` is True, else the address for reading."""
        return self._block.address(write=write or not self._protected)

    def close(self) -> None:
        """Unmap the block."""
        self._block.close()

    def evidence(self) -> dict[str, Any]:
        """Return what the driver knows about the block's address for reading."""
        facts = _cuda.pointer_facts(self.address(write=False))
        return {"mapped": facts["memory_type"] == "CU_MEMORYTYPE_DEVICE", "route": self._block.route, **facts}


class VMMPool(GPUPool):
    """A pool whose blocks a client imports one by one. The service exports each block, and does not export the pool."""

    write_fault = "breaks the CUDA context, and every later CUDA call of this process fails"

    def __init__(self, kind: KindName, ordinal: int) -> None:
        super().__init__(kind, ordinal)
        self._blocks: WeakSet[VirtualBlock] = WeakSet()

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> BlockMemory:
        """Import a block by its descriptor in `descriptors`, and close the descriptor."""
        if export:
            raise ProtocolError(f"the export of a vmm block has no bytes, got {len(export)}")
        return VMMBlock(self, self.import_block(size, descriptors))

    def import_block(self, size: int, descriptors: Descriptors) -> VirtualBlock:
        """Import physical memory of `size` bytes by its descriptor, and close the descriptor."""
        with descriptors.lent() as fd:
            block = _cuda_imports.VirtualBlock(self.ordinal, fd, size, self.others)
        self._blocks.add(block)
        return block

    def grant(self, ordinal: int) -> None:
        """Give the GPU `ordinal` access to all blocks that are imported now. Later blocks also get this access."""
        for block in list(self._blocks):
            block.grant(ordinal)

    def close(self) -> None:
        """Do nothing: the client imports and closes each block separately, and the pool has no mapping."""


class VMMKind(Kind):
    """Memory of an NVIDIA GPU that can be mapped read-only."""

    name = "vmm"

    def map_pool(self, pool: PoolInfo, export: bytes, descriptors: Descriptors) -> VMMPool:  # noqa: ARG002
        """Find the GPU that has the pool's memory, by its UUID. There is no mapping of the whole pool."""
        return VMMPool(self.name, _cuda.find_device(pool.device_uuid))
