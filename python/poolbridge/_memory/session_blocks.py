"""Describes the pools and blocks that a session knows. Each has an export, by which this process maps the memory."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from poolbridge._wire.messages import Fence, PoolInfo
from poolbridge._wire.transport import Descriptors

# A block keeps arrays for at most `_MOST_PLACES` places: each is a part of its memory and a description of it. It keeps
# at most `_MOST_ARRAYS` for each place.
_MOST_PLACES = 4096
_MOST_ARRAYS = 8


class SessionPool(Struct, eq=False, gc=True):
    """A pool that this session has opened: the pool's description, its export, and the export's descriptors."""

    info: PoolInfo
    export: bytes
    descriptors: Descriptors


class SessionBlock(Struct, eq=False, gc=True):
    """A block whose export the service sent to this session.

    Attributes
    ----------
    id, pool, size
        The block's id, the id of its pool, and the block's number of bytes.
    export, descriptors
        The export, and the export's descriptors. The descriptors are closed when the block is mapped.
    leases
        How many leases this session has on buffers in the block. Each array in ``arrays`` counts as one more lease
        while the array is alive.
    recalled
        Whether the service has recalled the block, or the client is closed.
    unmapping
        Whether the session is unmapping the block, or has failed to unmap it. The service must not free the block yet.
    stuck
        Whether the session has failed to unmap the block.
    mapped
        The mapping; None while the block is not mapped.
    uses
        The fences that the session's streams write after their work on the block. The keys are words of the session's
        own timeline, and the values are the fences' values.
    lone
        Whether arrays are used for frames in the block that no lease counts. Then `SessionMemory.lone_uses` has the
        fences of the work on these frames.
    arrays
        The arrays that the session made once and uses for all frames with the same memory and description. The key has
        the memory's base in the block and the description. Each array has beside it how it was made.
    layout
        A buffer of several arrays in the block, by its id and generation, and its description; None: none is known.
    generation
        The block's generation when the service sent the export to this session: how many buffers had used the block,
        including the buffer at that time.
    """

    id: int
    pool: int
    size: int
    export: bytes
    descriptors: Descriptors
    leases: int = 0
    recalled: bool = False
    unmapping: bool = False
    stuck: bool = False
    mapped: Any = None
    uses: dict[int, int] = field(default_factory=dict)
    lone: bool = False
    arrays: dict[tuple[Any, ...], list[tuple[Any, Any]]] = field(default_factory=dict)
    layout: tuple[tuple[int, int], Any] | None = None
    generation: int = 0

    def used(self, fence: Fence) -> None:
        """Note the fence of a stream's work on the block. If a word has several fences, keep only the largest value."""
        self.uses[fence.word] = max(fence.value, self.uses.get(fence.word, 0))

    def keep_array(self, place: tuple[Any, ...], made: tuple[Any, Any]) -> None:
        """Keep an array for later frames, unless the block is recalled. `place` is the key in `arrays`.

        The last item of `place` has the arrays of a frame of several arrays.
        """
        if self.recalled:
            return
        if len(self.arrays) >= _MOST_PLACES // max(len(place[-1]), 1):
            self.arrays.clear()
        arrays = self.arrays.setdefault(place, [])
        if len(arrays) >= _MOST_ARRAYS:
            arrays.clear()
        arrays.append(made)
