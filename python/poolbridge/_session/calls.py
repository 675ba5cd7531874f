"""Describes what a thread of a session waits for: a `Call` for a reply, and a `Waiter` for a notice of the service."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec import structs

from poolbridge._wire.messages import Reply, Request
from poolbridge._wire.packet import encode
from poolbridge.errors import (
    PoolbridgeError,
)


class Call:
    """A request that waits for its reply.

    Parameters
    ----------
    request
        The request, with its number.
    reply_type
        The message type of the reply.
    on_done
        A function without parameters. The session calls it when the reply or an error has arrived.

    Attributes
    ----------
    error, failed
        The error until the caller takes it, and whether the request has failed.
    working
        Whether the service has said that it is working on the request.
    """

    __slots__ = (
        "abandoned",
        "began",
        "error",
        "failed",
        "number",
        "on_done",
        "packet",
        "reply",
        "reply_type",
        "request",
        "working",
    )

    def __init__(self, request: Request, reply_type: type[Reply], on_done: Callable[[], object]) -> None:
        self.request: Any = request
        self.number = request.number
        self.reply_type = reply_type
        self.on_done = on_done
        self.packet = b""
        self.began = time.monotonic()
        self.abandoned = False
        self.working = False
        self.reply: Reply | None = None
        self.error: PoolbridgeError | None = None
        self.failed = False

    def again(self) -> bytes:
        """Return the packet for another service: if the request may wait, then for the time that it has left."""
        wait = getattr(self.request, "wait", 0)
        if not wait:
            return self.packet
        passed = int((time.monotonic() - self.began) * 1000)
        return encode(structs.replace(self.request, wait=max(wait - passed, 1)))

    @property
    def done(self) -> bool:
        """Whether the reply or an error has arrived."""
        return self.reply is not None or self.failed

    def fail(self, error: PoolbridgeError) -> None:
        """Set the error, unless the reply or another error has arrived, and tell the caller of the request.

        If the client was closed while the service worked on the request, the service's later answer changes nothing.
        """
        if not self.done:
            self.error, self.failed = error, True
        self.on_done()

    def take_error(self) -> PoolbridgeError:
        """Return the error to raise, and keep no reference.

        The traceback of the error will refer to stack frames that refer to this object. If this object referred to the
        error, then the arrays of these frames would stay until the garbage collector runs.
        """
        error, self.error = self.error, None
        assert error is not None  # noqa: S101 - only called once, after the call has failed
        return error

    def result(self) -> Reply:
        """Return the reply, or raise the error."""
        if self.failed:
            raise self.take_error()
        assert self.reply is not None  # noqa: S101 - only called when done
        return self.reply


class Waiter:
    """A wait for a condition that a notice of the service can make true.

    Parameters
    ----------
    ready
        A function that returns whether the condition is true.

    Attributes
    ----------
    on_done
        A function that the session calls after each notice that may have made the condition true; None while no thread
        waits.
    """

    __slots__ = ("on_done", "ready")

    def __init__(self, ready: Callable[[], bool]) -> None:
        self.ready = ready
        self.on_done: Callable[[], object] | None = None

    @property
    def done(self) -> bool:
        """Whether the condition is true."""
        return self.ready()

    def tell(self) -> None:
        """Wake the thread that waits, so that the thread checks the condition again."""
        on_done = self.on_done  # read `on_done` once: the thread may stop waiting at any moment
        if on_done is not None:
            on_done()
