"""The messages of the feature ``shared``; see `poolbridge._messages`."""

from __future__ import annotations

from msgspec import Struct

from poolbridge._messages import Export, Reply, Request, U

# Requests


class Join(Request, kw_only=True, tag="join"):
    """Ask to take part in a channel whose frames go through shared memory, as a producer or a consumer."""

    ch: U
    ro: str
    ol: bool = False
    fl: str = ""


class Enter(Request, kw_only=True, tag="enter"):
    """Say that the files of a member are mapped: it takes part from now on."""

    ch: U
    mb: U


class Leave(Request, kw_only=True, tag="leave"):
    """Say that a consumer takes no frames any more."""

    ch: U
    mb: U


class Map(Request, kw_only=True, tag="map"):
    """Ask how to map a block that a frame of shared memory named."""

    ch: U
    bl: U


class Doubt(Request, kw_only=True, tag="doubt"):
    """Say which frame has failed because its record contradicts itself."""

    ch: U
    mb: U
    sq: U


SharedRequest = Join | Enter | Leave | Map | Doubt


# Replies


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
