"""Sends and receives the packets of an asyncio client, on the event loop of the client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from poolbridge._session.background import Background
from poolbridge._session.socket_reader import SocketReader
from poolbridge._sys.deferred import OwnedLock
from poolbridge._wire.messages import (
    CloseChannel,
    Create,
    Destroy,
    EndSession,
    MakeChannel,
    Publish,
    Reply,
    Request,
    Trim,
    Unpublish,
)
from poolbridge.errors import (
    PoolbridgeError,
    RequestCancelledError,
    ServiceStalledError,
)

if TYPE_CHECKING:
    from poolbridge._session.calls import Waiter
    from poolbridge._session.cancellation import Cancellation
    from poolbridge._session.session import Session

_ReplyT = TypeVar("_ReplyT", bound=Reply)

# How many packets the reader reads at most in one turn of the event loop.
_MOST_READS = 64
# The requests whose effect the client cannot undo. The service answers them soon, at the latest after a `Cancel`.
_LASTING = CloseChannel, Create, Destroy, EndSession, MakeChannel, Publish, Trim, Unpublish


class LoopReader:
    """Receives the packets of one asyncio client and waits for replies.

    Parameters
    ----------
    session
        The client's session.
    loop
        The running event loop.

    Attributes
    ----------
    loop
        The event loop.
    """

    def __init__(self, session: Session, loop: asyncio.AbstractEventLoop) -> None:
        self._session = session
        self.loop = loop
        self._fd = session.transport.fileno()
        self._writing = False
        self._closed = False
        self._background = Background()
        self._handing = OwnedLock()
        loop.add_reader(self._fd, self._readable)
        session.carried_by(self)

    async def call(
        self, request: Request, reply_type: type[_ReplyT], seconds: float | None, cancellation: Cancellation
    ) -> _ReplyT:
        """Send a request and wait for its reply; see `SocketReader.call`.

        If the wait is cancelled, the request is cancelled too. If the reply still comes and grants a lease, the client
        releases the lease. If the client cannot undo the request, the call waits for the reply all the same.
        """
        done = asyncio.Event()
        call = self._session.ask(request, reply_type, done.set)
        try:
            while not call.done:
                call.working = False
                try:
                    async with asyncio.timeout(seconds):
                        await done.wait()
                except TimeoutError:
                    if call.working:  # the service repeats the notice `working` while it works on the request
                        seconds = self._session.patience
                    elif not call.done:
                        message = "the service did not answer in time: it is stopped, or overloaded"
                        raise ServiceStalledError(message) from None
                except asyncio.CancelledError as error:
                    if not isinstance(request, _LASTING):
                        raise
                    cancellation.keep(error)
                    self._session.cancel(call)
            return cast("_ReplyT", call.result())
        except RequestCancelledError:
            cancellation.check()
            raise
        except BaseException:
            self._session.abandon(call)
            raise

    async def wait(self, waiter: Waiter, seconds: float | None) -> bool:
        """Wait until `waiter` is done; return False if `seconds` pass first."""
        if not waiter.done:
            ready = asyncio.Event()
            waiter.on_done = ready.set
            try:
                async with asyncio.timeout(seconds):
                    while not waiter.done:  # a notice says only that the condition may be true now
                        if self._session.ended is not None:
                            self._session.check_usable()
                        await ready.wait()
                        ready.clear()
            except TimeoutError:
                return waiter.done
            finally:
                waiter.on_done = None
        return True

    def _readable(self) -> None:
        if self._closed:
            return  # a `SocketReader` reads
        try:
            for _ in range(_MOST_READS):
                if self._session.ended is not None or not self._session.receive():
                    break
            else:
                self._soon(self._readable)  # read more packets after other callbacks of the loop have run
        except PoolbridgeError:
            pass  # the session has ended: every call has failed with this error, and the next call fails, too
        except BaseException:
            self._soon(self._readable)  # a signal handler raised: read the remaining packets later
            raise
        if self._session.ended is not None:
            self.stop()

    def want_write(self) -> None:
        """See `Driver`."""
        self._soon(self._start_writing)

    def _start_writing(self) -> None:
        if not self._writing and not self._closed:
            self._writing = True
            self.loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        if self._session.flush() and not self._closed:
            self._writing = False
            self.loop.remove_writer(self._fd)

    def reconnect(self, finish: Callable[[], None]) -> None:
        """See `Driver`."""
        if not self._soon(partial(self._read_again, finish)):
            finish()  # the loop is closed

    def _read_again(self, finish: Callable[[], None]) -> None:
        if self._closed and self._session.ended is None:  # a `SocketReader` reads now
            self._session.reconnect(finish)
            return
        finish()
        if self._session.ended is not None:
            self.stop()
        elif not self._closed:
            self.loop.add_reader(self._fd, self._readable)
            self._session.flush()

    def away(self) -> None:
        """See `Driver`."""
        if not self._closed:
            self.loop.remove_reader(self._fd)
            self.loop.remove_writer(self._fd)
            self._writing = False

    def background(self, work: Callable[[], None]) -> None:
        """See `Driver`."""
        if not self._background.add(partial(self._without_loop, work) if self.loop.is_closed() else work):
            self._soon(self._use_executor)

    def _use_executor(self) -> None:
        """Do work in the executor, which may have a thread already, because this process may start no more threads."""
        self.loop.run_in_executor(None, self._background.run)

    def _without_loop(self, work: Callable[[], None]) -> None:
        try:
            self.hand_over()
        finally:
            try:
                work()
            finally:
                if self._session.ended is not None:
                    self.stop()

    def _soon(self, callback: Callable[[], None]) -> bool:
        """Schedule a callback on the loop, from any thread. Return False if the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False
        return True

    def hand_over_soon(self) -> None:
        """Call `hand_over` on the loop, from any thread, also in a finaliser."""
        if not self._soon(self.hand_over):
            self.hand_over()

    def hand_over(self) -> None:
        """Let a `SocketReader` receive the packets from now on: arrays may keep the session longer than the loop lasts.

        The caller is on the loop, or the loop is closed.
        """
        if not self._handing.take(0):
            return  # another thread does it
        try:
            if not self._closed and self._session.ended is None:
                self._leave_loop()
                SocketReader(self._session)
        except BaseException:
            self._session.close()
            self._session.transport.close()
            raise
        finally:
            self._handing.release()

    def stop(self) -> None:
        """Stop reading and close the socket. Idempotent."""
        if not self._closed:
            self._leave_loop()
            self._session.transport.close()

    def _leave_loop(self) -> None:
        self._closed = True
        if os.getpid() == self._session.pid and not self.loop.is_closed():
            self.loop.remove_reader(self._fd)
            self.loop.remove_writer(self._fd)
