"""Kinds of memory: what one has to be able to do, and which there are.

A kind is one file with one `Kind`, listed in `load`; nothing else has to know it.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, get_args

from poolbridge._sys import literals as _literals
from poolbridge._sys.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from poolbridge._wire.messages import Pool
    from poolbridge._wire.transport import Descriptors


class BlockMemory(ABC):
    """A block, mapped into this process.

    Attributes
    ----------
    pool
        The pool's memory, kept mapped by this reference.
    """

    pool: PoolMemory

    @abstractmethod
    def address(self, *, write: bool) -> int:
        """Address of the block's first byte, for reading or for writing; they may differ."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done the work that this process queued on the block."""

    @abstractmethod
    def close(self) -> None:
        """Unmap. Called once, when no lease, array or session of this process needs the block."""

    def evidence(self) -> dict[str, Any]:
        """Say how one can tell that this is mapped memory, not a copy; for diagnosis, may ask the driver."""
        return {}


class PoolMemory(ABC):
    """A pool, mapped or imported into this process.

    Attributes
    ----------
    kind
        The kind's name.
    device
        DLPack's device type and id of where it is used, the id as this process counts. Memory that the CPU reaches as
        well is a GPU's here.
    write_fault
        What a write to a block does that is mapped to be read; ``""`` where that cannot be mapped read-only.
    """

    kind: _literals.Kind
    device: tuple[int, int]
    write_fault = ""

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU reaches the memory in place."""
        return self.device[0] == 1

    @property
    def home(self) -> tuple[int, int]:
        """DLPack's device type and id of where the memory is."""
        return self.device

    @property
    def device_name(self) -> str:
        """``"cpu"``, or ``"cuda:0"`` with the ordinal as this process counts."""
        return "cpu" if self.device[0] == 1 else f"cuda:{self.device[1]}"

    def reach(self, ordinal: int) -> None:  # noqa: B027
        """Let another GPU than the memory's own reach what is and will be mapped, from this process.

        Raises
        ------
        PeerAccessError
            The hardware does not let it; the message names both.
        """
        # Memory of the CPU is no GPU's.

    @abstractmethod
    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> BlockMemory:
        """Map a block of `size` bytes; descriptors that are not taken stay with the caller."""

    @abstractmethod
    def close(self) -> None:
        """Unmap or forget. Called once, after every block."""

    @abstractmethod
    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Copy bytes from `address` into the contiguous host array `out`; complete on return."""

    @abstractmethod
    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy the contiguous host array `data` to `address`; complete on return."""

    @abstractmethod
    def duplicate(self, address: int, nbytes: int) -> tuple[int, object]:
        """Copy bytes into new memory of the same device; give its address and the object that owns it."""


class Kind(ABC):
    """One kind of memory.

    Attributes
    ----------
    name
        Its name on the wire.
    """

    name: _literals.Kind

    def apart(self, pool: Pool, device: int | str | None) -> int | None:  # noqa: ARG002
        """Give the GPU for which a pool has to be mapped apart from what is mapped for others.

        Parameters
        ----------
        pool
            The pool.
        device
            The GPU that is to work on it; None: its own.

        Returns
        -------
        int or None
            Its ordinal, or None where what is mapped serves all of them.
        """
        return None

    @abstractmethod
    def map_pool(self, pool: Pool, export: bytes, descriptors: Descriptors) -> PoolMemory:
        """Map a pool; descriptors that are not taken stay with the caller."""


_MODULES: Final[dict[str, tuple[str, str]]] = {
    "host": ("poolbridge._memory.kind_host", "HostKind"),
    "device": ("poolbridge._memory.kind_device", "DeviceKind"),
    "vmm": ("poolbridge._memory.kind_vmm", "VMMKind"),
    "legacy": ("poolbridge._memory.kind_legacy", "LegacyKind"),
    "pinned": ("poolbridge._memory.kind_pinned", "PinnedKind"),
}
KINDS: Final[tuple[_literals.Kind, ...]] = get_args(_literals.Kind)


def load(name: str) -> Kind:
    """Find a kind by its name on the wire; imports what it needs only now.

    Raises
    ------
    UnsupportedError
        This client does not know the kind.
    """
    if name not in _MODULES:
        raise UnsupportedError(f"memory of kind {name!r} is not known here; known are {', '.join(KINDS)}")
    module, kind = _MODULES[name]
    made: Kind = getattr(importlib.import_module(module), kind)()
    return made
