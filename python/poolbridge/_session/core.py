"""Implements the protocol without I/O: encodes requests as packets, and decodes packets as replies and notices.

A `Core` has the protocol's state of one session: requests that wait for replies, pools, blocks and exports. A `Core`
does no I/O: the blocking and the asyncio client send and receive the packets. A `Core` is not thread-safe: the session
holds its lock when it calls a method of the `Core`.
"""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from weakref import ref

from msgspec import UNSET, UnsetType, structs

from poolbridge import errors as _errors
from poolbridge._memory.session_blocks import SessionBlock, SessionPool
from poolbridge._session.calls import Call, Waiter
from poolbridge._session.unconfirmed import Unconfirmed
from poolbridge._wire import received_errors as _received_errors
from poolbridge._wire.limits import MAX_QUERY, TIMELINE_WORDS, VERSION
from poolbridge._wire.messages import (
    Alloc,
    Cancel,
    Dropped,
    Envelope,
    Export,
    Failed,
    Fence,
    Forget,
    GetTimeline,
    Goodbye,
    Grant,
    GrantReply,
    HelloReply,
    JoinReply,
    Leave,
    Map,
    MapReply,
    MemberCame,
    Notice,
    PoolReply,
    Recall,
    Release,
    Reply,
    Request,
    TimelineReply,
    Wanted,
    Working,
)
from poolbridge._wire.packet import check, decode, encode
from poolbridge._wire.transport import Descriptors
from poolbridge.errors import (
    PoolbridgeError,
    ProtocolError,
)

# How many answered requests the core remembers, in case the service sends a second reply to one of them.
_REMEMBERED: Final = 64
# The message types of the notices that the core passes to the session, by the name of the notice.
_NEWS: Final[dict[str, type[Failed | Forget | Wanted]]] = {
    "failed": Failed, "forget": Forget, "wanted": Wanted,
}  # fmt: skip
# How many descriptors the reply to `Join` brings: for the roster, the sequencer and the new member's own file.
_SEAT_FILES: Final = 3


class Core:
    """The protocol's state of one session.

    Attributes
    ----------
    epoch
        The id of this run of the service, 16 bytes; empty until the service has replied to the first request, `Hello`.
    session_id, service_pid
        The session's id and the service's process id. The service sends both.
    features
        The features that both the client and the service have.
    pools, blocks
        The pools and blocks whose exports the service sent, by id.
    outbox
        Packets to send, in order.
    goodbye
        The notice that the service will close the connection; None if the service sent no such notice.
    pages
        Descriptors of timelines that are not mapped yet, by timeline id.
    seats
        The replies and descriptors of members that have joined and are not in `members` yet, by the number of the
        request to join.
    members
        The producers and consumers of this session.
    waiters
        The `Waiter` of each thread that waits for a notice.
    news
        Notices that the session still has to process. The session removes them.
    granted
        Ids of the leases that the service has granted, that it does not end by itself, and whose release is not in the
        outbox.
    untaken
        Those of them for which no `LeaseState` has been made, by lease id. If nobody has the reply any more, `later`
        calls `lose_grant`, which releases the lease: the caller was interrupted, perhaps more than once.
    checks_leases
        Whether each release tells the service how this process describes the lease, so that the service compares.
    """

    def __init__(self) -> None:
        self.epoch = b""
        self.session_id = 0
        self.service_pid = 0
        self.features: tuple[str, ...] = ()
        self.pools: dict[int, SessionPool] = {}
        self.blocks: dict[int, SessionBlock] = {}
        self.outbox: deque[bytes] = deque()
        self.goodbye: Goodbye | None = None
        self.pages: dict[int, Descriptors] = {}
        self.seats: dict[int, tuple[JoinReply, Descriptors]] = {}
        self.members: list[Any] = []
        self.waiters: list[Waiter] = []
        self.news: list[Failed | Forget | Wanted] = []
        self.granted: set[int] = set()
        self.untaken: dict[int, Untaken] = {}
        self.later: Callable[[Callable[[], object]], object] = operator.call
        self.lose_grant: Callable[[Grant], object] = _nothing
        self.checks_leases = "POOLBRIDGE_CHECK_LEASES" in os.environ
        self._calls: dict[int, Call] = {}
        self._number = 0
        self._all_issued = False  # whether every request number was used at least once
        self.unconfirmed = Unconfirmed()
        self._asking: Call | None = None
        self._answered: deque[tuple[Any, type[Reply]]] = deque(maxlen=_REMEMBERED)

    # Sending

    def start(self, request: Request, reply_type: type[Reply], on_done: Callable[[], object]) -> Call:
        """Put a request to which the service replies into the outbox.

        Raises
        ------
        ProtocolError
            The request does not fit into a packet. The core is unchanged.
        """
        number = request.number = self._next_number()
        packet = encode(request)
        call = self._calls[number] = Call(request, reply_type, on_done)
        call.packet = packet
        self.outbox.append(packet)
        return call

    def tell(self, request: Request) -> None:
        """Put a request to which the service does not reply into the outbox."""
        self.outbox.append(encode(request))

    def abandon(self, call: Call) -> None:
        """Stop waiting for a reply. If the reply still comes, end the lease or membership that the reply grants."""
        if not call.done and not call.abandoned:
            call.abandoned = True
            self.tell(Cancel(request=call.number))
        elif isinstance(call.reply, GrantReply) and not call.abandoned:
            call.abandoned = True
            self.release(call.reply.grant, failed=False)
        else:
            self.unjoin(call.number)

    def abandon_all(self, error: PoolbridgeError) -> None:
        """Abandon every request of the program, because the client is closed. The waiting calls fail with `error`."""
        for call in list(self._calls.values()):
            if not call.abandoned and not isinstance(call.request, GetTimeline):  # only the session asks for these
                self.abandon(call)
                call.fail(type(error)(*error.args))
        self.tell_waiters()

    @property
    def unanswered(self) -> int:
        """How many requests the service has not answered yet."""
        return sum(not call.done for call in list(self._calls.values()))

    @property
    def owed(self) -> bool:
        """Whether the service has not answered an allocation that its caller has abandoned."""
        return any(call.abandoned and isinstance(call.request, Alloc) for call in list(self._calls.values()))

    def forget_confirmed(self) -> None:
        """Forget the sent packets that need not be sent again."""
        if self.unconfirmed.forget(self.awaited()) and (self._asking is None or self._asking.done):
            self._asking = self.start(Cancel(request=0), Reply, _nothing)  # its answer confirms the packets before

    def awaited(self) -> set[int]:
        """Return the ids of the packets whose answers have not come."""
        return {id(call.packet) for call in list(self._calls.values())}

    def send_again(self, done: int) -> None:
        """Put the packets into the outbox that a service needs whose last packet of this session was number `done`.

        A request that waits goes on with the time that it has left, and one that was abandoned is cancelled again.
        """
        calls = list(self._calls.values())
        packets = [(call, call.packet, call.again()) for call in calls]
        self.unconfirmed.again(self.outbox, {id(before): packet for _, before, packet in packets}, done)
        for call, _, packet in packets:
            call.packet = packet
        self.outbox.extend(encode(Cancel(request=call.number)) for call in calls if call.abandoned)

    def unjoin(self, number: int) -> None:
        """Leave a channel if the service has granted the request `number` to join it, and nobody has taken the seat."""
        if number in self.seats:
            reply, descriptors = self.seats[number]
            descriptors.close()
            self.outbox += (encode(Leave(channel=reply.channel.id, member=reply.member)),)
            del self.seats[number]  # no signal handler runs between these two steps

    def forsake(self, request: Request) -> None:
        """Stop waiting for the reply to a request, if `start` has put this request into the outbox.

        If another thread has received the reply already, end the lease or membership that the reply grants.
        """
        call = self._calls.get(request.number)
        if call is not None and call.request is request:
            self.abandon(call)
        for untaken in list(self.untaken.values()):
            if untaken.request is request:
                self.release(untaken.grant, failed=False)
        self.unjoin(request.number)

    def release(
        self, grant: Grant, fences: tuple[Fence, ...] = (), *, failed: bool, sure: bool = True
    ) -> SessionBlock | None:
        """Tell the service that a lease ends; a second call does nothing.

        `sure` says whether `grant` describes the lease as the service does.

        Returns
        -------
        SessionBlock or None
            The lease's block, if the service has recalled the block and this session has no other lease on it.
        """
        if grant.id in self.granted:
            request = Release(lease=grant.id, failed=failed, done=fences)
            if self.checks_leases and sure:
                request.seen = structs.replace(grant, export=UNSET, wait=(), event=b"")
            packet = encode(request)
            self.forget(grant, fences)
            self.outbox += (packet,)  # no signal handler runs between the end of `forget` and the end of `discard`
            self.granted.discard(grant.id)
            self.untaken.pop(grant.id, None)
        return self.idle(grant)

    def give_up(self, grant: Grant, fences: tuple[Fence, ...]) -> SessionBlock | None:
        """Note that the service ends a lease by itself; a second call does nothing. Returns the same as `release`."""
        if grant.id in self.granted:
            self.forget(grant, fences)
            self.granted.discard(grant.id)  # no signal handler runs between the end of `forget` and the end of this
        return self.idle(grant)

    def forget(self, grant: Grant, fences: tuple[Fence, ...] = ()) -> SessionBlock | None:
        """Count one lease less on a block, and note the fences of the work on it. Returns the same as `idle`."""
        block = self.blocks.get(grant.block)
        if block is None:
            return None
        for fence in fences:
            block.used(fence)
        block.leases -= 1  # the last step: see `release`
        return block if block.recalled and not block.leases else None

    def idle(self, grant: Grant) -> SessionBlock | None:
        """Return the block of a lease if the service has recalled it and this session has no lease on it; else None."""
        block = self.blocks.get(grant.block)
        return block if block is not None and block.recalled and not block.leases else None

    def drop(self, block: SessionBlock) -> None:
        """Forget a block that was unmapped, and tell the service."""
        if block.id in self.blocks:
            block.descriptors.close()
            packet = encode(Dropped(blocks=(block.id,)))
            self.outbox += (packet,)  # no signal handler runs between this step and the next
            del self.blocks[block.id]

    def _next_number(self) -> int:
        while True:
            if self._number == MAX_QUERY:
                self._number, self._all_issued = 0, True
            self._number += 1
            if self._number not in self._calls:
                return self._number

    # Receiving

    def receive(self, data: bytes, descriptors: Descriptors) -> list[SessionBlock]:
        """Process one packet from the service. Close the descriptors that this session does not need.

        If a signal handler ends this call, another call with the same packet does what is missing. What a reply brings
        becomes known in one go, together with `Call.reply`: no signal handler runs between steps that call nothing.

        Returns
        -------
        list of SessionBlock
            Blocks that the service recalls and that no lease of this session needs. The caller unmaps and drops them.

        Raises
        ------
        ProtocolError
            The packet is malformed or came at the wrong time. The session must end.
        """
        try:
            done = descriptors.answered or self._expected(data, descriptors)
            idle = [] if done else self._look(data, descriptors)
            if descriptors.fds and not descriptors.claimed:
                _check_claimed(descriptors, 0)
        except PoolbridgeError:
            descriptors.close()
            raise
        if descriptors.fds:
            descriptors.close()
        return idle

    def _expected(self, data: bytes, descriptors: Descriptors) -> bool:
        """Process a successful reply that begins with its request's number. Return False for any other packet."""
        call = self._calls.get(_first_number(data))
        if call is None:
            return False
        try:
            reply = decode(data, call.reply_type)
        except ProtocolError:
            return False  # an error or a malformed packet: `_look` decides
        if reply.number != call.number or not isinstance(reply.error, UnsetType):
            return False
        self._answer(call, reply, descriptors)
        return True

    def _look(self, data: bytes, descriptors: Descriptors) -> list[SessionBlock]:
        # Decode only the keys of `Envelope` here. Later code decodes and checks the packet as its own message type.
        envelope = decode(data, Envelope, checked=True)
        idle: list[SessionBlock] = []
        if envelope.number:
            self._reply(envelope, data, descriptors)
        elif name := decode(data, Notice, checked=True).name:
            idle = self._notice(name, data, descriptors)
        else:
            check(data)
            if isinstance(envelope.error, UnsetType):
                raise ProtocolError("a packet is neither a reply nor a notice")
            # The error belongs to no request: the service sends such an error before it closes the connection.
            raise _received_errors.exception(envelope.error.code, envelope.error.message)
        return idle

    def _notice(self, name: str, data: bytes, descriptors: Descriptors) -> list[SessionBlock]:
        if name == "recall":
            recalled = [self.blocks[id_] for id_ in decode(data, Recall).blocks if id_ in self.blocks]
            for block in recalled:
                block.recalled = True
                block.arrays.clear()
                for member in self.members:
                    member.forget(block.id)
            return [block for block in recalled if not block.leases]
        if name == "goodbye":
            self.goodbye = decode(data, Goodbye)
        elif name in _NEWS:
            self.news.append(decode(data, _NEWS[name]))
        elif name == "member":
            self._member(decode(data, MemberCame), descriptors)
        elif name == "working":
            number = decode(data, Working).request
            for call in self._calls.values():
                call.working = call.working or number in {0, call.number}
        else:
            check(data)
        return []

    def _member(self, member: MemberCame, descriptors: Descriptors) -> None:
        """Pass the file of a new member of a channel to this session's members of the other role in that channel."""
        if (count := len(_claim(member.export, descriptors)[1])) > 1:
            raise ProtocolError(f"{count} file descriptors came where one was expected")
        fd = next(iter(descriptors.fds), None)  # without a descriptor, the member has left already
        for mine in self.members:
            if mine.channel.id == member.channel and mine.role != member.role:
                mine.meet(member.seat, member.member, fd)
        self.tell_waiters()

    def tell_waiters(self) -> None:
        """Wake the threads that wait for notices, so that they check their conditions again."""
        for waiter in list(self.waiters):
            waiter.tell()

    def _reply(self, envelope: Envelope, data: bytes, descriptors: Descriptors) -> None:
        call = self._calls.get(envelope.number)
        if call is None:
            if not self._all_issued and envelope.number > self._number:
                raise ProtocolError(f"a reply to request {envelope.number}, which was never sent")
            self._take_unawaited(envelope, data, descriptors)
            return
        if not isinstance(envelope.error, UnsetType):
            error = _received_errors.exception(envelope.error.code, envelope.error.message)
            decode(data, Reply)
            call.fail(error)
            self._settled(call, descriptors)
        else:
            self._answer(call, decode(data, call.reply_type), descriptors)

    def _take_unawaited(self, envelope: Envelope, data: bytes, descriptors: Descriptors) -> None:
        """Process a reply that no call awaits, such as a second reply. End the lease or membership that it grants."""
        asked = next((one for one in self._answered if one[0].number == envelope.number), None)
        if asked is None or not isinstance(envelope.error, UnsetType):
            decode(data, Reply)
            descriptors.claimed = True
            return
        call = Call(*asked, _nothing)
        call.abandoned = True
        self._calls[call.number] = call  # so that a repetition finds the same call
        self._answer(call, decode(data, call.reply_type), descriptors)

    def _answer(self, call: Call, reply: Reply, descriptors: Descriptors) -> None:
        if call.reply is None:
            self._learn(call, reply, descriptors)
        if call.abandoned and isinstance(call.reply, GrantReply):
            block = self.release(call.reply.grant, failed=False)
            if block is not None and block.mapped is None:
                self.drop(block)
        if call.abandoned:
            self.unjoin(call.number)
        call.on_done()
        self._settled(call, descriptors)

    def _settled(self, call: Call, descriptors: Descriptors) -> None:
        descriptors.answered = True
        self.unconfirmed.latest = call.packet
        self._answered += ((call.request, call.reply_type),)
        if call.number in self._calls:
            del self._calls[call.number]  # no signal handler runs between these steps

    def _learn(self, call: Call, reply: Reply, descriptors: Descriptors) -> None:
        """Learn what a reply brings. Each case ends with steps that call nothing; see `receive`."""
        if isinstance(reply, GrantReply):
            self._learn_grant(call, reply, descriptors)
        elif isinstance(reply, PoolReply):
            export, own = _claim(reply.pool.export, descriptors)
            info = structs.replace(reply.pool, export=UNSET)
            pool = SessionPool(info, export, own)
            if info.id in self.pools:
                self.pools[info.id].info = info
            else:
                self.pools[info.id], descriptors.fds = pool, []
            call.reply = reply
        elif isinstance(reply, TimelineReply):
            _, own = _claim(reply.export, descriptors)
            if reply.words != TIMELINE_WORDS or len(own) != 1:
                raise ProtocolError(
                    f"timeline {reply.timeline} has {reply.words} words; expected {TIMELINE_WORDS}, and one descriptor"
                )
            if reply.timeline not in self.pages:
                self.pages[reply.timeline], descriptors.fds = own, []
            call.reply = reply
        elif isinstance(reply, (JoinReply, MapReply)):
            self._learn_memory(call, reply, descriptors)
        else:
            if isinstance(reply, HelloReply):
                if reply.version != VERSION:
                    raise _errors.VersionError(
                        f"the service chose protocol version {reply.version}; offered was {VERSION}"
                    )
                self.epoch, self.session_id, self.service_pid = reply.epoch, reply.session, reply.pid
                self.features = reply.features
                self.unconfirmed.token = reply.token
            call.reply = reply

    def _learn_memory(self, call: Call, reply: JoinReply | MapReply, descriptors: Descriptors) -> None:
        export, own = _claim(reply.export, descriptors)
        if isinstance(reply, JoinReply):
            if (count := len(own)) != _SEAT_FILES:
                raise ProtocolError(f"a member of a channel came with {count} file descriptors; expected {_SEAT_FILES}")
            self.seats[reply.number], descriptors.fds, call.reply = (reply, own), [], reply
            return
        id_ = call.request.block
        # The member whose request this reply answers may have left. So look at every request that waits for this block:
        # if another member of this session needs the block, the session must not drop the block now.
        channels = {
            one.request.channel
            for one in self._calls.values()
            if isinstance(one.request, Map) and one.request.block == id_
        }
        pool = next((member.channel.pool for member in self.members if member.channel.id in channels), 0)
        block = SessionBlock(id_, pool, reply.block_nbytes, export, own, generation=reply.generation)
        dropped = encode(Dropped(blocks=(id_,)))
        if id_ not in self.blocks and pool:
            self.blocks[id_], descriptors.fds = block, []
        elif id_ not in self.blocks:  # the member that asked has left
            self.outbox += (dropped,)
        call.reply = reply

    def _learn_grant(self, call: Call, reply: GrantReply, descriptors: Descriptors) -> None:
        grant = reply.grant
        block, own = self.blocks.get(grant.block), None
        if not isinstance(grant.export, UnsetType):
            export, own = _claim(grant.export, descriptors)
            if block is None:
                block = SessionBlock(
                    grant.block, grant.pool, grant.block_nbytes, export, own, generation=grant.generation
                )
        if block is None:
            raise ProtocolError(f"lease {grant.id} is on block {grant.block}, whose export was never sent")
        if (
            block.pool != grant.pool
            or block.size != grant.block_nbytes
            or grant.base + grant.nbytes > grant.block_nbytes
        ):
            raise ProtocolError(f"lease {grant.id} contradicts what is known of block {grant.block}")
        untaken = Untaken(reply, self.later)
        untaken.request, untaken.grant, untaken.core = call.request, grant, self
        if own is not None and grant.block not in self.blocks:
            self.blocks[grant.block], descriptors.fds = block, []
        block.leases += 1
        self.granted |= {grant.id}
        self.untaken[grant.id], call.reply = untaken, reply

    # Closing

    def lose(self, error: PoolbridgeError) -> None:
        """Fail every request that waits, because the connection is gone."""
        self.outbox.clear()
        for call in list(self._calls.values()):
            # Each call gets its own exception: if two threads raise the same exception, their tracebacks mix.
            call.fail(type(error)(*error.args))
        self._calls.clear()
        self.tell_waiters()

    def close_descriptors(self) -> None:
        """Close the descriptors that the session has received and not used."""
        for pool in self.pools.values():
            pool.descriptors.close()
        for block in self.blocks.values():
            block.descriptors.close()
        for page in (*self.pages.values(), *(own for _, own in self.seats.values())):
            page.close()
        self.pages.clear()
        self.seats.clear()


def _first_number(data: bytes) -> int:
    """Return the request number if a packet begins with the key ``q`` and a number; else return 0."""
    if data[1:3] != b"\xa1q" or len(data) < 8:
        return 0
    first = data[3]
    if first < 0x80:
        return first
    if first == 0xCC:
        return data[4]
    if first == 0xCD:
        return data[4] << 8 | data[5]
    return int.from_bytes(data[4:8], "big") if first == 0xCE else 0


def _claim(export: Export | UnsetType, descriptors: Descriptors) -> tuple[bytes, Descriptors]:
    """Return an export's data, and its descriptors: those of its packet, which still owns them."""
    if isinstance(export, UnsetType):
        return b"", Descriptors()
    if not descriptors.claimed:
        if export.fds > len(descriptors):
            raise ProtocolError(f"an export claims {export.fds} file descriptors; {len(descriptors)} came with it")
        _check_claimed(descriptors, export.fds)
        descriptors.claimed = True
    return export.data, Descriptors(descriptors.fds)


def _check_claimed(descriptors: Descriptors, claimed: int) -> None:
    if unclaimed := len(descriptors) - claimed:
        raise ProtocolError(f"{unclaimed} file descriptors came that no export claims")


class Untaken(ref[GrantReply]):
    """Refers to a reply that grants a lease, for which no `LeaseState` has been made; see `Core.untaken`."""

    request: Request
    grant: Grant
    core: Core
    __slots__ = ("core", "grant", "request")

    def __call__(self) -> None:
        """Release the lease, unless somebody has taken it."""
        if self.core.untaken.get(self.grant.id) is self:
            self.core.lose_grant(self.grant)


def _nothing(*_: object) -> None:
    pass
