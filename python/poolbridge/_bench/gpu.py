"""Does what several measurements on a GPU need: checks for a GPU, makes streams, and allocates device memory."""

from __future__ import annotations

from typing import Any

from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._libraries.consumers import Consumer, probe
from poolbridge.errors import UnavailableError


def missing_gpu() -> str:
    """Return why this process can use no GPU; empty if this process can use a GPU."""
    try:
        return "" if _cuda.devices() else "this process sees no GPU"
    except UnavailableError as error:
        return str(error)


def preferred_consumer() -> str:
    """Return the name of the array library that the benchmarks prefer for device memory."""
    return str(probe()["consumers"]["device"][0])


def stream_of(library: Consumer) -> Any:
    """Make a stream of the first GPU. If the library has no streams (NumPy), return poolbridge's own stream."""
    try:
        return library.stream(0)
    except UnavailableError:
        return _cuda_stream.own_stream(0)


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
