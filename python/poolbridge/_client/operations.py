"""Does the work of a client's operations, such as `allocate` and `publish`, for `Client` and for `AsyncClient`.

Each operation is a flow (see `poolbridge._session.flow`) that returns the operation's result.
"""

from __future__ import annotations

import math
import re
import time
from asyncio import CancelledError
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import UNSET

from poolbridge._client.entries import PoolInfo, ServiceStats, pool_info, service_stats
from poolbridge._client.promise import Promise
from poolbridge._memory import dlpack as _dlpack, layout as _layout, tensor as _tensor
from poolbridge._memory.kinds import KINDS
from poolbridge._memory.mappings import MAPPINGS
from poolbridge._order import event as _event, fences as _fences, timelines as _timelines
from poolbridge._session.flow import Ask, Do, Flow, Sleep, ask
from poolbridge._session.grants import know_timeline, map_state, mapped_state
from poolbridge._session.lease_state import LeaseState
from poolbridge._sys.error_texts import from_signal, shown
from poolbridge._wire.limits import MAX_NAME_BYTES, MAX_STRING, MAX_UINT
from poolbridge._wire.messages import (
    Alloc,
    Create,
    Destroy,
    Fence,
    Get,
    GrantReply,
    LeaseBuffer,
    Open,
    PoolReply,
    Publish,
    PublishReply,
    Reply,
    StatsReply,
    StatsRequest,
    Trim,
    TrimReply,
    Unpublish,
)
from poolbridge.errors import (
    BusyError,
    ContentFailedError,
    InvalidArgumentError,
    MetadataMismatchError,
    NotFoundError,
    PoolbridgeError,
    PoolLimitError,
    ProducerDiedError,
    ProtocolError,
    ServiceStalledError,
    StaleError,
    UnsupportedError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from poolbridge._order.event import Event
    from poolbridge._order.timeline import Timeline
    from poolbridge._session.session import Session
    from poolbridge._sys.literals import Kind

# If the caller gives no time limit, the client sends this number of milliseconds as the time limit of the request. The
# service converts the time to nanoseconds; the result still fits into 64 bits.
_FOREVER_MS = 2**40
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


# Arguments


def check_name(name: str, what: str) -> str:
    """Check a name and return it. In the error text, `what` is the word for the named thing, such as ``"pool"``.

    Raises
    ------
    InvalidArgumentError
        The name is empty, has more than 255 bytes in UTF-8, has a control character, or is no valid text.
    """
    try:
        text = check_text(name)
        size = len(text.encode())
    except (UnicodeEncodeError, TypeError):
        raise InvalidArgumentError(f"the {what} name {shown(name)} is no text, or no valid UTF-8") from None
    if not 1 <= size <= MAX_NAME_BYTES:
        raise InvalidArgumentError(f"the {what} name {shown(name)} has {size} bytes: expected 1 to {MAX_NAME_BYTES}")
    if _CONTROL.search(text):
        raise InvalidArgumentError(
            f"the {what} name {shown(name)} has a control character, such as a line break: take it out"
        )
    return text


def check_text(value: Any) -> str:
    """Return a text as an object of `str` itself, and not of a subclass such as `numpy.str_`.

    Raises
    ------
    TypeError
        The value is no text.
    """
    if type(value) is str:
        return value
    if not isinstance(value, str):
        raise TypeError
    return str.__str__(value)


def check_metadata(metadata: Any, what: str = "metadata") -> dict[str, str]:
    """Check the metadata of a buffer, and return them as a dict of `str`; None: there are none.

    Raises
    ------
    InvalidArgumentError
        It is no dict of valid texts, or a key has more than 4,096 bytes.
    """
    if metadata is None:
        return {}
    try:
        texts = {check_text(key): check_text(metadata[key]) for key in metadata.keys()}  # noqa: SIM118 - a list has none
        longest = max((len(key.encode()) for key in texts), default=0)
        "".join(texts.values()).encode()
    except (AttributeError, TypeError, ValueError):
        raise InvalidArgumentError(
            f'{what} {shown(metadata)} is no dict of texts: expected one such as {{"model": "llama"}}'
        ) from None
    if longest > MAX_STRING:
        raise InvalidArgumentError(f"a key of {what} has {longest} bytes: at most {MAX_STRING} are possible")
    return texts


def check_word(word: Any, known: Container[str], what: str, names: Iterable[str]) -> str:
    """Check that a word is in `known`, and return it. The error text lists `names`.

    Raises
    ------
    InvalidArgumentError
        The word is no text, or is not in `known`.
    """
    if not isinstance(word, str) or word not in known:
        raise InvalidArgumentError(f"{what} {shown(word)} is not known: expected one of {', '.join(names)}")
    return check_text(word)


def check_flag(value: Any, what: str) -> bool:
    """Check a setting that is on or off, and return it as a bool.

    Raises
    ------
    InvalidArgumentError
        The value is neither true nor false, such as an array of several elements.
    """
    try:
        return bool(value)
    except Exception as error:
        if from_signal(error):
            raise
        raise InvalidArgumentError(f"{what} {shown(value)} is neither true nor false") from None


def check_seconds(seconds: Any, what: str = "timeout", *, zero: bool = True) -> float:
    """Check a number of seconds and return it as a float.

    Raises
    ------
    InvalidArgumentError
        The value is negative or no number; or it is 0, and `zero` is false.
    """
    try:
        if isinstance(seconds, (str, bytes, bytearray)) or getattr(seconds, "shape", None) not in {None, ()}:
            raise TypeError
        number = float(seconds)
    except OverflowError:
        number = math.inf if seconds > 0 else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if not number >= 0 or not (number or zero):
        range_ = "0 or more" if zero else "more than 0"
        raise InvalidArgumentError(f"{what} {shown(seconds)} is no time: expected seconds, {range_}")
    return number


def check_timeout(timeout: float | None) -> float | None:
    """Check a time limit in seconds and return it. No limit is None, and so is an infinite one.

    Raises
    ------
    InvalidArgumentError
        `timeout` is negative or no number.
    """
    if timeout is None or (type(timeout) is float and 0 <= timeout < math.inf):
        return timeout
    try:
        seconds = check_seconds(timeout)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error}, or None for no limit") from None
    return None if seconds == math.inf else seconds


def to_milliseconds(timeout: float | None) -> int:
    """Convert `timeout`, which `check_timeout` returned, to whole milliseconds, rounded up."""
    return _FOREVER_MS if timeout is None else min(math.ceil(timeout * 1000), _FOREVER_MS)


def check_wrap(wrap: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """Return `wrap`, if it is a function or None. The function makes an array from a lease.

    Raises
    ------
    InvalidArgumentError
        `wrap` is something else.
    """
    if wrap is not None and not callable(wrap):
        raise InvalidArgumentError(f"wrap must be a function that makes an array from a lease, not {shown(wrap)}")
    return wrap


def check_count(value: int, what: str, *, least: int = 0, most: int = MAX_UINT) -> int:
    """Check a number or an id and return it as an int; `what` names the value in the error text.

    Raises
    ------
    InvalidArgumentError
        The value is less than `least`, is more than `most`, or is not a whole number. A bool is not a whole number
        here.
    """
    try:
        number = _tensor.whole(value)
    except TypeError:
        raise InvalidArgumentError(f"{what} {shown(value)} is no whole number") from None
    if not least <= number <= most:
        limit = "2**63 - 1" if most == MAX_UINT else most
        raise InvalidArgumentError(f"{what} {number} is out of range: expected {least} to {limit}")
    return number


_SIZE = re.compile(r"(\d+) *([KMGT]iB|B)?", re.ASCII)
_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def check_bytes(value: int | str, what: str, *, least: int = 0) -> int:
    """Check a size and return it as a number of bytes. The size is a number, or a text such as ``"1MiB"``.

    Raises
    ------
    InvalidArgumentError
        The value is no size, is less than `least`, or is more than 2**63 - 1.
    """
    if not isinstance(value, str):
        return check_count(value, what, least=least)
    size = _SIZE.fullmatch(value.strip())
    if size is None:
        raise InvalidArgumentError(
            f'{what} {shown(value)} is no size: expected a whole number of bytes, KiB, MiB, GiB or TiB, such as "64MiB"'
        )
    return check_count(int(size[1]) * _UNITS[size[2]], what, least=least)


def check_device(device: int | str | None) -> int | str | None:
    """Check the type of `device` and return it: a GPU's ordinal, a GPU's name or UUID as a text, or None.

    Raises
    ------
    InvalidArgumentError
        `device` is neither a text nor an ordinal.
    """
    if not isinstance(device, str):
        return device if device is None else check_count(device, "device")
    if not device.isprintable():
        raise InvalidArgumentError(f"device {shown(device)} is the name of no GPU: expected an ordinal or a UUID")
    return check_text(device)


# Pools


def _check_ids(ids: Any, what: str) -> tuple[int, ...]:
    if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, Iterable):
        raise InvalidArgumentError(f"{what}s {shown(ids)} is no list of ids: expected one such as [1000]")
    try:
        return tuple([check_count(one, what) for one in ids])
    except TypeError:  # an array without axes
        raise InvalidArgumentError(f"{what}s {shown(ids)} is no list of ids: expected one such as [1000]") from None


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
) -> Flow[PoolInfo]:
    """Create and open a pool. If `exist_ok` is true and the pool exists with the same settings, only open the pool."""
    request = Create(
        name=check_name(name, "pool"),
        kind=check_word(kind, KINDS, "kind", KINDS),
        device="" if device is None else str(check_device(device)),
        max_bytes=check_bytes(max_bytes, "max_bytes", least=1),
        max_session_bytes=check_bytes(session_bytes, "session_bytes"),
        max_user_bytes=check_bytes(user_bytes, "user_bytes"),
        uids=_check_ids(uids, "uid"),
        gids=_check_ids(gids, "gid"),
        ensure=check_flag(exist_ok, "exist_ok"),
    )
    reply = yield from ask(request, PoolReply)
    return pool_info(reply.pool)


def open_pool(name: str, *, timeout: float | None) -> Flow[PoolInfo]:
    """Wait until a pool exists and is ready, and open the pool."""
    timeout = check_timeout(timeout)
    request = Open(name=check_name(name, "pool"), wait=to_milliseconds(timeout))
    reply = yield from ask(request, PoolReply, timeout)
    return pool_info(reply.pool)


def destroy_pool(pool: PoolInfo | str) -> Flow[PoolInfo]:
    """Destroy a pool. The user need not have the right to open the pool."""
    if not isinstance(pool, (PoolInfo, str)):
        raise InvalidArgumentError(f"{shown(pool)} is no pool: expected a PoolInfo or the name of a pool")
    name = check_name(pool, "pool") if isinstance(pool, str) else None
    named = [one.pool for one in (yield from stats()).pools if one.pool == pool or one.pool.name == name]
    if not named:
        raise NotFoundError(f"there is no pool {shown(pool)} that this user may use or destroy")
    # Take the newest pool. Older pools of the same name were destroyed, and leases still use their memory.
    found = max(named, key=lambda one: one.id)
    yield from ask(Destroy(pool=found.id), Reply)
    return found


def trim(pool: PoolInfo, *, keep_bytes: int | str) -> Flow[int]:
    """Let the service free unused blocks of a pool; return the number of freed bytes."""
    reply = yield from ask(Trim(pool=pool.id, keep=check_bytes(keep_bytes, "keep_bytes")), TrimReply)
    yield Do(MAPPINGS.settle)  # of the blocks that the service has recalled before it replied
    return reply.nbytes


def stats() -> Flow[ServiceStats]:
    """Ask the service for its counts and for the counts of its pools."""
    reply = yield from ask(StatsRequest(), StatsReply)
    return service_stats(reply.stats)


# Buffers


def allocate(
    session: Session, description: _tensor.Description, pool: int, *, timeout: float | None
) -> Flow[LeaseState]:
    """Make a `LeaseState` for a new buffer: of a lease that came back from a channel, or that the service grants.

    Parameters
    ----------
    session, description
        The session, and the layout of the array that the buffer will hold.
    pool
        The pool's id.
    timeout
        Seconds to wait for free memory; None: no limit.
    """
    timeout = check_timeout(timeout)
    request = Alloc(pool=pool, tensor=description.to_wire(), wait=to_milliseconds(timeout))
    if session.producers and not session.closed:
        renewed = session.reuse_returned(pool, request.tensor, mapped_state)
        if renewed is not None:
            renewed.allocated = True
            return (yield from _with_layout(renewed, description))
    began = time.monotonic()
    try:
        reply = yield Ask(request, GrantReply, timeout)
    except BaseException as error:
        session.tally.waited(began)
        session.explain(error, pool)
        raise
    # The next statement must directly follow the statement that gets the reply. If a signal handler raised an error
    # between these two statements, nothing would release the lease.
    state = mapped_state(session, reply.grant) or (yield from map_state(session, reply.grant))
    state.allocated = True
    session.tally.waited(began)
    session.tally.granted(state.grant.nbytes)
    return (yield from _with_layout(state, description))


def _with_layout(state: LeaseState, description: _tensor.Description) -> Flow[LeaseState]:
    """Write the layout of a new buffer of several arrays. Readers do not wait for the content when they read it."""
    if description.layout_bytes:
        try:
            yield Do(partial(_fences.before_cpu, state))
            yield Do(partial(_layout.write, state.memory, description))
        except BaseException:
            state.end()
            raise
        state.description = description
    return state


def _found(state: LeaseState) -> Flow[LeaseState]:
    """Read which arrays the leased buffer has, if it has several. Nobody changes that after it was published."""
    if state.description.layout_bytes:
        grant = state.grant
        buffer, block = (grant.buffer, grant.generation), state.session.core.blocks.get(grant.block)
        if block is not None and block.layout is not None and block.layout[0] == buffer:
            state.description = block.layout[1]
            return state
        try:
            state.description = yield Do(partial(_layout.read, state.memory, state.description))
        except ProtocolError as error:
            state.end()
            raise ContentFailedError(
                f"buffer {state.grant.buffer} has no valid layout, which says what arrays it has: {error}"
            ) from None
        except BaseException:
            state.end()
            raise
        if block is not None:
            block.layout = buffer, state.description
    return state


# What `get` takes as `known` to get any content that has not failed: it is the publication of no buffer.
ANY = 0, 1


def known_by(session: Session, lease: Any) -> tuple[int, int]:
    """Return the buffer and the version of a lease that has a name, for `get`; zeros for None.

    A lease of another run of the service gives `ANY`, because its ids say nothing there.

    Raises
    ------
    InvalidArgumentError
        It is no such lease.
    """
    if lease is None:
        return 0, 0
    state = getattr(lease, "_lease_state", None)
    if not isinstance(state, LeaseState) or not (state.name or state.copied):
        raise InvalidArgumentError(f"{shown(lease)} is no lease of a name: pass one from `get`, `put` or `publish`")
    if cast("Session", state.session).core.epoch != session.core.epoch:
        return ANY
    return (state.copied[1] if state.copied else state.grant.buffer), state.version


def get(
    session: Session,
    name: str,
    *,
    write: bool,
    known: tuple[int, int],
    expect: Mapping[str, str] | None = None,
    timeout: float | None,
) -> Flow[LeaseState]:
    """Lease the buffer that was published under a name, unless it is the buffer and the version in `known`.

    If `known` is not zeros and `timeout` not 0, failed content counts as none until the deadline.
    """
    timeout, expect = check_timeout(timeout), check_metadata(expect, "expect")
    request = Get(
        name=check_name(name, "buffer"),
        write=check_flag(write, "write"),
        wait=to_milliseconds(timeout),
        buffer=known[0],
        version=known[1],
    )
    reply = yield Ask(request, GrantReply, timeout)
    state = mapped_state(session, reply.grant) or (yield from map_state(session, reply.grant))
    state.name, state.version = request.name, reply.version
    if not reply.version and any(known):
        state.end()
        raise UnsupportedError("names have no versions in this service: start a newer poolsvc")
    state = yield from _found(state)
    for key, text in expect.items():
        if (found := state.description.metadata.get(key)) != text:
            state.end()
            raise MetadataMismatchError(
                f"expected the metadata {shown(key)} of {shown(name)} to be {shown(text)}, found {shown(found)}: put "
                "what is expected under this name, or change expect="
            )
    return state


def lease(session: Session, buffer_id: int, generation: int, *, write: bool, timeout: float | None) -> Flow[LeaseState]:
    """Lease a buffer by its id."""
    timeout = check_timeout(timeout)
    request = LeaseBuffer(
        buffer=check_count(buffer_id, "buffer_id"),
        generation=check_count(generation, "generation"),
        write=check_flag(write, "write"),
        wait=to_milliseconds(timeout),
    )
    reply = yield Ask(request, GrantReply, timeout)
    return (yield from _found(mapped_state(session, reply.grant) or (yield from map_state(session, reply.grant))))


def publish(
    state: LeaseState,
    name: str,
    *,
    keep: bool | Literal["used"],
    replace: bool,
    version: int | None,
    stream: Any,
    event: Any = None,
) -> Flow[None]:
    """Publish a buffer under a name.

    If the buffer's content is not complete yet, a fence tells readers when it is complete.
    """
    state.check_usable()
    name = check_name(name, "buffer")
    while_used = isinstance(keep, str) and bool(check_word(keep, ("used",), "keep", ("True", "False", '"used"')))
    keep, replace = not while_used and check_flag(keep, "keep"), check_flag(replace, "replace")
    version = 0 if version is None else check_count(version, "version", least=1)
    if not state.write:
        raise InvalidArgumentError(f"lease {state.grant.id} is a read lease: publish a write lease")
    mark = None if event is None else local_event(state, event)
    made = yield from ready(state, stream, mark)
    handle = mark.ipc_handle if mark is not None and made is not None else b""
    state.allocated = False  # from here on, others may find the buffer by its name
    state.check_usable()  # another thread may have published it as a frame meanwhile
    # If no answer comes, the service may have published the buffer.
    state.write, state.unsure = False, True
    try:
        reply = yield from ask(
            Publish(
                lease=state.grant.id,
                name=name,
                keep=keep,
                while_used=while_used,
                replace=replace,
                version=version,
                ready=made or UNSET,
                event=handle,
            ),
            PublishReply,
        )
    except (PoolbridgeError, CancelledError) as error:
        if not isinstance(error, ServiceStalledError):
            state.write, state.unsure = True, False
        raise
    state.unsure = False
    if state.promise is not None:
        # If this process uses the buffer through this lease, this process also has to wait for the promise.
        _fences.add_fence(state, state.promise)
    state.seal()
    state.name, state.version, state.copied = name, reply.version, None
    if mark is not None:
        state.event = mark


def local_event(state: LeaseState, event: Any) -> Event:
    """Make an `Event` from `event`, which the program has recorded after its work on the memory of a lease.

    Raises
    ------
    InvalidArgumentError
        The event is no interprocess event, the lease has memory of the CPU, or the program has promised the content.
    """
    if state.promise is not None:
        raise InvalidArgumentError(
            f"the content of buffer {state.grant.buffer} is promised, which says when it is complete: leave out the "
            "event"
        )
    kind, ordinal = state.memory.pool.home
    if kind != _dlpack.CUDA:
        raise InvalidArgumentError(
            "an interprocess event says when work of a GPU is done, and this memory is the CPU's: leave out the event"
        )
    return _event.adopt(ordinal, event)


def ready(state: LeaseState, stream: Any, event: Event | None = None) -> Flow[Fence | None]:
    """Return the fence that is reached when a buffer's content is complete; None if the content is complete now.

    Parameters
    ----------
    state
        The lease.
    stream
        A stream that writes the content and that poolbridge may not know yet; None: poolbridge knows all such streams.
    event
        An event that the program has recorded after all work on the content; None: no event.
    """
    if stream is not None:
        _fences.name_stream(state, stream)
    named = state.named
    if event is not None:
        _fences.name_event(state, event)
    try:
        if not _fences.must_wait(state):
            return _fences.ready(state)
        made: Fence | None = yield Do(partial(_fences.ready, state))
        return made
    finally:
        state.named = named


def promise(session: Session, state: LeaseState) -> Flow[Promise]:
    """Make a `Promise` for the content of a buffer that is not published yet."""
    state.check_usable()
    if not state.write or state.promise is not None:
        why = "is promised already" if state.write else "is complete"
        raise InvalidArgumentError(
            f"the content of buffer {state.grant.buffer} {why}: promise it once, before it is published"
        )
    if _timelines.FEATURE not in session.core.features:
        raise UnsupportedError("promises need timelines, and this service has none: start a newer poolsvc")
    while (own := session.timelines.own) is None:
        yield from know_timeline(session, 0)
    try:
        return Promise(state, own)
    except PoolLimitError:
        yield from _free_words(session, own)
    return Promise(state, own)


def _free_words(session: Session, own: Timeline) -> Flow[None]:
    """Free the words of failed promises whose buffers are gone: nobody can read the fences of these promises."""
    for word, failed in own.failed.copy().items():  # finalisers may add failures meanwhile
        try:
            yield from lease(session, failed.buffer, failed.generation, write=False, timeout=0.0)
        except StaleError:
            own.free(word, failed)
        except (BusyError, ContentFailedError, ProducerDiedError):
            pass


def release(state: LeaseState, *, failed: bool, force: bool) -> Flow[None]:
    """End a lease."""
    if state.released:
        raise state.is_released()
    failed, force = check_flag(failed, "failed"), check_flag(force, "force")
    if _fences.must_wait(state):
        yield Do(partial(state.release, failed=failed, force=force))
    else:
        state.release(failed=failed, force=force)


def wait(state: LeaseState, timeout: float | None) -> Flow[None]:
    """Wait on the CPU until this process may use the memory of a lease."""
    state.check_usable()
    timeout = check_timeout(timeout)
    seconds = math.inf if timeout is None else timeout
    deadline = time.monotonic() + seconds
    while state.fences:
        try:
            yield Sleep(partial(_fences.wait, state), max(deadline - time.monotonic(), 0.0))
            break
        except WaitTimeoutError:
            if time.monotonic() >= deadline:
                raise _fences.is_late(state, seconds) from None
    _fences.check(state)


def unpublish(name: str) -> Flow[None]:
    """Remove the published name `name`. The buffer's leases stay valid."""
    yield from ask(Unpublish(name=check_name(name, "buffer")), Reply)
