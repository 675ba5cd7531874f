"""Runs a small service for tests, with a part of protocol version 1 and with any wrong behaviour that a test needs.

The small service keeps pools of kind ``host`` in memfds, as the real service does. A test may put a function for an
operation into ``Service.tricks``. The small service then calls this function, with the connection and the request, and
does not handle the request itself.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from poolbridge._memory import tensor as _tensor
from poolbridge._wire import messages as m
from poolbridge._wire.limits import VERSION

_requests = msgspec.msgpack.Decoder(m.AnyRequest)
PAGE = 4096
SEALS = 0x0002 | 0x0004  # F_SEAL_SHRINK | F_SEAL_GROW


class Refused(Exception):
    def __init__(self, code: str, text: str = "refused by the fake service") -> None:
        super().__init__(code, text)
        self.error = m.Error(code, text)


@dataclass
class FakePool:
    info: m.PoolInfo
    fd: int
    top: int = 0
    free: dict[int, list[FakeBlock]] = field(default_factory=dict)
    memory: Any = None


@dataclass
class FakeBlock:
    id: int
    pool: FakePool
    size: int
    export: bytes
    generation: int = 0
    memory: Any = None


@dataclass
class FakeBuffer:
    id: int
    block: FakeBlock
    nbytes: int
    tensor: m.Tensor
    readers: int = 0
    writer: bool = False
    names: int = 0
    failed: bool = False


@dataclass
class FakeLease:
    id: int
    buffer: FakeBuffer
    write: bool

    def describe(self, export: Any = msgspec.UNSET) -> m.Grant:
        buffer, block = self.buffer, self.buffer.block
        return m.Grant(
            id=self.id,
            buffer=buffer.id,
            generation=block.generation,
            write=self.write,
            pool=block.pool.info.id,
            block=block.id,
            block_nbytes=block.size,
            nbytes=buffer.nbytes,
            tensor=buffer.tensor,
            export=export,
        )


class Service:
    """The small service. It listens at `path` until `close` is called."""

    connection_type: type[Connection]
    features: tuple[str, ...] = ()

    def __init__(self, path: str) -> None:
        self.path = path
        self.epoch = uuid.uuid4().bytes
        self.pools: dict[int, FakePool] = {}
        self.names: dict[str, FakeBuffer] = {}
        self.buffers: dict[int, FakeBuffer] = {}
        self.connections: list[Connection] = []
        self.tricks: dict[str, Callable[[Connection, Any], Any]] = {}
        self.log: list[Any] = []
        self.differences: list[tuple[m.Grant, m.Grant]] = []  # leases that a client describes differently
        self.changed = threading.Condition()
        self._ids = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    def make_pool(self, request: m.Create) -> FakePool:
        if request.kind != "host":
            raise Refused("unavailable", "the fake service has no GPU")
        size = -(-request.max_bytes // PAGE) * PAGE
        fd = os.memfd_create("poolbridge-fake", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, 1033, SEALS)  # F_ADD_SEALS
        return FakePool(
            m.PoolInfo(
                id=self.new_id(),
                name=request.name,
                kind="host",
                max_bytes=request.max_bytes,
                session_bytes=request.max_session_bytes,
                user_bytes=request.max_user_bytes,
            ),
            fd,
        )

    def make_block(self, pool: FakePool, size: int) -> FakeBlock:
        return FakeBlock(self.new_id(), pool, size, pool.top.to_bytes(8, "little"))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            connection = self.connection_type(self, sock)
            self.connections.append(connection)
            connection.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self.connections:
            connection.hang_up()
            connection.join()
        for pool in self.pools.values():
            if pool.fd >= 0:
                os.close(pool.fd)
        assert not self.differences, self.differences[:1]
        os.unlink(self.path)

    @property
    def leases(self) -> int:
        return sum(len(connection.leases) for connection in self.connections)

    def seen(self, kind: type) -> list[Any]:
        """Return the requests of one type that clients have sent, in order."""
        with self.changed:
            return [request for request in self.log if isinstance(request, kind)]

    def wait(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, seconds), "the fake service waited in vain"


class Connection(threading.Thread):
    def __init__(self, service: Service, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self.service = service
        self.sock = sock
        self.leases: dict[int, FakeLease] = {}
        self.exported: set[int] = set()
        self.opened: set[int] = set()

    def run(self) -> None:
        while True:
            try:
                data = self.sock.recv(1 << 17)
            except OSError:
                data = b""
            if not data:
                break
            request = _requests.decode(data)
            trick = self.service.tricks.get(str(type(request).__struct_config__.tag))
            with self.service.changed:
                self.service.log.append(request)
                if trick is None:
                    self.handle(request)
                self.service.changed.notify_all()
            if trick is not None:
                trick(self, request)
        with self.service.changed:
            for lease in list(self.leases.values()):
                self.end(lease, failed=lease.write)
            self.service.changed.notify_all()
        self.sock.close()

    def hang_up(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def send(self, message: msgspec.Struct | bytes, fds: list[int] | None = None) -> None:
        data = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.sock.sendmsg([data], control)
        except OSError:
            pass  # the client is gone

    def handle(self, request: Any) -> None:
        fds: list[int] = []
        try:
            reply = getattr(self, type(request).__name__.lower())(request, fds)
        except Refused as refused:
            reply = m.Reply(number=request.number, error=refused.error)
        if request.number:
            self.send(reply if reply is not None else m.Reply(number=request.number), fds)

    # Operations

    def hello(self, request: m.Hello, fds: list[int]) -> m.Reply:
        if VERSION not in request.versions:
            raise Refused("version")
        features = tuple(feature for feature in request.features if feature in self.service.features)
        id_ = self.service.new_id()
        return m.HelloReply(
            number=request.number, version=1, epoch=self.service.epoch, session=id_, pid=os.getpid(), features=features
        )

    def create(self, request: m.Create, fds: list[int]) -> m.Reply:
        for pool in self.service.pools.values():
            if pool.info.name == request.name:
                if not request.ensure or (pool.info.kind, pool.info.max_bytes, pool.info.session_bytes) != (
                    request.kind,
                    request.max_bytes,
                    request.max_session_bytes,
                ):
                    raise Refused("exists")
                return self.export_pool(request.number, pool, fds)
        pool = self.service.make_pool(request)
        self.service.pools[pool.info.id] = pool
        return self.export_pool(request.number, pool, fds)

    def export_pool(self, number: int, pool: FakePool, fds: list[int]) -> m.Reply:
        info = pool.info
        if info.id not in self.opened:
            self.opened.add(info.id)
            fds.append(pool.fd)
            info = msgspec.structs.replace(info, export=m.Export(fds=1))
        return m.PoolReply(number=number, pool=info)

    def open(self, request: m.Open, fds: list[int]) -> m.Reply:
        for pool in self.service.pools.values():
            if request.name == pool.info.name or request.pool == pool.info.id:
                return self.export_pool(request.number, pool, fds)
        raise Refused("timeout" if request.wait else "not-found")

    def destroy(self, request: m.Destroy, fds: list[int]) -> None:
        os.close(self.pool(request.pool).fd)
        self.service.pools.pop(request.pool)

    def trim(self, request: m.Trim, fds: list[int]) -> m.Reply:
        pool = self.pool(request.pool)
        given = sum(block.size for blocks in pool.free.values() for block in blocks)
        return m.TrimReply(number=request.number, nbytes=given)

    def pool(self, id_: int) -> FakePool:
        try:
            return self.service.pools[id_]
        except KeyError:
            raise Refused("not-found") from None

    def alloc(self, request: m.Alloc, fds: list[int]) -> m.Reply:
        pool = self.pool(request.pool)
        nbytes = _tensor.describe(request.tensor.shape, request.tensor.dtype).nbytes
        size = -(-max(nbytes, 1) // PAGE) * PAGE
        free = pool.free.setdefault(size, [])
        if free:
            block = free.pop()
        else:
            if pool.top + size > pool.info.max_bytes:
                raise Refused("limit")
            block = self.service.make_block(pool, size)
            pool.top += size
        block.generation += 1
        buffer = FakeBuffer(self.service.new_id(), block, nbytes, request.tensor)
        self.service.buffers[buffer.id] = buffer
        return self.grant(request.number, buffer, write=True)

    def grant(self, number: int, buffer: FakeBuffer, *, write: bool) -> m.Reply:
        if buffer.failed:
            raise Refused("failed")
        if buffer.writer or (write and buffer.readers):
            raise Refused("busy")
        if write:
            buffer.writer = True
        else:
            buffer.readers += 1
        lease = FakeLease(self.service.new_id(), buffer, write)
        self.leases[lease.id] = lease
        block = buffer.block
        export: Any = msgspec.UNSET
        if block.id not in self.exported:
            self.exported.add(block.id)
            export = m.Export(data=block.export)
        return m.GrantReply(number=number, grant=lease.describe(export))

    def publish(self, request: m.Publish, fds: list[int]) -> None:
        lease = self.find(request.lease)
        if request.name in self.service.names and not request.replace:
            raise Refused("exists")
        old = self.service.names.get(request.name)
        if old is not None:
            old.names -= 1
            self.recycle(old)
        self.service.names[request.name] = lease.buffer
        if request.tensor is not msgspec.UNSET:
            lease.buffer.tensor = request.tensor
        lease.buffer.names += 1
        lease.buffer.writer, lease.write = False, False
        lease.buffer.readers += 1

    def unpublish(self, request: m.Unpublish, fds: list[int]) -> None:
        buffer = self.service.names.pop(request.name, None)
        if buffer is None:
            raise Refused("not-found")
        buffer.names -= 1
        self.recycle(buffer)

    def get(self, request: m.Get, fds: list[int]) -> m.Reply:
        buffer = self.service.names.get(request.name)
        if buffer is None:
            raise Refused("timeout" if request.wait else "not-found")
        return self.grant(request.number, buffer, write=request.write)

    def leasebuffer(self, request: m.LeaseBuffer, fds: list[int]) -> m.Reply:
        buffer = self.service.buffers.get(request.buffer)
        if buffer is None or buffer.block.generation != request.generation:
            raise Refused("stale")
        return self.grant(request.number, buffer, write=request.write)

    def find(self, id_: int) -> FakeLease:
        try:
            return self.leases[id_]
        except KeyError:
            raise Refused("released") from None

    def release(self, request: m.Release, fds: list[int]) -> None:
        error: Refused | None = None
        for lease in request.lease, *request.also:  # an unknown lease does not stop the loop, as in the real service
            try:
                found = self.find(lease)
                if request.seen is not msgspec.UNSET and request.seen != found.describe():
                    self.service.differences.append((request.seen, found.describe()))
                self.release_one(found, request)
            except Refused as refused:
                error = error or refused
        if error is not None:
            raise error

    def release_one(self, lease: FakeLease, request: m.Release) -> None:
        self.end(lease, failed=request.failed)

    def end(self, lease: FakeLease, *, failed: bool) -> None:
        del self.leases[lease.id]
        buffer = lease.buffer
        if lease.write:
            buffer.writer = False
            buffer.failed = failed
        else:
            buffer.readers -= 1
        self.recycle(buffer)

    def recycle(self, buffer: FakeBuffer) -> None:
        if buffer.id in self.service.buffers and not (buffer.readers or buffer.writer or buffer.names):
            del self.service.buffers[buffer.id]
            buffer.block.pool.free.setdefault(buffer.block.size, []).append(buffer.block)

    def cancel(self, request: m.Cancel, fds: list[int]) -> None:
        pass

    def bye(self, request: m.Bye, fds: list[int]) -> None:
        """Accept the message `Bye` of a client, and do nothing."""

    def dropped(self, request: m.Dropped, fds: list[int]) -> None:
        self.exported.difference_update(request.blocks)

    def recall(self, *blocks: int) -> None:
        self.send(m.Recall(blocks=blocks))

    def statsrequest(self, request: m.StatsRequest, fds: list[int]) -> m.Reply:
        service = self.service
        return m.StatsReply(
            number=request.number,
            stats=m.ServiceStats(
                sessions=len(service.connections),
                leases=service.leases,
                buffers=len(service.buffers),
                names=len(service.names),
                pools=tuple(m.PoolStats(pool=pool.info, reserved=pool.top) for pool in service.pools.values()),
            ),
        )


Service.connection_type = Connection


def working(client: Any, connection: Connection, request: Any, *, named: bool = True) -> None:
    """Send the message `Working`. Return when the client has reached its time limit and has begun to wait again."""
    call = client._session.core._calls[request.number]
    connection.send(m.Working(request=request.number if named else 0))
    for expected in (True, False):
        while call.working is not expected and not call.abandoned:
            time.sleep(0.001)
