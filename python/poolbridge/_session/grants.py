"""Makes the `LeaseState` for a grant.

First opens the grant's pool, and maps the grant's block and the timelines of the grant's fences.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from poolbridge._memory import dlpack as _dlpack, tensor as _tensor
from poolbridge._memory.kinds import BlockPart
from poolbridge._order import timelines as _timelines
from poolbridge._session import lease_state as _lease_state
from poolbridge._session.flow import Do, Flow, ask
from poolbridge._session.lease_state import LeaseState
from poolbridge._wire.messages import GetTimeline, Open, PoolReply, TimelineReply
from poolbridge.errors import (
    FrameCorruptError,
    NotFoundError,
    PoolbridgeError,
    ProtocolError,
    StaleError,
)

if TYPE_CHECKING:
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import Grant


class Taker(_lease_state.Taker, Protocol):
    """The part of a consumer that this module uses; see `poolbridge._session.consumer.Consumer`."""

    def count(self, grant: Grant) -> bool:
        """Count a frame as a lease of its block; return False if this session does not know the block."""

    def learn(self, grant: Grant) -> Flow[None]:
        """Count a frame as a lease of its block. If this session does not know the block, ask for the block first."""

    def doubt(self, grant: Grant, error: PoolbridgeError) -> FrameCorruptError:
        """Release an inconsistent frame, report it to the service, and return the error that the caller must raise."""


def mapped_state(session: Session, grant: Grant, consumer: Taker | None = None) -> LeaseState | None:
    """Make the `LeaseState` if the grant's pool is open and its block and timelines are mapped; else return None.

    Usually the pool is open, and the block and the timelines are mapped. If this function returns None, the caller
    calls `map_state`.

    Parameters
    ----------
    session
        The session that has the lease.
    grant
        The grant that the service sent, or the grant that the consumer made for a frame.
    consumer
        The consumer that took the frame; None if the grant is not of a frame.
    """
    try:
        # `block_nbytes` is 0 until the consumer has counted the frame.
        if consumer is not None and not (grant.block_nbytes or consumer.count(grant)):
            return None
        pool, memory = session.pool_info(grant.pool), session.mapped(grant.block)
        if pool is None or memory is None or (grant.wait and session.timelines.unknown(session.core.epoch, grant.wait)):
            return None
        if grant.base:
            memory = BlockPart(memory, grant.base)
        return LeaseState(session, grant, pool, memory, consumer=consumer)
    except BaseException as error:
        if consumer is not None and isinstance(error, ProtocolError):
            raise consumer.doubt(grant, error) from None
        session.release_grant(grant, consumer)
        raise


def map_state(session: Session, grant: Grant, consumer: Taker | None = None) -> Flow[LeaseState]:
    """Open the pool of a grant, map its block and the timelines of its fences, and make the grant's `LeaseState`."""
    try:
        if consumer is not None:
            yield from consumer.learn(grant)
        _tensor.from_wire(grant.tensor, grant.nbytes)  # check the description before anything is mapped
        pool = session.pool_info(grant.pool)
        if pool is None:
            reply = yield from ask(Open(pool=grant.pool), PoolReply)
            pool = reply.pool
        memory = session.mapped(grant.block)
        if memory is None:
            memory = yield Do(partial(session.map, grant.block))
        for timeline in session.timelines.unknown(session.core.epoch, grant.wait):
            yield from know_timeline(session, timeline)
        on_device = memory.pool.device[0] != _dlpack.CPU
        if on_device and session.timelines.own is None and _timelines.FEATURE in session.core.features:
            yield from know_timeline(session, 0)
        if grant.base:
            memory = BlockPart(memory, grant.base)
        return LeaseState(session, grant, pool, memory, consumer=consumer)
    except BaseException as error:
        if consumer is not None and isinstance(error, (ProtocolError, NotFoundError)):
            raise consumer.doubt(grant, error) from None
        session.release_grant(grant, consumer)
        raise


def know_timeline(session: Session, timeline: int) -> Flow[None]:
    """Ask the service for a timeline's page, and map the page. `timeline` 0 stands for the session's own timeline."""
    try:
        reply = yield from ask(GetTimeline(timeline=timeline), TimelineReply)
    except (NotFoundError, StaleError):
        if not timeline:
            raise
        session.timelines.add_gone(timeline)
    else:
        session.adopt(reply.timeline, own=not timeline)
