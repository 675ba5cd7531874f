"""Adds timelines to the small service of `fakeservice`, with only the rules that the tests of the client need."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from fakeservice import SEALS, Connection, FakeBuffer, FakeLease, Refused, Service

from poolbridge._order.page import FILE_BYTES, TOMBSTONE
from poolbridge._wire import messages as m
from poolbridge._wire.limits import TIMELINE_WORDS

UNSET = msgspec.UNSET


@dataclass
class FakePage:
    fd: int
    words: memoryview
    owner: Connection
    mapping: mmap.mmap
    sealed: bool = False

    def close(self) -> None:
        self.words.release()
        self.mapping.close()
        os.close(self.fd)


class TimelineService(Service):
    features: tuple[str, ...] = ("timelines",)

    def __init__(self, path: str) -> None:
        self.pages: dict[int, FakePage] = {}
        self.ready: dict[int, list[m.Fence]] = {}
        self.done: dict[int, list[m.Fence]] = {}
        super().__init__(path)

    def close(self) -> None:
        super().close()
        for page in self.pages.values():
            page.close()

    def unreached(self, fences: Iterable[m.Fence]) -> tuple[m.Fence, ...]:
        highest: dict[tuple[int, int], int] = {}
        for fence in fences:
            if fence.timeline in self.pages and self.pages[fence.timeline].words[fence.word] < fence.value:
                key = (fence.timeline, fence.word)
                highest[key] = max(fence.value, highest.get(key, 0))
        return tuple(m.Fence(tl, wd, v) for (tl, wd), v in highest.items())

    def bury(self, connection: Connection) -> None:
        """End the timelines of a connection, as the real service does after a session and its process have ended."""
        for timeline, page in list(self.pages.items()):
            if page.owner is not connection:
                continue
            for word in range(TIMELINE_WORDS):
                page.words[word] += TOMBSTONE
            failed = [
                id_
                for id_, fences in self.ready.items()
                if any(t.timeline == timeline and page.words[t.word] % TOMBSTONE < t.value for t in fences)
            ]
            for other in self.connections:
                held = tuple(id_ for id_ in failed if any(x.buffer.id == id_ for x in other.leases.values()))
                if held:
                    other.send(m.Failed(buffers=held))
                other.send(m.Forget(timelines=(timeline,)))
            page.close()
            del self.pages[timeline]


class TimelineConnection(Connection):
    service: TimelineService

    def gettimeline(self, request: m.GetTimeline, fds: list[int]) -> m.Reply:
        pages = self.service.pages
        id_ = request.timeline or next((id_ for id_, page in pages.items() if page.owner is self), 0)
        if not id_:
            id_ = self.service.new_id()
            fd = os.memfd_create("poolbridge-timeline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, FILE_BYTES)
            fcntl.fcntl(fd, 1033, SEALS)
            mapping = mmap.mmap(fd, 4096)
            pages[id_] = FakePage(fd, memoryview(mapping).cast("Q"), self, mapping)
        if id_ not in pages:
            raise Refused("not-found")
        fds.append(pages[id_].fd)
        return m.TimelineReply(number=request.number, timeline=id_, words=TIMELINE_WORDS, export=m.Export(fds=1))

    def seal(self, request: m.Seal, fds: list[int]) -> None:
        for page in self.service.pages.values():
            if page.owner is self:
                assert not page.sealed
                fcntl.fcntl(page.fd, 1033, 0x0010)  # F_SEAL_FUTURE_WRITE
                page.sealed = True

    def check(self, fences: Iterable[m.Fence]) -> list[m.Fence]:
        checked = list(fences)
        for fence in checked:
            page = self.service.pages.get(fence.timeline)
            if page is None or page.owner is not self or not page.sealed:
                raise Refused("invalid", "a fence of another session's timeline")
        return checked

    def grant(self, number: int, buffer: FakeBuffer, *, write: bool) -> m.Reply:
        reply = super().grant(number, buffer, write=write)
        assert isinstance(reply, m.GrantReply)
        service = self.service
        fences = [*service.ready.get(buffer.id, ()), *(service.done.get(buffer.block.id, ()) if write else ())]
        reply.grant.wait = service.unreached(fences)
        return reply

    def publish(self, request: m.Publish, fds: list[int]) -> None:
        lease = self.find(request.lease)
        if request.ready is not UNSET:
            self.service.ready[lease.buffer.id] = self.check([request.ready])
        super().publish(request, fds)

    def release_one(self, lease: FakeLease, request: m.Release) -> None:
        fences = self.check(request.done)
        if lease.write:
            self.service.ready.setdefault(lease.buffer.id, []).extend(fences)
        self.service.done.setdefault(lease.buffer.block.id, []).extend(fences)
        super().release_one(lease, request)


TimelineService.connection_type = TimelineConnection
