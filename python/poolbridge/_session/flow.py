"""Flows: what is written once for the blocking and for the asyncio client, as generators.

A flow yields what has to be waited for, such as an `Ask` of the service or a `Do` in this process, and is resumed with
the result or the error; it returns the result of the whole. It never waits itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from poolbridge._wire.messages import Reply

if TYPE_CHECKING:
    from poolbridge._session.calls import Waiter
    from poolbridge._wire.messages import Request

_T = TypeVar("_T")
_ReplyT = TypeVar("_ReplyT", bound=Reply)


@dataclass(slots=True)
class Ask:
    """Send a request and wait for its reply; `wait` is how many seconds the service itself may take, None: any."""

    request: Request
    reply_type: type[Reply]
    wait: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Do:
    """Do something in this process that may wait for a driver."""

    work: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Hear:
    """Receive packets until a waiter is told, for so many seconds; None: without limit. Gives whether it was."""

    waiter: Waiter
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Do something in this process that may take as long as it is told, in seconds; None: without limit.

    It may be told less, and is then asked for again.
    """

    work: Callable[[float | None], Any]
    seconds: float | None


Flow = Generator[Ask | Do | Hear | Sleep, Any, _T]


class Run(Protocol):
    """Carries a flow to its end, waiting where it has to; as a method of a client it keeps that client alive."""

    def __call__(self, flow: Flow[_T], /) -> _T:
        """Give the flow's result."""


class AsyncRun(Protocol):
    """As `Run`, in an event loop."""

    async def __call__(self, flow: Flow[_T], /) -> _T:
        """Give the flow's result."""


def ask(request: Request, reply_type: type[_ReplyT], wait: float | None = 0.0) -> Flow[_ReplyT]:
    """Ask for something and give the reply."""
    reply = yield Ask(request, reply_type, wait)
    return cast("_ReplyT", reply)
