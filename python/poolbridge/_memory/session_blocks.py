"""A session's pools and blocks, with the exports by which this process maps them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from poolbridge._wire.messages import Fence, Pool
from poolbridge._wire.transport import Descriptors


class SessionPool(Struct, eq=False, gc=True):
    """A pool that this session has opened: its description, and its export."""

    info: Pool
    export: bytes
    descriptors: Descriptors


class SessionBlock(Struct, eq=False, gc=True):
    """A block whose export the service sent to this session.

    Attributes
    ----------
    id, pool, size
        The block's id, its pool's id, and its bytes.
    export, descriptors
        The export, and its descriptors until the block is mapped.
    leases
        How many leases of this session are on the block. An array in ``arrays`` counts as one lease while the array is
        alive.
    recalled
        Whether the service has recalled the block.
    mapped
        The mapping; None while the block is not mapped.
    uses
        The fences of the session's streams on the block. The keys are words of the session's own timeline, and the
        values are the fences' values.
    arrays
        The arrays that the session made once and uses for all frames in the block. Each entry has the tensor, the
        function that made the array, and the array.
    generation
        The block's generation when the service sent the export to this session.
    """

    id: int
    pool: int
    size: int
    export: bytes
    descriptors: Descriptors
    leases: int = 0
    recalled: bool = False
    mapped: Any = None
    uses: dict[int, int] = field(default_factory=dict)
    arrays: list[tuple[Any, Any, Any]] = field(default_factory=list)
    generation: int = 0

    def used(self, fence: Fence) -> None:
        """Note the fence of a stream's work on the block. Calls may come in any order of the fences' values."""
        self.uses[fence.wd] = max(fence.v, self.uses.get(fence.wd, 0))
