"""Imports the CUDA memory pools of a pool of the service."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from poolbridge.errors import DeviceMemoryError, DriverError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolbridge._wire.transport import Descriptors

_BLOB_BYTES, _NUMBER_BYTES = 64, 8


class _Pool(Protocol):
    def close(self) -> None: ...


_P = TypeVar("_P", bound=_Pool)


class PoolImports(Generic[_P]):
    """CUDA memory pools by number: each process of the service that allocated memory had a pool of its own.

    A process must not import a pool twice. The caller holds the lock of the register of mappings.

    Parameters
    ----------
    import_pool
        Imports a pool by its descriptor, which it does not close.
    export, descriptors
        The export of the service's pool. It names a CUDA memory pool, or none: then each block names its own.
    """

    def __init__(self, import_pool: Callable[[int], _P], export: bytes, descriptors: Descriptors) -> None:
        self._import = import_pool
        self._first = int.from_bytes(export, "little")
        self._pools: dict[int, _P] = {}
        self._blocks = Counter[int]()
        if len(descriptors):
            self._open(self._first, descriptors)

    def _open(self, number: int, descriptors: Descriptors) -> None:
        with descriptors.lent() as fd:
            self._pools[number] = self._import(fd)

    def import_for(self, export: bytes, descriptors: Descriptors) -> tuple[int, _P, bytes]:
        """Return the number and the pool of a block, which this process maps next, and the block's name in the pool."""
        blob, number = export[:_BLOB_BYTES], self._first
        if len(export) == _BLOB_BYTES + _NUMBER_BYTES:
            number = int.from_bytes(export[_BLOB_BYTES:], "little")
        elif len(export) != _BLOB_BYTES:
            raise ProtocolError(
                f"the export of a block of a CUDA memory pool has {_BLOB_BYTES} bytes, and {_NUMBER_BYTES} more if it "
                f"names its pool, got {len(export)}"
            )
        if number not in self._pools:
            self._open(number, descriptors)
        return number, self._pools[number], blob

    def mapped(self, number: int) -> None:
        """Count a mapping of a block of the pool."""
        self._blocks[number] += 1
        self._prune()

    def unmapped(self, number: int) -> None:
        """Count it no more."""
        self._blocks[number] -= 1
        self._prune()

    def _prune(self) -> None:
        """Close old pools of which this process maps no block: the import of a pool keeps memory."""
        for number in sorted(self._pools)[:-1]:
            if not self._blocks[number]:
                with suppress(DriverError, DeviceMemoryError):  # `close` tries again
                    self._pools[number].close()
                    del self._pools[number]

    def grant(self, grant: Callable[[_P], None]) -> None:
        """Call `grant` with each pool."""
        for pool in self._pools.values():
            grant(pool)

    def close(self) -> None:
        """Close all pools. The caller has closed the blocks before."""
        for number in list(self._pools):
            self._pools[number].close()
            del self._pools[number]
