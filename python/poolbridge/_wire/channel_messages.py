"""The messages of timelines and channels; see `poolbridge._wire.messages`."""

from __future__ import annotations

from msgspec import Struct

from poolbridge._wire.messages import Channel, Export, Reply, Request, U

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


class Find(Request, kw_only=True, tag="find"):
    """Open a channel by name."""

    nm: str
    w: U = 0


class CloseChannel(Request, kw_only=True, tag="close"):
    """Close a channel for all."""

    ch: U


class Join(Request, kw_only=True, tag="join"):
    """Ask to take part in a channel, as a producer or a consumer."""

    ch: U
    ro: str
    ol: bool = False
    fl: str = ""


class Enter(Request, kw_only=True, tag="enter"):
    """Say that the files of a member are mapped: it takes part from now on."""

    ch: U
    mb: U


class Leave(Request, kw_only=True, tag="leave"):
    """Say that a member takes no part any more."""

    ch: U
    mb: U


class Map(Request, kw_only=True, tag="map"):
    """Ask how to map a block that a frame named."""

    ch: U
    bl: U


class Doubt(Request, kw_only=True, tag="doubt"):
    """Say which frame has failed because its record contradicts itself."""

    ch: U
    mb: U
    sq: U


ChannelRequest = Timeline | Seal | MakeChannel | Find | CloseChannel | Join | Enter | Leave | Map | Doubt


# Replies


class TimelineReply(Reply, kw_only=True):
    """Reply to `Timeline`."""

    tl: U
    nw: U
    x: Export


class ChannelReply(Reply, kw_only=True):
    """Reply to `MakeChannel` and `Find`."""

    c: Channel


class JoinReply(Reply, kw_only=True):
    """Reply to `Join`; with it come the roster, the sequencer and the member's own file."""

    sl: U
    mb: U
    x: Export


class MapReply(Reply, kw_only=True):
    """Reply to `Map`."""

    ge: U
    bs: U
    x: Export


# Notices


class Failed(Struct, omit_defaults=True, tag_field="n", tag="failed"):
    """Notice: the writer of these buffers, which the session has leased, died before they were complete."""

    bf: tuple[U, ...]


class Forget(Struct, omit_defaults=True, tag_field="n", tag="forget"):
    """Notice: no fence of these timelines will come again."""

    tl: tuple[U, ...]


class Member(Struct, omit_defaults=True, kw_only=True, tag_field="n", tag="member"):
    """Notice: the file of a member, for the members of the other role that the session has in the channel."""

    ch: U
    ro: str
    sl: U
    mb: U
    x: Export


class Wanted(Struct, omit_defaults=True, tag_field="n", tag="wanted"):
    """Notice: memory of a pool is wanted."""

    pl: U
