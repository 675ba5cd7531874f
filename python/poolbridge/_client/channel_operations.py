"""Does the work of a client's operations on channels, for `Client` and for `AsyncClient`; see `operations`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from poolbridge._client.arena import share
from poolbridge._client.copies import named_arrays
from poolbridge._client.operations import (
    check_count,
    check_flag,
    check_name,
    check_timeout,
    check_word,
    local_event,
    ready,
    to_milliseconds,
)
from poolbridge._order import fences as _fences
from poolbridge._session.consumer import consume
from poolbridge._session.flow import Ask, Flow
from poolbridge._session.membership import check_able, named
from poolbridge._session.producer import producer_of, send
from poolbridge._sys.literals import AckMode, ChannelMode, FullPolicy, NoProducers
from poolbridge._wire.limits import MAX_CAPACITY, MAX_CONSUMERS, MAX_DELIVERY, MAX_IN_HAND
from poolbridge._wire.messages import (
    AwaitConsumers,
    ChannelIdentity,
    ChannelReply,
    CloseChannel,
    Find,
    Join,
    MakeChannel,
    Open,
    PoolReply,
    Reply,
)
from poolbridge._wire.meta import MetaValue, pack_meta
from poolbridge.errors import (
    InvalidArgumentError,
)

if TYPE_CHECKING:
    from poolbridge._client.copies import Copies
    from poolbridge._session.consumer import Consumer
    from poolbridge._session.session import Session

MODES = get_args(ChannelMode)
ACKS = get_args(AckMode)
FULL = get_args(FullPolicy)
NO_PRODUCERS = get_args(NoProducers)


# Arguments


def _check_most(number: int, most: int, what: str) -> int:
    return check_count(number, what, least=1, most=most)


# Channels


def create_channel(
    session: Session,
    name: str,
    *,
    pool: int,
    mode: ChannelMode,
    capacity: int,
    full: FullPolicy,
    max_deliveries: int | None,
) -> Flow[ChannelIdentity]:
    """Create a channel, or open the existing channel with the same settings."""
    request = MakeChannel(
        name=check_name(name, "channel"),
        pool=pool,
        mode=check_word(mode, MODES, "mode", MODES),
        capacity=_check_most(capacity, MAX_CAPACITY, "capacity"),
        full=check_word(full, FULL, "full", FULL),
        max_deliveries=0 if max_deliveries is None else _check_most(max_deliveries, MAX_DELIVERY, "max_deliveries"),
    )
    if request.max_deliveries and mode != "queue":
        raise InvalidArgumentError(
            f"max_deliveries={max_deliveries} is for queues, and each subscriber of a broadcast gets a frame"
            ' once: leave it out, or use mode="queue"'
        )
    check_able(session)
    reply = yield Ask(request, ChannelReply)
    channel: ChannelIdentity = reply.channel
    return channel


def open_channel(session: Session, name: str, *, timeout: float | None) -> Flow[ChannelIdentity]:
    """Open a channel by its name, and open the channel's pool."""
    timeout = check_timeout(timeout)
    request = Find(name=check_name(name, "channel"), wait=to_milliseconds(timeout))
    check_able(session)
    reply = yield Ask(request, ChannelReply, timeout)
    channel: ChannelIdentity = reply.channel
    yield from open_pool(session, channel)
    return channel


def open_pool(session: Session, channel: ChannelIdentity) -> Flow[None]:
    """Open the pool of a channel, if the session has not opened it."""
    if session.pool_info(channel.pool) is None:
        yield Ask(Open(pool=channel.pool), PoolReply)


def wait_for_consumers(channel: ChannelIdentity, n: int, timeout: float | None) -> Flow[None]:
    """Wait until a channel has at least `n` consumers."""
    timeout = check_timeout(timeout)
    count = _check_most(n, MAX_CONSUMERS, "n")
    with named(channel.name):
        yield Ask(AwaitConsumers(channel=channel.id, count=count, wait=to_milliseconds(timeout)), Reply, timeout)


def close(session: Session, channel: ChannelIdentity) -> Flow[None]:
    """Close a channel for all clients."""
    yield Ask(CloseChannel(channel=channel.id), Reply)
    producer = session.producers.get(channel.id)
    if producer is not None:
        producer.over = True


# Sending


def publish(
    session: Session,
    channel: ChannelIdentity,
    copies: Copies,
    given: Any,
    *,
    meta: Mapping[str, MetaValue] | None,
    timeout: float | None,
    stream: Any,
    event: Any,
) -> Flow[int]:
    """Publish `given` as a frame of the channel, and return the frame's number in the channel."""
    packed = pack_meta(meta)
    timeout = check_timeout(timeout)
    arrays = None if type(given) is np.ndarray else named_arrays(given)
    found = None if arrays is not None else (yield from share(session, channel.pool, given, frame=True))
    if found is None and event is not None:
        raise InvalidArgumentError(
            "this array has to be copied, and an event is possible only for an array that is transferred in place: "
            "leave the event out and name the stream, or write into a lease of the channel's pool"
        )
    producer = yield from producer_of(session, channel)
    if found is None:
        given = given if arrays is None else arrays
        return (yield from copies.publish(producer, given, meta=packed, timeout=timeout, stream=stream))
    state, description = found
    if stream is not None:
        _fences.name_stream(state, stream)
    mark = None if event is None else local_event(state, event)
    fence = yield from ready(state, None, mark)
    handle = b"" if mark is None or fence is None else mark.ipc_handle
    return (yield from send(producer, state, description, meta=packed, fence=fence, event=handle, timeout=timeout))


# Receiving


def subscribe(
    session: Session,
    channel: ChannelIdentity | str,
    *,
    credit: int,
    oldest: bool,
    full: FullPolicy | None,
    ack: AckMode,
    no_producers: NoProducers,
    timeout: float | None = 0.0,
) -> Flow[Consumer]:
    """Join a channel as a consumer. If `channel` is a name, wait for a channel of this name."""
    auto = check_word(ack, ACKS, "ack", ACKS) == "auto"
    most = _check_most(credit, MAX_IN_HAND, "credit")
    policy = "" if full is None else check_word(full, FULL, "full", FULL)
    without = check_word(no_producers, NO_PRODUCERS, "no_producers", NO_PRODUCERS)
    request = Join(role="consumer", oldest=check_flag(oldest, "oldest"), full=policy)
    seconds: float | None = 0.0
    if isinstance(channel, ChannelIdentity):
        request.channel = channel.id
    else:
        request.name, seconds = check_name(channel, "channel"), check_timeout(timeout)
        request.wait = to_milliseconds(seconds)
    check_able(session)
    consumer: Consumer | None = None
    try:
        with named(channel.name) if isinstance(channel, ChannelIdentity) else nullcontext():
            consumer = yield from consume(session, request, credit=most, auto=auto, no_producers=without, wait=seconds)
    except BaseException:
        session.leave(consumer)  # a signal handler may have raised an error after the consumer had joined
        raise
    if session.concurrent:  # one thread takes a frame, and the event loop's thread accepts it
        consumer.native.any_thread, consumer.spin = True, 0.0
    return consumer
