"""The small service with timelines and channels: enough of their rules for the client's tests."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fakeservice import SEALS, Connection, FakeBuffer, FakeLease, Refused, Service

from poolbridge import _channel_messages as cm
from poolbridge import _messages as m
from poolbridge._page import TOMBSTONE, WORDS

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


@dataclass
class FakeFrame:
    number: int
    time: int
    buffer: FakeBuffer
    meta: dict[str, str]
    leases: int = 0


@dataclass
class FakeChannel:
    info: m.Channel
    number: int = 0
    kept: deque[FakeFrame] = field(default_factory=deque)
    subscribers: list[FakeSubscriber] = field(default_factory=list)
    shut: bool = False


@dataclass
class FakeSubscriber:
    id: int
    channel: FakeChannel
    connection: ChannelConnection
    credit: int
    full: str
    waiting: deque[FakeFrame] = field(default_factory=deque)
    held: dict[int, FakeFrame] = field(default_factory=dict)
    dropped: int = 0
    ended: bool = False


class ChannelService(Service):
    features: tuple[str, ...] = ("timelines", "channels")

    def __init__(self, path: str) -> None:
        self.pages: dict[int, FakePage] = {}
        self.channels: dict[str, FakeChannel] = {}
        self.ready: dict[int, list[m.Ticket]] = {}
        self.done: dict[int, list[m.Ticket]] = {}
        self.blocked: list[tuple[ChannelConnection, cm.Send]] = []
        super().__init__(path)

    def close(self) -> None:
        super().close()
        for page in self.pages.values():
            page.close()

    def unreached(self, tickets: Iterable[m.Ticket]) -> tuple[m.Ticket, ...]:
        highest: dict[tuple[int, int], int] = {}
        for ticket in tickets:
            if ticket.tl in self.pages and self.pages[ticket.tl].words[ticket.wd] < ticket.v:
                key = (ticket.tl, ticket.wd)
                highest[key] = max(ticket.v, highest.get(key, 0))
        return tuple(m.Ticket(tl, wd, v) for (tl, wd), v in highest.items())

    def bury(self, connection: Connection) -> None:
        """Do what the service does when the process of a session that has ended is gone."""
        for timeline, page in list(self.pages.items()):
            if page.owner is not connection:
                continue
            for word in range(WORDS):
                page.words[word] += TOMBSTONE
            failed = [
                id_
                for id_, tickets in self.ready.items()
                if any(t.tl == timeline and page.words[t.wd] % TOMBSTONE < t.v for t in tickets)
            ]
            for other in self.connections:
                held = tuple(id_ for id_ in failed if any(x.buffer.id == id_ for x in other.leases.values()))
                if held:
                    other.send(cm.Failed(bf=held))
                other.send(cm.Forget(tl=(timeline,)))
            page.close()
            del self.pages[timeline]


class ChannelConnection(Connection):
    service: ChannelService

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.subscribers: dict[int, FakeSubscriber] = {}
        self.frames: dict[int, tuple[FakeSubscriber, FakeFrame]] = {}

    # Timelines

    def timeline(self, request: cm.Timeline, fds: list[int]) -> m.Reply:
        pages = self.service.pages
        id_ = request.tl or next((id_ for id_, page in pages.items() if page.owner is self), 0)
        if not id_:
            id_ = self.service.new_id()
            fd = os.memfd_create("poolbridge-timeline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, 4096)
            fcntl.fcntl(fd, 1033, SEALS)
            mapping = mmap.mmap(fd, 4096)
            pages[id_] = FakePage(fd, memoryview(mapping).cast("Q"), self, mapping)
        if id_ not in pages:
            raise Refused("not-found")
        fds.append(pages[id_].fd)
        return cm.TimelineReply(q=request.q, tl=id_, nw=WORDS, x=m.Export(f=1))

    def seal(self, request: cm.Seal, fds: list[int]) -> None:
        for page in self.service.pages.values():
            if page.owner is self:
                assert not page.sealed
                fcntl.fcntl(page.fd, 1033, 0x0010)  # F_SEAL_FUTURE_WRITE
                page.sealed = True

    def check(self, tickets: Iterable[m.Ticket]) -> list[m.Ticket]:
        checked = list(tickets)
        for ticket in checked:
            page = self.service.pages.get(ticket.tl)
            if page is None or page.owner is not self or not page.sealed:
                raise Refused("invalid", "a ticket of another session's timeline")
        return checked

    def grant(self, number: int, buffer: FakeBuffer, *, write: bool) -> m.Reply:
        reply = super().grant(number, buffer, write=write)
        assert isinstance(reply, m.GrantReply)
        service = self.service
        tickets = [*service.ready.get(buffer.id, ()), *(service.done.get(buffer.block.id, ()) if write else ())]
        reply.l.wt = service.unreached(tickets)
        return reply

    def publish(self, request: m.Publish, fds: list[int]) -> None:
        lease = self.find(request.l)
        if request.rt is not UNSET:
            self.service.ready[lease.buffer.id] = self.check([request.rt])
        super().publish(request, fds)

    def release_one(self, lease: FakeLease, request: m.Release) -> None:
        tickets = self.check(request.dt)
        if lease.write:
            self.service.ready.setdefault(lease.buffer.id, []).extend(tickets)
        self.service.done.setdefault(lease.buffer.block.id, []).extend(tickets)
        super().release_one(lease, request)
        if lease.id in self.frames:
            self.settle(*self.frames.pop(lease.id), back=request.fl)

    # Channels

    def makechannel(self, request: cm.MakeChannel, fds: list[int]) -> m.Reply:
        channels = self.service.channels
        asked = m.Channel(0, request.nm, request.pl, request.md or "broadcast", request.cp, request.fl or "block")
        if request.nm not in channels:
            channels[request.nm] = FakeChannel(msgspec.structs.replace(asked, id=self.service.new_id()))
        info = channels[request.nm].info
        if msgspec.structs.replace(asked, id=info.id) != info:
            raise Refused("exists")
        return cm.ChannelReply(q=request.q, c=info)

    def find(self, request: Any, fds: Any = None) -> Any:
        if isinstance(request, int):
            return super().find(request)
        if request.nm not in self.service.channels:
            raise Refused("timeout" if request.w else "not-found")
        return cm.ChannelReply(q=request.q, c=self.service.channels[request.nm].info)

    def channel(self, id_: int) -> FakeChannel:
        for channel in self.service.channels.values():
            if channel.info.id == id_:
                return channel
        raise Refused("closed")

    def send_frame(self, request: cm.Send) -> m.Reply | None:
        """Send; None if the channel is full and is to block."""
        channel = self.channel(request.ch)
        lease = super().find(request.l)
        if not self.make_room(channel):
            if channel.info.fl == "fail":
                raise Refused("limit", "the channel is full")
            return None
        buffer = lease.buffer
        if request.t is not UNSET:
            buffer.tensor = request.t
        if request.rt is not UNSET:
            self.service.ready[buffer.id] = self.check([request.rt])
        del self.leases[lease.id]
        buffer.writer = False
        buffer.names += 1
        channel.number += 1
        frame = FakeFrame(channel.number, time.time_ns(), buffer, request.mt)
        channel.kept.append(frame)
        if channel.info.md == "broadcast":
            for subscriber in channel.subscribers:
                subscriber.waiting.append(frame)
        self.push(channel)
        return cm.SendReply(q=request.q, sq=channel.number)

    def make_room(self, channel: FakeChannel) -> bool:
        if len(channel.kept) < channel.info.cp:
            return True
        oldest = channel.kept[0]
        behind = [s for s in channel.subscribers if oldest in s.waiting or oldest.number in s.held]
        strict = channel.info.md == "queue" or any(s.full in {"block", "fail"} for s in behind)
        if strict and channel.info.fl in {"block", "fail"}:
            return False
        for subscriber in behind:
            if oldest in subscriber.waiting:
                subscriber.waiting.remove(oldest)
                subscriber.dropped += 1
        self.forget(channel.kept.popleft())
        return True

    def forget(self, frame: FakeFrame) -> None:
        frame.buffer.names -= 1
        self.recycle(frame.buffer)

    def handle(self, request: Any) -> None:
        if not isinstance(request, cm.Send):
            super().handle(request)
            self.unblock()
            return
        try:
            reply = self.send_frame(request)
        except Refused as refused:
            reply = m.Reply(q=request.q, e=refused.error)
        if reply is None and request.w < 200:
            reply = m.Reply(q=request.q, e=m.WireError("timeout", "session 7 of process 42 is behind"))
        if reply is None:
            self.service.blocked.append((self, request))
        else:
            self.send(reply)

    def unblock(self) -> None:
        blocked, self.service.blocked = self.service.blocked, []
        for connection, request in blocked:
            try:
                reply = connection.send_frame(request)
            except Refused as refused:
                reply = m.Reply(q=request.q, e=refused.error)
            if reply is None:
                self.service.blocked.append((connection, request))
            else:
                connection.send(reply)

    def push(self, channel: FakeChannel) -> None:
        queue = channel.info.md == "queue"
        for subscriber in channel.subscribers:
            waiting = channel.kept if queue else subscriber.waiting
            while waiting and subscriber.credit:
                frame = waiting.popleft()
                subscriber.credit -= 1
                subscriber.held[frame.number] = frame
                subscriber.connection.deliver(subscriber, frame)
        busy = queue and (channel.kept or any(subscriber.held for subscriber in channel.subscribers))
        if channel.shut and not busy:
            for subscriber in list(channel.subscribers):
                if not subscriber.waiting and not subscriber.ended:
                    subscriber.ended = True
                    subscriber.connection.send(cm.End(sb=subscriber.id))

    def deliver(self, subscriber: FakeSubscriber, frame: FakeFrame) -> None:
        notice = cm.Frame(sb=subscriber.id, sq=frame.number, ts=frame.time, mt=frame.meta, dr=subscriber.dropped)
        subscriber.dropped = 0
        try:
            reply: Any = self.grant(1, frame.buffer, write=False)
        except Refused as refused:
            notice.e = refused.error
            del subscriber.held[frame.number]
        else:
            notice.l = reply.l
            self.frames[reply.l.id] = (subscriber, frame)
        self.send(notice)

    def ack(self, request: cm.Ack, fds: list[int]) -> None:
        for lease in request.l, *request.al:
            if super().find(lease).id not in self.frames:
                raise Refused("settled")
            self.settle(*self.frames.pop(lease), back=request.bk)

    def settle(self, subscriber: FakeSubscriber, frame: FakeFrame, *, back: bool) -> None:
        subscriber.held.pop(frame.number, None)
        subscriber.credit += 1
        channel = subscriber.channel
        if channel.info.md == "queue":
            if back:
                channel.kept.appendleft(frame)
            else:
                self.forget(frame)
        self.push(channel)

    def subscribe(self, request: cm.Subscribe, fds: list[int]) -> m.Reply | None:
        channel = self.channel(request.ch)
        subscriber = FakeSubscriber(self.service.new_id(), channel, self, request.cr, request.fl or channel.info.fl)
        self.subscribers[subscriber.id] = subscriber
        channel.subscribers.append(subscriber)
        if channel.info.md == "broadcast" and channel.kept:
            subscriber.waiting.extend(channel.kept if request.ol else [channel.kept[-1]])
        self.send(cm.SubscribeReply(q=request.q, sb=subscriber.id))
        request.q = 0
        self.push(channel)
        return None

    def credit(self, request: cm.Credit, fds: list[int]) -> None:
        subscriber = self.subscribers.get(request.sb)
        if subscriber is not None:
            subscriber.credit += request.n
            self.push(subscriber.channel)

    def unsubscribe(self, request: cm.Unsubscribe, fds: list[int]) -> None:
        subscriber = self.subscribers.pop(request.sb, None)
        if subscriber is not None:
            subscriber.channel.subscribers.remove(subscriber)

    def shut(self, request: cm.Shut, fds: list[int]) -> None:
        channel = self.channel(request.ch)
        channel.shut = True
        del self.service.channels[channel.info.nm]
        self.push(channel)


ChannelService.connection_type = ChannelConnection
