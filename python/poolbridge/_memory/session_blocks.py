"""What a session knows of pools and blocks, and what of their exports is yet to be mapped."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from poolbridge._wire.messages import Fence, Pool
from poolbridge._wire.transport import Descriptors


class SessionPool(Struct, eq=False, gc=True):
    """A pool that this session opened: its description, and its export until that is mapped."""

    info: Pool
    export: bytes
    descriptors: Descriptors


class SessionBlock(Struct, eq=False, gc=True):
    """A block whose export this session was sent.

    ``leases`` counts this session's leases on it; ``mapped`` is the kind's mapping while there is one; ``uses`` has the
    words of the session's own timeline, and the values that they have when its streams are done with the block;
    ``arrays`` are those that are made once for all frames in the block: of which tensor, made by whom, and the array,
    which counts as a lease for as long as it is alive; ``generation`` is the block's when it was
    mapped.
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
        """Note when a stream is done with it; threads may say so in another order than the stream gets there."""
        self.uses[fence.wd] = max(fence.v, self.uses.get(fence.wd, 0))
