"""The messages of the features ``timelines``, ``channels`` and ``rings``; see `poolbridge._messages`."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, field

from poolbridge._messages import Channel, Export, Grant, Reply, Request, Tensor, Ticket, U, WireError

# Requests


class Timeline(Request, kw_only=True, tag="timeline"):
    """Ask for a timeline's page; without an id, for the session's own."""

    tl: U = 0


class Seal(Request, kw_only=True, tag="seal"):
    """Say that the session's own page is mapped: nobody may map it to write any more."""


class MakeChannel(Request, kw_only=True, tag="channel"):
    """Make a channel, or open the one that is like it."""

    nm: str
    pl: U
    md: str = ""
    cp: U
    fl: str = ""
    sm: bool = False


class Find(Request, kw_only=True, tag="find"):
    """Open a channel by name."""

    nm: str
    w: U = 0


class Send(Request, kw_only=True, tag="send"):
    """Put a buffer into a channel. The keys of ``mt`` stand in the order of their bytes."""

    ch: U
    l: U  # noqa: E741 - the wire's key
    t: Tensor | UnsetType = UNSET
    mt: dict[str, str] = field(default_factory=dict)
    rt: Ticket | UnsetType = UNSET
    ev: bytes = b""
    w: U = 0


class Subscribe(Request, kw_only=True, tag="subscribe"):
    """Have a channel's frames sent."""

    ch: U
    cr: U
    ol: bool = False
    fl: str = ""


class Ack(Request, kw_only=True, tag="ack"):
    """Settle the frame of a lease, and those of ``al`` with it; the leases live on."""

    l: U  # noqa: E741 - the wire's key
    bk: bool = False
    al: tuple[U, ...] = ()


class Credit(Request, kw_only=True, tag="credit"):
    """Allow more frames."""

    sb: U
    n: U


class Unsubscribe(Request, kw_only=True, tag="unsubscribe"):
    """Have no more frames sent."""

    sb: U


class Shut(Request, kw_only=True, tag="shut"):
    """Close a channel for all."""

    ch: U


class MakeRing(Request, kw_only=True, tag="ring"):
    """Ask for a ring of shared memory."""


ChannelRequest = Timeline | Seal | MakeChannel | Find | Send | Subscribe | Ack | Credit | Unsubscribe | Shut | MakeRing


# Replies


class TimelineReply(Reply, kw_only=True):
    """Reply to `Timeline`."""

    tl: U
    nw: U
    x: Export


class ChannelReply(Reply, kw_only=True):
    """Reply to `MakeChannel` and `Find`."""

    c: Channel


class SendReply(Reply, kw_only=True):
    """Reply to `Send`."""

    sq: U


class SubscribeReply(Reply, kw_only=True):
    """Reply to `Subscribe`."""

    sb: U


class RingReply(Reply, kw_only=True):
    """Reply to `MakeRing`."""

    sz: U
    x: Export


# Notices


class Frame(Struct, omit_defaults=True, kw_only=True, tag_field="n", tag="frame"):
    """Notice: the next frame, or why there is none."""

    sb: U
    sq: U
    ts: U
    mt: dict[str, str] = field(default_factory=dict)
    dr: U = 0
    l: Grant | UnsetType = UNSET  # noqa: E741 - the wire's key
    e: WireError | UnsetType = UNSET


class End(Struct, omit_defaults=True, tag_field="n", tag="end"):
    """Notice: no frame will come any more."""

    sb: U
    e: WireError | UnsetType = UNSET


class Lost(Struct, omit_defaults=True, tag_field="n", tag="lost"):
    """Notice: a `Send` that wanted no reply failed."""

    ch: U
    l: U  # noqa: E741 - the wire's key
    e: WireError


class Failed(Struct, omit_defaults=True, tag_field="n", tag="failed"):
    """Notice: the writer of these buffers, which the session has leased, died before they were complete."""

    bf: tuple[U, ...]


class Forget(Struct, omit_defaults=True, tag_field="n", tag="forget"):
    """Notice: no ticket of these timelines will come again."""

    tl: tuple[U, ...]
