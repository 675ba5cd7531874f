"""What a session waits for: replies to its requests, and what comes with notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from poolbridge._sys.errors import PoolbridgeError
from poolbridge._wire.messages import Reply, Request


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
