"""Defines the interface that each kind of memory implements, and loads a kind by its name.

Each kind has its own module with one subclass of `Kind`. `_MODULES` lists these modules. No other module names a
kind's classes.
CONTRIBUTING.md lists all places in the code where a new kind must be added.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, get_args

from poolbridge._sys import literals as _literals
from poolbridge._sys.descriptors import descriptors_named
from poolbridge.errors import (
    UnsupportedError,
)

if TYPE_CHECKING:
    import numpy as np

    from poolbridge._wire.messages import PoolInfo
    from poolbridge._wire.transport import Descriptors


class BlockMemory(ABC):
    """A block that is mapped into this process.

    Attributes
    ----------
    pool
        The memory of the block's pool. This reference keeps the pool mapped.
    base
        Where this memory begins in its block, in bytes: 0, except for a `BlockPart`.
    """

    pool: PoolMemory
    base = 0

    @abstractmethod
    def address(self, *, write: bool) -> int:
        """Return the address of the block's first byte. The addresses for writing and for reading may be different."""

    def synchronize(self) -> None:
        """Wait until the devices that may use the block have done the work that this process queued on them."""
        self.pool.synchronize()

    @abstractmethod
    def close(self) -> None:
        """Unmap the block, because this process does not need it any more. After an error, the caller tries again."""

    def evidence(self) -> dict[str, Any]:
        """Return facts for diagnosis: they show that the memory is mapped and is no copy. May call the driver."""
        return {}


class BlockPart(BlockMemory):
    """The memory of a mapped block from the byte `base` on. Only the block itself is closed."""

    def __init__(self, block: BlockMemory, base: int) -> None:
        self.pool = block.pool
        self.base = base
        self._block = block

    def address(self, *, write: bool) -> int:
        """See `BlockMemory.address`."""
        return self._block.address(write=write) + self.base

    def close(self) -> None:
        """Do nothing: the block has the mapping."""

    def evidence(self) -> dict[str, Any]:
        """See `BlockMemory.evidence`."""
        return self._block.evidence()


class PoolMemory(ABC):
    """A pool that is mapped or imported into this process.

    Attributes
    ----------
    kind
        The kind's name.
    device
        DLPack's device type and device id, in this process's numbering, of the device that uses the memory. If both a
        GPU and the CPU can use the memory, `device` is the GPU.
    on_cpu
        Whether the CPU can use the memory without a copy.
    write_fault
        What happens when the program writes to a block that is mapped for reading; ``""`` if the kind has no read-only
        mappings.
    """

    kind: _literals.Kind
    device: tuple[int, int]
    on_cpu = False
    write_fault = ""

    @property
    def home(self) -> tuple[int, int]:
        """DLPack's device type and id of the device that has the memory."""
        return self.device

    @property
    def device_name(self) -> str:
        """``"cpu"``, or a name such as ``"cuda:0"`` with the GPU's ordinal in this process."""
        return "cpu" if self.device[0] == 1 else f"cuda:{self.device[1]}"

    def reach(self, ordinal: int) -> None:  # noqa: B027
        """Give the GPU `ordinal`, in this process, access to the pool's present and later blocks.

        Raises
        ------
        PeerAccessError
            The hardware does not allow this access. The error's text names both GPUs.
        """
        # Do nothing for memory of the CPU.

    @abstractmethod
    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> BlockMemory:
        """Map a block of `size` bytes. On success, the caller closes the descriptors that are left in `descriptors`."""

    @abstractmethod
    def close(self) -> None:
        """Unmap the pool, whose blocks the caller has closed before. After an error, the caller tries again."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the devices that may use the memory have done the work that this process queued on them."""

    @abstractmethod
    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Copy bytes from `address` into the contiguous host array `out`. The copy is complete on return."""

    @abstractmethod
    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy the contiguous host array `data` to `address`. The copy is complete on return."""

    @abstractmethod
    def duplicate(self, address: int, nbytes: int) -> tuple[int, object]:
        """Copy `nbytes` bytes at `address` into new memory of the same device.

        Return the address of the new memory, and the object that owns the new memory.
        """


class Kind(ABC):
    """One kind of memory.

    Attributes
    ----------
    name
        The kind's name in the messages of the protocol.
    """

    name: _literals.Kind

    def apart(self, pool: PoolInfo, device: int | str | None) -> int | None:  # noqa: ARG002
        """Return the GPU for which a pool needs a separate mapping, if it needs one.

        Parameters
        ----------
        pool
            The pool.
        device
            The GPU that will work on the memory; None: the pool's own GPU.

        Returns
        -------
        int or None
            The ordinal of `device` if this GPU needs its own mapping of the pool; None: the pool's common mapping is
            enough.
        """
        return None

    @abstractmethod
    def map_pool(self, pool: PoolInfo, export: bytes, descriptors: Descriptors) -> PoolMemory:
        """Map a pool. On success, the caller closes the descriptors that are left in `descriptors`."""


_MODULES: Final[dict[str, tuple[str, str]]] = {
    "host": ("poolbridge._memory.kind_host", "HostKind"),
    "device": ("poolbridge._memory.kind_device", "DeviceKind"),
    "vmm": ("poolbridge._memory.kind_vmm", "VMMKind"),
    "legacy": ("poolbridge._memory.kind_legacy", "LegacyKind"),
    "pinned": ("poolbridge._memory.kind_pinned", "PinnedKind"),
}
KINDS: Final[tuple[_literals.Kind, ...]] = get_args(_literals.Kind)
# `ON_CPU`: the kinds of memory that the CPU can use. `ON_GPU`: the kinds that a GPU can use.
ON_CPU: Final[tuple[_literals.Kind, ...]] = ("host", "pinned")
ON_GPU: Final[tuple[_literals.Kind, ...]] = ("device", "vmm", "legacy", "pinned")


def load(name: str) -> Kind:
    """Return the kind that the protocol calls `name`. The first call for a kind imports the kind's module.

    Raises
    ------
    UnsupportedError
        This client does not know the kind.
    PoolLimitError
        This process has no free file descriptor, with which Python could read the module.
    """
    if name not in _MODULES:
        raise UnsupportedError(f"memory of kind {name!r} is not known here; known are {', '.join(KINDS)}")
    module, kind = _MODULES[name]
    with descriptors_named(f"the module for memory of kind {name!r} cannot be imported"):
        made: Kind = getattr(importlib.import_module(module), kind)()
    return made
