"""Allocates memory of a GPU."""

from __future__ import annotations

from typing import Any


class Allocator:
    """Allocates device memory of this process, and has a stream. With `ipc`, other processes can import the memory."""

    def __init__(self, most_bytes: int, *, ipc: bool) -> None:
        from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

        device = Device(0)
        device.set_current()
        self.stream = device.create_stream()
        options = DeviceMemoryResourceOptions(ipc_enabled=ipc, max_size=most_bytes) if ipc else None
        self.resource = DeviceMemoryResource(device, options=options)

    def new(self, nbytes: int) -> Any:
        """Allocate a buffer. Other streams and processes can use the buffer at once."""
        buffer = self.resource.allocate(nbytes, stream=self.stream)
        self.stream.sync()
        return buffer
