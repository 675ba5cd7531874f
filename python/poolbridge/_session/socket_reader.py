"""Sends and receives the packets of a blocking client.

A thread that waits for a reply reads the socket itself. This saves a switch between threads for each reply. While no
thread waits for a reply, a watcher thread reads the socket. So the client also drops recalled blocks while the program
makes no calls.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import ref

from poolbridge._session.background import Background
from poolbridge._sys.deferred import DeferringLock, Flag, OwnedLock
from poolbridge._wire.messages import Reply, Request
from poolbridge.errors import (
    PoolbridgeError,
    ServiceStalledError,
    UnavailableError,
)

if TYPE_CHECKING:
    from poolbridge._session.calls import Call, Waiter
    from poolbridge._session.session import Session

_ReplyT = TypeVar("_ReplyT", bound=Reply)

# How many packets a thread may read after its time limit. A full socket buffer holds fewer packets.
_MOST_LATE = 1024
# The longest time limit of one call of `poll`. A longer wait calls `poll` again.
_LONGEST_POLL_MS = 1_000_000_000
# How long a thread waits at a time for a service that takes over.
_AWAY_SECONDS = 0.02


class _Bell:
    """Wakes the watcher. Threads and finalisers may call `ring`. After `close`, `ring` does nothing.

    `ring` is written in C: as the first step of an ``except`` block, no signal handler can prevent it.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = DeferringLock()
        self.ring = partial(self._lock.later, self._ring)

    def _ring(self) -> None:
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass

    def close(self) -> None:
        with self._lock:
            fd, self.fd = self.fd, -1
            os.close(fd)


class SocketReader:
    """Receives the packets of one blocking client and waits for replies.

    Parameters
    ----------
    session
        The client's session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fd = session.transport.fileno()
        self._reading = OwnedLock()
        self._read = False  # whether a thread reads
        self._bell = _Bell()
        self._back = Flag()  # set when there is a new connection, or none
        self._background = Background()
        self._stopped = False
        self._help_wanted = False  # whether the watcher should do work, because no thread can be started for it
        self._want_write = False
        self._arming = DeferringLock()
        # The flags of threads that wait for another thread to read. A flag that is dropped removes itself.
        self._waiting: set[ref[Flag]] = set()
        self._armed = True  # whether packets wake the watcher
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._epoll = select.epoll()
        self._epoll.register(self._bell.fd, select.EPOLLIN)
        self._epoll.register(self._fd, select.EPOLLIN)
        session.carried_by(self)
        self._watcher = threading.Thread(target=self._watch, name="poolbridge-watcher", daemon=True)
        try:
            self._watcher.start()
        except RuntimeError as error:
            self._epoll.close()
            self._bell.close()
            raise UnavailableError(
                f"a client needs one thread, and this process cannot start one ({error}): end other threads, or raise "
                "the limit of threads (RLIMIT_NPROC, or pids.max of the control group)"
            ) from error

    def call(self, request: Request, reply_type: type[_ReplyT], seconds: float | None) -> _ReplyT:
        """Send a request and wait for its reply.

        Parameters
        ----------
        request, reply_type
            The request, and the message type of its reply.
        seconds
            How many seconds to wait; None: as long as the connection lasts.

        Raises
        ------
        PoolbridgeError
            The service answered with this error.
        ServiceStalledError
            The service neither answered in time nor said that it works on the request. If the reply still comes and
            grants a lease, the client releases the lease.
        """
        deadline = None if seconds is None or seconds == math.inf else time.monotonic() + seconds
        call: Call | None = None
        try:
            # Begin to read before the request is sent, so that the reply does not wake the watcher.
            if self._begin_reading():
                try:
                    call = self._session.ask(request, reply_type, _nothing)
                    self._read_for(call, deadline)
                finally:
                    self._read, self._armed = False, True
                    self._reading.release()
                    self._after_reading()
            else:
                turn = Flag()
                call = self._session.ask(request, reply_type, turn.set)
                self._wait_for(call, turn, deadline)
            while not call.done:
                self._session.check_usable()  # if the session has ended, another thread will soon end the call
                if not call.working:
                    raise ServiceStalledError("the service did not answer in time: it is stopped, or overloaded")
                call.working = False  # the service repeats the notice `working` while it works on the request
                turn = Flag()
                call.on_done = turn.set
                self._wait_for(call, turn, time.monotonic() + self._session.patience)
            if not call.failed:
                return cast("_ReplyT", call.reply)
        except BaseException:
            self._bell.ring()  # the watcher takes over what a signal handler that raised has left
            if call is not None and not call.failed:
                self._session.abandon(call)
            raise
        raise call.take_error()

    def wait(self, waiter: Waiter, seconds: float | None) -> bool:
        """Wait until `waiter` is done; return False if `seconds` pass first."""
        try:
            return self._wait(waiter, seconds)
        except BaseException:
            self._bell.ring()  # see `call`
            raise

    def _wait(self, waiter: Waiter, seconds: float | None) -> bool:
        deadline = None if seconds is None else time.monotonic() + seconds
        while not waiter.done:
            if deadline is not None and deadline <= time.monotonic():
                return False
            if self._begin_reading():
                try:
                    self._read_for(waiter, deadline)
                finally:
                    self._read, self._armed = False, True
                    self._reading.release()
                    self._after_reading()
            else:
                turn = Flag()
                waiter.on_done = turn.set
                self._wait_for(waiter, turn, deadline)
                waiter.on_done = None
            if self._session.ended is not None and not waiter.done:
                self._session.check_usable()
        return True

    def _begin_reading(self) -> bool:
        """Begin to read, unless another thread reads.

        Each caller repeats the code that ends reading, in a ``finally`` block. If this code were a function, a signal
        handler could raise an error at the start of the function, and no thread would ever release `_reading`.
        """
        if not self._reading.take(0):
            return False
        try:
            self._read = True
            if self._armed:
                self._armed = False
                self._arm()
        except BaseException:
            self._read, self._armed = False, True
            self._reading.release()
            self._after_reading()
            raise
        return True

    def _after_reading(self) -> None:
        """Let the watcher or another waiting thread read now. Idempotent."""
        if self._armed:
            self._arm()
        if self._session.transport.unread:
            self._bell.ring()  # the watcher reads it, if no other thread does
        self._pass_on()

    def _pass_on(self) -> None:
        """If no thread reads the socket, wake one of the threads that wait for packets, so that this thread reads."""
        if self._waiting and not self._read:
            for one in list(self._waiting)[:1]:
                turn = one()
                if turn is not None:
                    turn.set()

    def _read_for(self, call: Call | Waiter, deadline: float | None) -> None:
        """Read packets until `call` is done, `deadline` has passed or the session has ended."""
        late = 0
        while not call.done:
            if self._session.ended is not None:
                return
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            # Poll before the read: the reply has almost never arrived yet, and a read would be a wasted system call.
            if not self._session.transport.unread:
                self._poll.poll(None if left is None else left and min(left * 1000 + 1, _LONGEST_POLL_MS))
            try:
                received = self._session.receive()
            except PoolbridgeError:
                return  # the call has failed with this error
            if left == 0:
                # Read the packets that arrived before the deadline, but not an endless series of later packets.
                late += 1
                if not received or late > _MOST_LATE:
                    return

    def _wait_for(self, waited: Call | Waiter, turn: Flag, deadline: float | None) -> None:
        """Wait until another thread has read the awaited packet. If that thread stops reading first, this thread reads.

        Other threads set `turn` when the packet has arrived, or when this thread may read.
        """
        mine = ref(turn, self._waiting.discard)
        try:
            self._waiting.add(mine)
            while not waited.done and self._session.ended is None:
                if self._begin_reading():
                    try:
                        self._read_for(waited, deadline)
                    finally:
                        self._read, self._armed = False, True
                        self._reading.release()
                        self._after_reading()
                    return
                if not turn.wait(None if deadline is None else max(deadline - time.monotonic(), 0)):
                    return
        finally:
            self._waiting.discard(mine)
            self._pass_on()

    def _arm(self) -> None:
        """Set whether the watcher wakes when packets arrive, and when the socket has room to send. Never waits."""
        self._arming.later(self._tell_epoll)

    def _tell_epoll(self) -> None:
        events = (select.EPOLLIN if self._armed else 0) | (select.EPOLLOUT if self._want_write else 0)
        try:
            self._epoll.modify(self._fd, events)
        except (OSError, ValueError):
            self._bell.ring()  # the socket is closed: wake the watcher, which then ends

    # The watcher

    def want_write(self) -> None:
        """See `Driver`."""
        self._want_write = True
        self._arm()

    def reconnect(self, finish: Callable[[], None]) -> None:
        """See `Driver`."""
        self._watch_socket(self._epoll.unregister)
        finish()
        self._watch_socket(self._epoll.register)
        self._back.set()
        self._arm()
        self._bell.ring()

    def _watch_socket(self, change: Callable[[int], None]) -> None:
        try:
            change(self._fd)
        except (OSError, ValueError):
            pass  # the session has ended, and the socket or the epoll is closed

    def away(self) -> None:
        """See `Driver`."""
        self._back.wait(_AWAY_SECONDS)  # and then look whether this thread has something else to do

    def background(self, work: Callable[[], None]) -> None:
        """See `Driver`."""
        if not self._background.add(work):
            self._help_wanted = True
            self._bell.ring()

    def _watch(self) -> None:
        while not self._stopped and self._session.ended is None:
            self._epoll.poll()
            self._bell.silence()
            self._help()
            if self._want_write:
                self._want_write = False  # if the socket is still full, the session calls `want_write` again
                self._session.flush()
                self._arm()
            if self._armed:
                self._arm()
            # If another thread waits for a reply and so reads the socket, the watcher does not read.
            if self._reading.take(0):
                try:
                    self._read = True
                    self._read_all()
                finally:
                    self._read = False
                    self._reading.release()
                self._pass_on()
        self._help()
        with self._reading:
            self._epoll.close()
            self._bell.close()
            self._session.transport.close()

    def _read_all(self) -> None:
        """Read all packets that have arrived."""
        try:
            while self._session.ended is None and self._session.receive():
                pass
        except PoolbridgeError:
            pass  # the session has ended: every call has failed with this error, and the next call fails, too

    def _help(self) -> None:
        if self._help_wanted:
            self._help_wanted = False
            self._background.run()

    def stop(self) -> None:
        """End the watcher and wait until it has ended."""
        self._stopped = True
        self._bell.ring()
        if threading.current_thread() is not self._watcher:
            self._watcher.join()


def _nothing() -> None:
    pass
