"""Implements the kind ``host``: maps a memfd of the service twice, once for writing and once read-only."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from poolbridge._memory import dlpack as _dlpack
from poolbridge._memory.kinds import BlockMemory, Kind, PoolMemory
from poolbridge._sys.filemap import FileMapping, check_sealed
from poolbridge.errors import (
    ProtocolError,
)

if TYPE_CHECKING:
    from poolbridge._wire.messages import PoolInfo
    from poolbridge._wire.transport import Descriptors


class HostBlock(BlockMemory):
    """A block of a pool. The block has the same offset in both mappings of the pool."""

    def __init__(self, pool: HostPool, offset: int, size: int) -> None:
        self.pool: HostPool = pool
        self.offset = offset
        self.size = size

    def address(self, *, write: bool) -> int:
        """Return the block's address: in the writable mapping if `write` is True, else in the read-only mapping."""
        return (self.pool.writable if write else self.pool.readable) + self.offset

    def close(self) -> None:
        """Do nothing: the block has no mapping of its own, and the pool keeps its mappings."""

    def evidence(self) -> dict[str, Any]:
        """Find the block's mapping in /proc/self/maps; return its name, and whether it shares the memory of a memfd."""
        address = self.address(write=False)
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                start, end = (int(part, 16) for part in line.split(maxsplit=1)[0].split("-"))
                if start <= address < end:
                    fields = line.split(maxsplit=5)
                    name = fields[5].strip() if len(fields) > 5 else ""
                    return {"mapped": fields[1].endswith("s") and "memfd" in name, "mapping": name}
        return {"mapped": False, "mapping": ""}


class HostPool(PoolMemory):
    """The two mappings of a pool's whole memfd."""

    kind = "host"
    device = (_dlpack.CPU, 0)
    on_cpu = True
    write_fault = "ends this process (SIGSEGV)"

    def __init__(self, fd: int, size: int) -> None:
        check_sealed(fd, size, "a pool")
        self.size = size
        self._maps: list[FileMapping] = []
        try:
            self.writable = self._map(fd, write=True)
            self.readable = self._map(fd, write=False)
        except BaseException:
            self.close()
            raise

    def synchronize(self) -> None:
        """Do nothing: the CPU has no queued work."""

    def _map(self, fd: int, *, write: bool) -> int:
        mapping = FileMapping(fd, self.size, write=write)
        self._maps.append(mapping)
        return mapping.address

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> HostBlock:  # noqa: ARG002
        """Make the block at the offset that `export` contains as 8 bytes. Check that the block lies inside the pool."""
        if len(export) != 8:
            raise ProtocolError(f"the export of a host block has 8 bytes, got {len(export)}")
        offset = int.from_bytes(export, "little")
        if offset + size > self.size:
            raise ProtocolError(f"a block of {size} bytes at {offset} is outside the pool of {self.size} bytes")
        return HostBlock(self, offset, size)

    def close(self) -> None:
        """Unmap both mappings."""
        maps, self._maps = self._maps, []
        for mapping in maps:
            mapping.close()

    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Copy by the CPU."""
        ctypes.memmove(out.ctypes.data, address, out.nbytes)

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy by the CPU."""
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def duplicate(self, address: int, nbytes: int) -> tuple[int, object]:
        """Copy into a new NumPy array."""
        copy = np.empty(nbytes, np.uint8)
        self.read(address, copy)
        return int(copy.ctypes.data), copy


class HostKind(Kind):
    """Host memory, which needs no GPU."""

    name = "host"

    def map_pool(self, pool: PoolInfo, export: bytes, descriptors: Descriptors) -> HostPool:  # noqa: ARG002
        """Map the pool's memfd. Close the memfd's descriptor: the mappings themselves keep the memory."""
        with descriptors.lent() as fd:
            return HostPool(fd, pool.max_bytes)
