"""The messages of protocol version 1, as ``docs/protocol.md`` defines them.

The order of the fields is the order of the keys on the wire, and short names are the keys themselves: this file
is the tables of that page, in Python. Nothing here knows about sockets.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

VERSION = 1
U_MAX = 2**63 - 1

U = Annotated[int, Meta(ge=0, le=U_MAX)]
I64 = Annotated[int, Meta(le=2**63 - 1)]
RequestNumber = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Epoch = Annotated[bytes, Meta(min_length=16, max_length=16)]


class WireError(Struct, omit_defaults=True):
    """``Error``: a stable code and a text for people."""

    c: str
    m: str


class Tensor(Struct, omit_defaults=True):
    """``Tensor``: element type, shape, strides in elements, byte offset."""

    dt: str
    sh: tuple[U, ...] = ()
    st: tuple[I64, ...] = ()
    of: U = 0


class Export(Struct, omit_defaults=True):
    """``Export``: what a kind needs for mapping, and how many descriptors of the packet belong to it."""

    d: bytes = b""
    f: U = 0


class Pool(Struct, omit_defaults=True, kw_only=True):
    """``Pool``: a named, bounded arena of one kind of memory."""

    id: U
    nm: str
    k: str
    do: U = 0
    du: str = ""
    mx: U
    sx: U = 0
    ux: U = 0
    x: Export | UnsetType = UNSET


class Fence(Struct, omit_defaults=True):
    """``Fence``: reached when a word of a timeline is ``v`` or more."""

    tl: U
    wd: U
    v: U


class Channel(Struct, omit_defaults=True):
    """``Channel``: a named, bounded queue of buffers of one pool."""

    id: U
    nm: str
    pl: U
    md: str
    cp: U
    fl: str


class Grant(Struct, omit_defaults=True, kw_only=True):
    """``Lease``: what the service grants; named apart from the `Lease` that users state."""

    id: U
    bf: U
    ge: U
    wr: bool = False
    pl: U
    bl: U
    bs: U
    n: U = 0
    t: Tensor
    x: Export | UnsetType = UNSET
    wt: tuple[Fence, ...] = ()
    ev: bytes = b""
    eo: bool = False


class PoolStats(Struct, omit_defaults=True):
    """``PoolStats``: a pool and the bytes in it."""

    p: Pool
    rs: U = 0
    ld: U = 0
    us: U = 0
    ca: U = 0
    rc: U = 0
    nb: U = 0
    cs: U = 0
    cu: U = 0


class Stats(Struct, omit_defaults=True, kw_only=True):
    """``Stats``: counts of the whole service and the pools that the session may use."""

    ss: U
    ls: U
    bf: U
    nm: U
    p: tuple[PoolStats, ...] = ()


class SessionEntry(Struct, omit_defaults=True, kw_only=True):
    """``SessionEntry``: a session in a list."""

    id: U
    ui: U
    pd: U
    nm: str = ""
    bg: U
    ls: U = 0
    bk: U = 0
    mb: U = 0
    n: U = 0


class ChannelEntry(Struct, omit_defaults=True, kw_only=True):
    """``ChannelEntry``: a channel in a list."""

    c: Channel
    ui: U
    pr: U = 0
    cs: U = 0
    sh: bool = False


class NameEntry(Struct, omit_defaults=True, kw_only=True):
    """``NameEntry``: a name in a list."""

    nm: str
    bf: U
    pl: U
    n: U
    t: Tensor
    ui: U
    ss: U = 0


class BufferEntry(Struct, omit_defaults=True, kw_only=True):
    """``BufferEntry``: a buffer in a list."""

    id: U
    ge: U
    pl: U
    n: U
    bs: U
    t: Tensor
    wr: U = 0
    rd: tuple[U, ...] = ()
    rs: U = 0
    nn: U = 0
    ch: bool = False


# Requests


class Request(Struct, omit_defaults=True, kw_only=True, tag_field="o"):
    """The envelope of a request: its operation is the tag of the class."""

    q: RequestNumber = 0


class Hello(Request, kw_only=True, tag="hello"):
    """Offer protocol versions."""

    v: tuple[U, ...]
    nm: str = ""
    ft: tuple[str, ...] = ()


class Create(Request, kw_only=True, tag="create"):
    """Create a pool."""

    nm: str
    k: str
    dv: str = ""
    mx: U
    sx: U = 0
    ux: U = 0
    ui: tuple[U, ...] = ()
    gi: tuple[U, ...] = ()
    en: bool = False


class Open(Request, kw_only=True, tag="open"):
    """Open a pool by name, or by the id that a lease brought."""

    nm: str = ""
    pl: U = 0
    w: U = 0


class Destroy(Request, kw_only=True, tag="destroy"):
    """Destroy a pool."""

    pl: U


class Trim(Request, kw_only=True, tag="trim"):
    """Give unused blocks of a pool back."""

    pl: U
    n: U = 0


class Alloc(Request, kw_only=True, tag="alloc"):
    """Allocate a buffer."""

    pl: U
    t: Tensor
    w: U = 0


class Publish(Request, kw_only=True, tag="publish"):
    """Name a buffer whose content is complete."""

    l: U  # noqa: E741 - the wire's key
    nm: str
    t: Tensor | UnsetType = UNSET
    kp: bool = False
    rp: bool = False
    rt: Fence | UnsetType = UNSET
    ev: bytes = b""


class Unpublish(Request, kw_only=True, tag="unpublish"):
    """Take a name away."""

    nm: str


class Get(Request, kw_only=True, tag="get"):
    """Lease the buffer behind a name."""

    nm: str
    wr: bool = False
    w: U = 0


class LeaseBuffer(Request, kw_only=True, tag="lease"):
    """Lease a buffer by its id and generation."""

    bf: U
    ge: U
    wr: bool = False
    w: U = 0


class Release(Request, kw_only=True, tag="release"):
    """End a lease, and those of ``al`` with it."""

    l: U  # noqa: E741 - the wire's key
    fl: bool = False
    dt: tuple[Fence, ...] = ()
    al: tuple[U, ...] = ()


class Cancel(Request, kw_only=True, tag="cancel"):
    """Cancel a request that waits."""

    rq: RequestNumber


class Dropped(Request, kw_only=True, tag="dropped"):
    """Say which blocks are no longer mapped."""

    bl: tuple[U, ...]


class StatsRequest(Request, kw_only=True, tag="stats"):
    """Ask for statistics."""


class List(Request, kw_only=True, tag="list"):
    """Ask for a page of what the service has."""

    wt: str
    af: str = ""
    n: U = 0


AnyRequest = (
    Hello
    | Create
    | Open
    | Destroy
    | Trim
    | Alloc
    | Publish
    | Unpublish
    | Get
    | LeaseBuffer
    | Release
    | Cancel
    | Dropped
    | StatsRequest
    | List
)


# Replies and notices


class Envelope(Struct, omit_defaults=True):
    """What tells a reply, which has a request number, from a notice, which has none.

    The notice's name is no part of it: in the reply to `Trim` the same key is a number.
    """

    q: RequestNumber = 0
    e: WireError | UnsetType = UNSET


class Notice(Struct, omit_defaults=True):
    """What every notice begins with; without a name it is an error that belongs to no request."""

    n: str = ""


class Reply(Struct, omit_defaults=True, kw_only=True):
    """The envelope of a reply, and the whole of a reply without fields of its own."""

    q: RequestNumber
    e: WireError | UnsetType = UNSET


class HelloReply(Reply, kw_only=True):
    """Reply to `Hello`."""

    v: U
    ep: Epoch
    id: U
    pid: U
    ft: tuple[str, ...] = ()


class PoolReply(Reply, kw_only=True):
    """Reply to `Create` and `Open`."""

    p: Pool


class TrimReply(Reply, kw_only=True):
    """Reply to `Trim`."""

    n: U


class GrantReply(Reply, kw_only=True):
    """Reply to `Alloc`, `Get` and `LeaseBuffer`."""

    l: Grant  # noqa: E741 - the wire's key


class StatsReply(Reply, kw_only=True):
    """Reply to `StatsRequest`."""

    s: Stats


class ListReply(Reply, kw_only=True):
    """Reply to `List`."""

    ss: tuple[SessionEntry, ...] = ()
    cs: tuple[ChannelEntry, ...] = ()
    ns: tuple[NameEntry, ...] = ()
    bs: tuple[BufferEntry, ...] = ()
    nx: str = ""


class Recall(Struct, omit_defaults=True, tag_field="n", tag="recall"):
    """Notice: unmap these blocks when no lease needs them."""

    bl: tuple[U, ...]


class Working(Struct, omit_defaults=True, tag_field="n", tag="working"):
    """Notice: the service is carrying out a request that takes long; no number: one that all others wait behind."""

    rq: U = 0


class Goodbye(Struct, omit_defaults=True, tag_field="n", tag="goodbye"):
    """Notice: the service is about to close the connection."""

    c: str
    m: str


ReplyT = TypeVar("ReplyT", bound=Reply)
