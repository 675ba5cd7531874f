"""What a session knows: requests that wait, pools and blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from poolbridge._errors import PoolbridgeError
from poolbridge._messages import Pool, Reply, Request, Ticket
from poolbridge._transport import Descriptors


class Call:
    """A request that waits for its reply.

    Parameters
    ----------
    request
        What was asked, with its number.
    reply_type
        What the reply is decoded as.
    on_done
        Called without arguments once the reply or an error is there.

    Attributes
    ----------
    working
        Whether the service has said that it is carrying the request out.
    """

    __slots__ = ("abandoned", "error", "number", "on_done", "reply", "reply_type", "request", "working")

    def __init__(self, request: Request, reply_type: type[Reply], on_done: Callable[[], object]) -> None:
        self.request: Any = request
        self.number = request.q
        self.reply_type = reply_type
        self.on_done = on_done
        self.abandoned = False
        self.working = False
        self.reply: Reply | None = None
        self.error: PoolbridgeError | None = None

    @property
    def done(self) -> bool:
        """Whether the reply or an error is there."""
        return self.reply is not None or self.error is not None

    def result(self) -> Reply:
        """Give the reply, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.reply is not None  # noqa: S101 - only asked when done
        return self.reply


class Waiter:
    """Something that is waited for while packets are received.

    Parameters
    ----------
    ready
        Says whether it is there.

    Attributes
    ----------
    on_done
        Called when it is there, if anybody waits.
    """

    __slots__ = ("on_done", "ready")

    def __init__(self, ready: Callable[[], bool]) -> None:
        self.ready = ready
        self.on_done: Callable[[], object] | None = None

    @property
    def done(self) -> bool:
        """Whether it is there."""
        return self.ready()

    def tell(self) -> None:
        """Have the thread that waits look again."""
        on_done = self.on_done  # once: the thread may give up at any moment
        if on_done is not None:
            on_done()


class KnownPool(Struct, eq=False, gc=True):
    """A pool that this session opened: its description, and its export until that is mapped."""

    info: Pool
    export: bytes
    descriptors: Descriptors


class KnownBlock(Struct, eq=False, gc=True):
    """A block whose export this session was sent.

    ``leases`` counts this session's leases on it; ``mapped`` is the kind's mapping while there is one; ``uses`` has the
    words of the session's own timeline, and the values that they have when its streams are done with the block;
    ``arrays`` are those that are made once for all frames in the block: of which tensor, made by whom, and the array,
    which counts as a lease for as long as it is alive; ``generation`` is the block's when it was
    mapped.
    """

    id: int
    pool: int
    size: int
    export: bytes
    descriptors: Descriptors
    leases: int = 0
    recalled: bool = False
    mapped: Any = None
    uses: dict[int, int] = field(default_factory=dict)
    arrays: list[tuple[Any, Any, Any]] = field(default_factory=list)
    generation: int = 0

    def used(self, ticket: Ticket) -> None:
        """Note when a stream is done with it; threads may say so in another order than the stream gets there."""
        self.uses[ticket.wd] = max(ticket.v, self.uses.get(ticket.wd, 0))
