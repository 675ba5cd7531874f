"""Defines locks. A finaliser must not wait for these locks, but it can defer its work until a lock is free.

A signal handler can raise an exception, as the handler of ctrl-C does. This exception must not leave a lock locked.
CPython runs signal handlers between steps of Python code: at the beginning of a function, and after a call. CPython
3.11 to 3.13 run no handler between a ``with`` statement and the methods of a context manager that is written in C. So a
``with`` statement locks and unlocks `OwnedLock` and the native `DeferringLock` by methods that are written in C.
CPython 3.14 may run a handler just after the ``with`` statement has taken the lock. If the handler raises then, the
lock stays locked.
"""

from __future__ import annotations

import warnings
from _thread import TIMEOUT_MAX, RLock, allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from operator import call


class Flag:
    """Wakes one thread. `threading.Event` has a lock, which a signal handler that raises would leave locked."""

    def __init__(self) -> None:
        self._unset = allocate_lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or that waits next."""
        try:
            self._unset.release()
        except RuntimeError:
            pass  # the flag is set

    def wait(self, seconds: float | None) -> bool:
        """Wait until the flag is set, and clear it; return False if `seconds` pass first (None: no limit)."""
        return self._unset.acquire(timeout=-1 if seconds is None else min(max(seconds, 0), TIMEOUT_MAX))


class OwnedLock(RLock):  # type: ignore[misc] # for type checkers nobody inherits from it
    """A lock whose `take` returns False if this thread holds the lock already.

    A finaliser may run in the thread that holds the lock. In such a finaliser, `take` returns False, and a ``with``
    statement locks the lock once more without waiting.
    """

    # Whether this thread holds the lock.
    owned = RLock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - the only way to ask

    def take(self, timeout: float = -1) -> bool:
        """Take the lock.

        If `take` returns True, the caller enters a ``try`` at once, and calls `release` in its ``finally``. No signal
        handler runs between `take` and the ``try``, because the caller calls no other function in between.

        Parameters
        ----------
        timeout
            Seconds to wait while another thread holds the lock; below 0: no limit.

        Returns
        -------
        bool
            True if `take` has taken the lock. False if this thread holds the lock already, or if another thread held
            the lock until the time limit.
        """
        if self.owned():
            return False
        try:
            return self.acquire(timeout=timeout)
        except BaseException:
            # A signal handler raised an exception, before or after `acquire` took the lock. This thread did not own it
            # before, so `release` undoes this `acquire`, or raises RuntimeError and touches no lock of another thread.
            try:
                self.release()
            except RuntimeError:
                pass
            raise


class PlainDeferringLock(OwnedLock):  # type: ignore[misc]
    """The substitute for `DeferringLock` where the native module is missing.

    The method that unlocks this lock is written in C, and does not do the deferred work. So if the lock is not free,
    `later` starts a thread, which does the work as soon as the lock is free.
    """

    def __init__(self) -> None:
        self._left: deque[Callable[[], object]] = deque()

    def __enter__(self) -> None:  # type: ignore[override]
        if not self.take():
            self.acquire()  # this thread holds the lock already: lock once more, because the ``with`` block unlocks
        try:
            self._do_left()
        except BaseException:
            self.release()
            raise

    def later(self, work: Callable[[], object], /) -> None:
        """See `DeferringLock`."""
        self._left.append(work)
        if self.take(0):
            try:
                self._do_left()
            finally:
                self.release()
        if self._left:
            try:
                start_new_thread(self._settle, ())
            except RuntimeError:
                pass  # the interpreter is about to end; the next holder of the lock does the work

    def rest(self, seconds: float, /) -> None:
        """See `DeferringLock`."""
        if self.take(seconds):
            self.release()

    def _settle(self) -> None:
        with self:
            pass

    def _do_left(self) -> None:
        while self._left:
            try:
                # `next` is a C function. It removes one piece of work from `_left` and does this work. No signal
                # handler runs between the two steps, so no work is lost.
                work = self._left[0]
                try:
                    next(map(call, iter(self._left.popleft, None)))
                except BaseException:
                    _again(work)  # because a signal handler may have ended the work halfway
                    raise
            except Exception as error:  # noqa: BLE001 - a finaliser's work warns, it never raises
                warnings.warn(f"poolbridge: {error!r} while giving memory back", ResourceWarning, stacklevel=2)


def _again(work: Callable[[], object]) -> None:
    """Do work until it raises no error, at most as often as `PB_TRIES` of the native module says."""
    for _ in range(16):
        with suppress(BaseException):
            work()
            return


try:
    from poolbridge._native import DeferringLock as DeferringLock  # noqa: PLC0414 - it is for others
except ImportError:
    DeferringLock = PlainDeferringLock  # type: ignore[assignment, misc]
"""A lock whose holder also does work that other threads and finalisers have deferred.

The garbage collector may run a finaliser at any point, even in the thread that holds the lock. A finaliser that waited
for the lock could then wait for ever, so a finaliser passes its work to `later`. If the lock is free, `later` does the
work at once. Otherwise the thread that holds the lock does the work when it unlocks the lock. The next thread that
takes the lock finds all deferred work done.
"""
