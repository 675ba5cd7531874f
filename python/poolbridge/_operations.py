"""What a client can ask for, written once for the blocking and for the asyncio client.

Each operation is a generator. It yields what has to be waited for, such as an `Ask` of the service or a `Do` in this
process, and is resumed with the result or the error; it returns the operation's result. It never waits itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import UNSET

from poolbridge import _dlpack, _event, _order, _tensor, _timelines
from poolbridge._channel_messages import Timeline, TimelineReply
from poolbridge._errors import InvalidArgumentError, NotFoundError, ProtocolError, StaleError, UnsupportedError, shown
from poolbridge._hold import Hold
from poolbridge._kinds import KINDS
from poolbridge._messages import (
    U_MAX,
    Alloc,
    Create,
    Destroy,
    Get,
    Grant,
    GrantReply,
    LeaseBuffer,
    Open,
    PoolReply,
    Publish,
    Reply,
    Request,
    StatsReply,
    StatsRequest,
    Ticket,
    Trim,
    TrimReply,
    Unpublish,
)
from poolbridge._packet import MAX_NAME
from poolbridge._pool import Pool, ServiceStats
from poolbridge._promise import Promise

if TYPE_CHECKING:
    from poolbridge._consumer import Consumer
    from poolbridge._event import Event
    from poolbridge._known import Waiter
    from poolbridge._literals import Kind
    from poolbridge._session import Session

_T = TypeVar("_T")
_ReplyT = TypeVar("_ReplyT", bound=Reply)

# Without a time limit: as long as milliseconds fit into the nanoseconds that others count with.
_FOREVER_MS = 2**40
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


@dataclass(slots=True)
class Ask:
    """Send a request and wait for its reply; `wait` is how many seconds the service itself may take, None: any."""

    request: Request
    reply_type: type[Reply]
    wait: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Do:
    """Do something in this process that may wait for a driver."""

    work: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Hear:
    """Receive packets until a waiter is told, for so many seconds; None: without limit. Gives whether it was."""

    waiter: Waiter
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Do something in this process that may take as long as it is told, in seconds; None: without limit.

    It may be told less, and is then asked for again.
    """

    work: Callable[[float | None], Any]
    seconds: float | None


Flow = Generator[Ask | Do | Hear | Sleep, Any, _T]


def _ask(request: Request, reply_type: type[_ReplyT], wait: float | None = 0.0) -> Flow[_ReplyT]:
    reply = yield Ask(request, reply_type, wait)
    return cast("_ReplyT", reply)


# Arguments


def check_name(name: str, what: str) -> str:
    """Check the name of a pool or buffer.

    Raises
    ------
    InvalidArgumentError
        It is not 1 to 255 bytes of UTF-8 without control characters.
    """
    try:
        size = len(name.encode())
    except (UnicodeEncodeError, AttributeError):
        raise InvalidArgumentError(f"the {what} name {shown(name)} is no valid text") from None
    if not 1 <= size <= MAX_NAME:
        raise InvalidArgumentError(f"the {what} name {shown(name)} has {size} bytes: expected 1 to {MAX_NAME}")
    if _CONTROL.search(name):
        raise InvalidArgumentError(
            f"the {what} name {shown(name)} has a control character, such as a line break: take it out"
        )
    return name


def check_wait(timeout: float | None) -> int:
    """Give a time limit in whole milliseconds, never less than asked for.

    Raises
    ------
    InvalidArgumentError
        It is negative or no number.
    """
    if timeout is None:
        return _FOREVER_MS
    try:
        milliseconds = math.ceil(timeout * 1000)
    except (TypeError, ValueError, OverflowError):
        milliseconds = _FOREVER_MS if timeout == math.inf else -1
    if milliseconds < 0:
        raise InvalidArgumentError(f"timeout {shown(timeout)} is no time: expected seconds, or None for no limit")
    return min(milliseconds, _FOREVER_MS)


def check_count(value: int, what: str, *, least: int = 0, most: int = U_MAX) -> int:
    """Check a number or an id.

    Raises
    ------
    InvalidArgumentError
        It is below `least` or above `most`, or no whole number; a bool is none.
    """
    try:
        number = _tensor.whole(value)
    except TypeError:
        raise InvalidArgumentError(f"{what} {shown(value)} is no whole number") from None
    if not least <= number <= most:
        limit = "2**63 - 1" if most == U_MAX else most
        raise InvalidArgumentError(f"{what} {number} is out of range: expected {least} to {limit}")
    return number


_SIZE = re.compile(r"(\d+) *([KMGT]iB|B)?", re.ASCII)
_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def check_bytes(value: int | str, what: str, *, least: int = 0) -> int:
    """Check a number of bytes, or read a size: ``1048576``, ``"1048576"``, ``"1MiB"``.

    Raises
    ------
    InvalidArgumentError
        It is no size, or below `least` or above 2**63 - 1.
    """
    if not isinstance(value, str):
        return check_count(value, what, least=least)
    size = _SIZE.fullmatch(value.strip())
    if size is None:
        raise InvalidArgumentError(
            f'{what} {value!r} is no size: expected a whole number of bytes, KiB, MiB, GiB or TiB, such as "64MiB"'
        )
    return check_count(int(size[1]) * _UNITS[size[2]], what, least=least)


def check_device(device: int | str | None) -> int | str | None:
    """Check what a GPU is named by.

    Raises
    ------
    InvalidArgumentError
        It is neither a text nor an ordinal.
    """
    return device if device is None or isinstance(device, str) else check_count(device, "device")


# Pools


def _check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise InvalidArgumentError(f"the kind of a pool is one of {', '.join(KINDS)}, not {shown(kind)}")
    return kind


def create_pool(
    name: str,
    *,
    kind: Kind,
    device: int | str | None,
    max_bytes: int | str,
    session_bytes: int | str,
    user_bytes: int | str,
    uids: Sequence[int],
    gids: Sequence[int],
    exist_ok: bool,
) -> Flow[Pool]:
    """Create a pool, or open the one that is like it; it is open for this session."""
    request = Create(
        nm=check_name(name, "pool"),
        k=_check_kind(kind),
        dv="" if device is None else str(check_device(device)),
        mx=check_bytes(max_bytes, "max_bytes", least=1),
        sx=check_bytes(session_bytes, "session_bytes"),
        ux=check_bytes(user_bytes, "user_bytes"),
        ui=tuple(check_count(uid, "uid") for uid in uids),
        gi=tuple(check_count(gid, "gid") for gid in gids),
        en=bool(exist_ok),
    )
    reply = yield from _ask(request, PoolReply)
    return Pool.from_wire(reply.p)


def open_pool(name: str, *, timeout: float | None) -> Flow[Pool]:
    """Open a pool, waiting for it to appear, and to be made."""
    request = Open(nm=check_name(name, "pool"), w=check_wait(timeout))
    reply = yield from _ask(request, PoolReply, timeout)
    return Pool.from_wire(reply.p)


def destroy_pool(pool: Pool | str) -> Flow[Pool]:
    """Destroy a pool; one that is named need not be one that this user may open."""
    if isinstance(pool, str):
        name = check_name(pool, "pool")
        known = (yield from stats()).pools
        # The last one: those of the same name before it were destroyed, and something still needs their memory.
        found = max((one.pool for one in known if one.pool.name == name), key=lambda one: one.id, default=None)
        if found is None:
            raise NotFoundError(f"there is no pool {name!r} that this user may use or destroy")
        pool = found
    yield from _ask(Destroy(pl=pool.id), Reply)
    return pool


def trim(pool: Pool, *, keep_bytes: int | str) -> Flow[int]:
    """Give unused blocks of a pool back."""
    reply = yield from _ask(Trim(pl=pool.id, n=check_bytes(keep_bytes, "keep_bytes")), TrimReply)
    return reply.n


def stats() -> Flow[ServiceStats]:
    """Ask for statistics."""
    reply = yield from _ask(StatsRequest(), StatsReply)
    return ServiceStats.from_wire(reply.s)


# Buffers


def allocate(
    session: Session, description: _tensor.Description, pool: int, *, timeout: float | None, at_once: bool = False
) -> Flow[Hold]:
    """Lease a buffer in the pool of that id for writing: one that came back from a channel, or a new one.

    `at_once`: of those that came back only one whose memory can be written now.
    """
    if session.producers and (hold := (yield from _spare(session, description, pool, at_once=at_once))) is not None:
        return hold
    request = Alloc(pl=pool, t=description.to_wire(), w=check_wait(timeout))
    reply = yield Ask(request, GrantReply, timeout)
    hold = held(session, reply.l) or (yield from take(session, reply.l))
    hold.allocated = True
    return hold


def _spare(session: Session, description: _tensor.Description, pool: int, *, at_once: bool) -> Flow[Hold | None]:
    """Make a hold of a lease that came back from a channel, if there is one of just as many bytes."""
    spare = session.take_spare(pool, description.nbytes, at_once=at_once)
    if spare is None:
        return None
    try:
        if spare.tickets:
            for timeline in session.timelines.unknown(session.core.epoch, spare.tickets):
                yield from know_timeline(session, timeline)
        hold: Hold = spare.hold(session, description)
    except BaseException:
        session.return_spare(spare)
        raise
    return hold


def get(session: Session, name: str, *, write: bool, timeout: float | None) -> Flow[Hold]:
    """Lease the buffer behind a name."""
    request = Get(nm=check_name(name, "buffer"), wr=bool(write), w=check_wait(timeout))
    reply = yield Ask(request, GrantReply, timeout)
    hold = held(session, reply.l) or (yield from take(session, reply.l))
    hold.name = name
    return hold


def lease(session: Session, buffer_id: int, generation: int, *, write: bool, timeout: float | None) -> Flow[Hold]:
    """Lease a buffer by its id."""
    request = LeaseBuffer(
        bf=check_count(buffer_id, "buffer_id"),
        ge=check_count(generation, "generation"),
        wr=bool(write),
        w=check_wait(timeout),
    )
    reply = yield Ask(request, GrantReply, timeout)
    return held(session, reply.l) or (yield from take(session, reply.l))


def held(session: Session, grant: Grant, consumer: Consumer | None = None) -> Hold | None:
    """Make a hold of a grant whose pool is open and whose block is mapped, which nearly all are.

    Parameters
    ----------
    session
        Whose lease it is.
    grant
        What the service granted, or what stands for the lease of a frame.
    consumer
        Whose frame it is, if it is a frame's.
    """
    try:
        if consumer is not None and not consumer.count(grant):
            return None
        pool, memory = session.pool_info(grant.pl), session.mapped(grant.bl)
        if pool is None or memory is None or (grant.wt and session.timelines.unknown(session.core.epoch, grant.wt)):
            return None
        return Hold(session, grant, pool, memory, _tensor.from_wire(grant.t, grant.n), consumer=consumer)
    except BaseException as error:
        if consumer is not None and isinstance(error, ProtocolError):
            raise consumer.doubt(grant, error) from None
        session.give_back(grant, consumer)
        raise


def take(session: Session, grant: Grant, consumer: Consumer | None = None) -> Flow[Hold]:
    """Make a hold of a grant: open its pool, map its block and the timelines of its tickets, if that is to be done."""
    try:
        if consumer is not None:
            yield from consumer.learn(grant)
        description = _tensor.from_wire(grant.t, grant.n)
        pool = session.pool_info(grant.pl)
        if pool is None:
            reply = yield from _ask(Open(pl=grant.pl), PoolReply)
            pool = reply.p
        memory = session.mapped(grant.bl)
        if memory is None:
            memory = yield Do(partial(session.map, grant.bl))
        for timeline in session.timelines.unknown(session.core.epoch, grant.wt):
            yield from know_timeline(session, timeline)
        on_device = memory.pool.device[0] != _dlpack.CPU
        if on_device and session.timelines.own is None and _timelines.FEATURE in session.core.features:
            yield from know_timeline(session, 0)
        return Hold(session, grant, pool, memory, description, consumer=consumer)
    except BaseException as error:
        if consumer is not None and isinstance(error, (ProtocolError, NotFoundError)):
            raise consumer.doubt(grant, error) from None
        session.give_back(grant, consumer)
        raise


def know_timeline(session: Session, timeline: int) -> Flow[None]:
    """Ask for a timeline's page and map it; 0: for the session's own."""
    try:
        reply = yield from _ask(Timeline(tl=timeline), TimelineReply)
    except (NotFoundError, StaleError):
        if not timeline:
            raise
        session.timelines.add_gone(timeline)
    else:
        session.adopt(reply.tl, own=not timeline)


def publish(
    hold: Hold, name: str, *, keep: bool, replace: bool, stream: Any, event: Any = None, ticket: bool = True
) -> Flow[None]:
    """Name a buffer whose content is complete, or will be when streams have done their work."""
    hold.check_usable()
    check_name(name, "buffer")
    if not hold.write:
        raise InvalidArgumentError(f"lease {hold.grant.id} is a read lease: only what was leased to write is published")
    if not ticket and event is None:
        raise InvalidArgumentError("ticket=False needs an event=: something has to say when the content is complete")
    mark = None if event is None else local_event(hold, event)
    # To a service without timelines events mean nothing either: the work is waited for.
    alone = not ticket and _timelines.FEATURE in hold.session.core.features
    made = yield from ready(hold, stream, mark, ticket=not alone)
    handle = mark.ipc_handle if mark is not None and (alone or made is not None) else b""
    yield from _ask(Publish(l=hold.grant.id, nm=name, kp=keep, rp=replace, rt=made or UNSET, ev=handle), Reply)
    hold.write = False
    if hold.promise is not None:
        # What this process itself does with the buffer by way of the lease has to wait as well.
        hold.tickets = (*hold.tickets, hold.promise)
    hold.seal()
    hold.name = name
    if mark is not None:
        hold.event, hold.alone = mark, alone


def local_event(hold: Hold, event: Any) -> Event:
    """Check an event that stands for work on a lease's memory.

    Raises
    ------
    InvalidArgumentError
        It is none for other processes, the memory is the CPU's, or its content is promised.
    """
    if hold.promise is not None:
        raise InvalidArgumentError(
            f"the content of buffer {hold.grant.bf} is promised, which says when it is complete: leave out the event"
        )
    kind, ordinal = hold.memory.pool.home
    if kind != _dlpack.CUDA:
        raise InvalidArgumentError("an interprocess event stands for work of a GPU, and this memory is the CPU's")
    return _event.adopt(ordinal, event)


def ready(hold: Hold, stream: Any, event: Event | None = None, *, ticket: bool = True) -> Flow[Ticket | None]:
    """Say when the content of a buffer is complete; that may have to be waited for, unless `event` says it alone."""
    if stream is not None:
        _order.name_stream(hold, stream)
    if event is not None:
        _order.name_event(hold, event)
    if not ticket:
        return None
    if not _order.must_wait(hold):
        return _order.ready(hold)
    made: Ticket | None = yield Do(partial(_order.ready, hold))
    return made


def promise(hold: Hold) -> Flow[Promise]:
    """Promise the content of a buffer that is yet to be published."""
    hold.check_usable()
    if not hold.write or hold.promise is not None:
        why = "is promised already" if hold.write else "is complete"
        raise InvalidArgumentError(
            f"the content of buffer {hold.grant.bf} {why}: promise it once, before it is published"
        )
    session = hold.session
    if _timelines.FEATURE not in session.core.features:
        raise UnsupportedError("this service has no timelines, which promises need: it is older than they are")
    while (own := session.timelines.own) is None:
        yield from know_timeline(session, 0)
    return Promise(hold, own)


def release(hold: Hold, *, failed: bool, force: bool) -> Flow[None]:
    """End a lease."""
    if hold.released:
        raise hold.is_released()
    if _order.must_wait(hold):
        yield Do(partial(hold.release, failed=failed, force=force))
    else:
        hold.release(failed=failed, force=force)


def wait(hold: Hold, timeout: float | None) -> Flow[None]:
    """Wait on the CPU until the memory may be used."""
    hold.check_usable()
    seconds = math.inf if timeout is None else check_wait(timeout) / 1000
    if hold.tickets or hold.alone:
        yield Do(partial(_order.wait, hold, seconds))
    _order.check(hold)


def unpublish(name: str) -> Flow[None]:
    """Take a name away."""
    yield from _ask(Unpublish(nm=check_name(name, "buffer")), Reply)
