"""Defines flows. A flow is an operation in the form of a generator, for the blocking and for the asyncio client.

A flow never waits itself. For each step that may wait, the flow yields an object. For example, an `Ask` waits for the
service's reply, and a `Do` calls a function in this process. The client runs the step, and resumes the flow with the
step's result or error. The flow returns the operation's result.
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
    """Send a request and wait for its reply.

    `wait` is how many seconds the service may let the request wait; None: no limit.
    """

    request: Request
    reply_type: type[Reply]
    wait: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Do:
    """Call `work` in this process. `work` may wait for a driver. A cancelled asyncio task waits until `work` ends."""

    work: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Hear:
    """Receive packets until `waiter` is done or `seconds` have passed (None: no limit). The result is `waiter.done`."""

    waiter: Waiter
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Call `work` in this process with the number of seconds that `work` may wait; None: no limit.

    The client may call `work` with fewer seconds. If they are not enough, the flow yields a `Sleep` again. If an
    asyncio task is cancelled, the client leaves `work` to its thread, unless `lasting` says that `work` may have an
    effect that the session cannot undo or keep for later.
    """

    work: Callable[[float | None], Any]
    seconds: float | None
    lasting: bool = False


Flow = Generator[Ask | Do | Hear | Sleep, Any, _T]


class Run(Protocol):
    """A function that runs a flow to its end. It is a bound method of a client, so it keeps the client alive."""

    def __call__(self, flow: Flow[_T], /) -> _T:
        """Return the flow's result."""


class AsyncRun(Protocol):
    """A coroutine function that runs a flow to its end in an event loop; see `Run`."""

    async def __call__(self, flow: Flow[_T], /) -> _T:
        """Return the flow's result."""


def ask(request: Request, reply_type: type[_ReplyT], wait: float | None = 0.0) -> Flow[_ReplyT]:
    """Send a request and return the reply; see `Ask`."""
    reply = yield Ask(request, reply_type, wait)
    return cast("_ReplyT", reply)
