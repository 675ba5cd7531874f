"""Contains the code that all kinds of GPU memory share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from poolbridge._cuda import cuda as _cuda
from poolbridge._memory import dlpack as _dlpack
from poolbridge._memory.kinds import PoolMemory
from poolbridge.errors import (
    DriverError,
    PeerAccessError,
)

if TYPE_CHECKING:
    import numpy as np

    from poolbridge._sys.literals import Kind


class GPUPool(PoolMemory):
    """A pool of memory on one GPU. In the methods `read`, `write` and `duplicate`, this GPU copies the bytes.

    Parameters
    ----------
    kind
        The kind's name.
    ordinal
        The GPU's ordinal in this process.

    Attributes
    ----------
    others
        The ordinals of the other GPUs that have access to the memory.
    """

    def __init__(self, kind: Kind, ordinal: int) -> None:
        self.kind = kind
        self.device = (_dlpack.CUDA, ordinal)
        self.ordinal = ordinal
        self.others: tuple[int, ...] = ()

    @property
    def home(self) -> tuple[int, int]:
        """DLPack's device type and id of the GPU that has the memory."""
        return (_dlpack.CUDA, self.ordinal)

    def reach(self, ordinal: int) -> None:
        """Give the GPU `ordinal` access to the memory; see `PoolMemory.reach`."""
        if ordinal == self.ordinal or ordinal in self.others:
            return
        self.check_peer(ordinal)
        try:
            self.grant(ordinal)
        except DriverError as error:
            raise peer_error(ordinal, self.ordinal, str(error)) from error
        self.others = (*self.others, ordinal)

    def check_peer(self, ordinal: int) -> None:
        """Raise an error if the hardware does not let the GPU `ordinal` use this memory.

        Raises
        ------
        PeerAccessError
            The hardware does not let the GPU `ordinal` use the memory. The error's text names both GPUs.
        """
        check_peer(ordinal, self.ordinal)

    @abstractmethod
    def grant(self, ordinal: int) -> None:
        """Call the driver to give the GPU `ordinal` access to the memory. The access is for this process only."""

    def synchronize(self) -> None:
        """Wait until the pool's GPU, and all other GPUs with access, have done this process's work so far."""
        for ordinal in (self.ordinal, *self.others):
            _cuda.synchronize(ordinal)

    def _await_others(self) -> None:
        """Wait until other GPUs have done their work on the memory. The caller's copy waits only for the pool's GPU."""
        if self.others:
            self.synchronize()

    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Copy from `address` in the memory to `out` on the CPU."""
        self._await_others()
        _cuda.copy_to_host(self.device[1], out, address)

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy `data` on the CPU to `address` in the memory."""
        self._await_others()
        _cuda.copy_from_host(self.device[1], address, data)

    def duplicate(self, address: int, nbytes: int) -> tuple[int, object]:
        """Copy the bytes at `address` into new memory of this process on the same GPU; see `PoolMemory.duplicate`."""
        self.synchronize()
        copy = _cuda.Allocation(self.device[1], max(nbytes, 1))
        if nbytes:
            _cuda.copy_on_device(self.device[1], copy.address, address, nbytes)
        return copy.address, copy


def check_peer(ordinal: int, owner: int) -> None:
    """Raise an error if the hardware does not let the GPU `ordinal` use the memory of the GPU `owner`.

    Raises
    ------
    PeerAccessError
        The hardware does not let the GPU `ordinal` use the memory. The error's text names both GPUs.
    """
    if not _cuda.can_access_peer(ordinal, owner):
        reason = "the hardware has no peer access between them; work on the memory's own GPU, or copy"
        raise peer_error(ordinal, owner, reason)


def peer_error(ordinal: int, owner: int, reason: str) -> PeerAccessError:
    """Make the error for the case that the GPU `ordinal` cannot use the memory of the GPU `owner`."""
    return PeerAccessError(
        f"GPU {_cuda.describe(ordinal)} does not reach the memory of GPU {_cuda.describe(owner)}: {reason}"
    )
