"""Locks for work that finalisers need done but must not wait for."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable
from types import TracebackType


class DeferringLock:
    """A lock whose holder also does what others left for it.

    The garbage collector may run a finaliser in any thread at any point, also while that very thread holds the lock:
    waiting there would be a deadlock. So a finaliser calls `later`; the work is done at once if the lock is free, and
    otherwise by the thread that holds it, right after.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()
        # What was left before comes before what its holder does now: a release before the request that follows it.
        try:
            while self._left:
                _do(self._left.popleft())
        except BaseException:
            self._lock.release()  # a signal handler's: nobody would leave what was not entered
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        if self._left:
            self._drain()

    def later(self, work: Callable[[], None]) -> None:
        """Have `work` done under the lock, by this thread or by the one that holds it; never waits, never raises."""
        if self._left or not self._lock.acquire(blocking=False):
            self._left.append(work)
        else:
            try:
                _do(work)
            finally:
                self._lock.release()
        if self._left:
            self._drain()

    def rest(self, seconds: float) -> None:
        """Wait until nobody holds the lock, for so long at most."""
        if self._lock.acquire(timeout=seconds):
            self.__exit__(None, None, None)

    def _drain(self) -> None:
        # A thread that fails to take the lock may leave: its holder looks at the deque after releasing it.
        while self._left and self._lock.acquire(blocking=False):
            try:
                while self._left:
                    _do(self._left.popleft())
            finally:
                self._lock.release()


class OwnedLock:
    """A lock that says so where waiting for it would be for ever: in a finaliser that runs in its holder's thread.

    A ``with`` statement there goes on at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0
        self._depth = 0

    def acquire(self, *, wait: bool = True) -> bool:
        """Take it; False if this thread has it already, or another has and this one is not to `wait`."""
        thread = threading.get_ident()
        if self._holder == thread or not self._lock.acquire(blocking=wait):
            return False
        self._holder = thread
        return True

    def release(self) -> None:
        """Give it up."""
        self._holder = 0
        self._lock.release()

    def __enter__(self) -> None:
        if not self.acquire():
            self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._depth:
            self._depth -= 1
        else:
            self.release()


def _do(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - a finaliser's work warns, it never raises
        warnings.warn(f"poolbridge: {error!r} while giving memory back", ResourceWarning, stacklevel=3)
