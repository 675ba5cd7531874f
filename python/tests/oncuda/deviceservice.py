"""Runs the small service of `fakeservice` with pools of kind ``device``: ``deviceservice.py SOCKET [plain]``.

Each line of the program's input is the path of a socket. For each line, the program closes its service and starts a
new one at this path. So tests share one process: a process that uses a GPU takes seconds to start. The service has
timelines, unless the program has the argument ``plain``. The service exports memory through cuda.core. When a client
asks for ``trim``, the service recalls every free block.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions
from fakeservice import FakeBlock, FakePool
from faketimelines import TimelineConnection, TimelineService

from poolbridge._cuda import cuda as _cuda
from poolbridge._wire import messages as m


class DeviceConnection(TimelineConnection):
    def trim(self, request: m.Trim, fds: list[int]) -> m.Reply:
        pool = self.pool(request.pool)
        free = [block for blocks in pool.free.values() for block in blocks]
        for connection in self.service.connections:
            exported = [block.id for block in free if block.id in connection.exported]
            if exported:
                connection.recall(*exported)
        return m.TrimReply(number=request.number, nbytes=sum(block.size for block in free))


class DeviceService(TimelineService):
    connection_type = DeviceConnection

    def make_pool(self, request: m.Create) -> FakePool:
        if request.kind != "device":
            return super().make_pool(request)
        ordinal = int(request.device or 0)
        device = Device(ordinal)
        device.set_current()
        options = DeviceMemoryResourceOptions(ipc_enabled=True, max_size=request.max_bytes)
        memory: Any = DeviceMemoryResource(device, options)
        uuid = _cuda.devices()[ordinal]["uuid"]
        info = m.PoolInfo(
            id=self.new_id(),
            name=request.name,
            kind="device",
            device_ordinal=ordinal,
            device_uuid=uuid,
            max_bytes=request.max_bytes,
            session_bytes=request.max_session_bytes,
            user_bytes=request.max_user_bytes,
        )
        return FakePool(info, os.dup(int(memory.allocation_handle)), memory=memory)

    def make_block(self, pool: FakePool, size: int) -> FakeBlock:
        if pool.memory is None:
            return super().make_block(pool, size)
        device = Device(pool.info.device_ordinal)
        device.set_current()
        stream = device.create_stream()
        buffer = pool.memory.allocate(size, stream=stream)
        stream.sync()
        blob = buffer.ipc_descriptor.__reduce__()[1][0]
        return FakeBlock(self.new_id(), pool, size, blob, memory=buffer)


if __name__ == "__main__":
    if sys.argv[2:] == ["plain"]:
        DeviceService.features = ()
    running = DeviceService(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        running.close()
        running = DeviceService(line.strip())
        print("ready", flush=True)
    # When the process ends, the driver frees the memory that the tests have left.
    os._exit(0)
