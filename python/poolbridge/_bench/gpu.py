"""What the alternatives that use a GPU have in common."""

from __future__ import annotations

from typing import Any

from poolbridge._cuda import cuda as _cuda
from poolbridge._libraries.consumers import probe
from poolbridge._sys.errors import UnavailableError


def missing_gpu() -> str:
    """Say why this process can use no GPU; empty if it can."""
    try:
        return "" if _cuda.devices() else "this process sees no GPU"
    except UnavailableError as error:
        return str(error)


def preferred_consumer() -> str:
    """Name the array library that takes device memory here."""
    return str(probe()["consumers"]["device"][0])


class Allocator:
    """Device memory of this process, from an IPC-enabled pool, and a stream."""

    def __init__(self, most_bytes: int, *, ipc: bool) -> None:
        from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

        device = Device(0)
        device.set_current()
        self.stream = device.create_stream()
        options = DeviceMemoryResourceOptions(ipc_enabled=ipc, max_size=most_bytes) if ipc else None
        self.resource = DeviceMemoryResource(device, options=options)

    def new(self, nbytes: int) -> Any:
        """Allocate a buffer, which other streams and processes can use at once."""
        buffer = self.resource.allocate(nbytes, stream=self.stream)
        self.stream.sync()
        return buffer
