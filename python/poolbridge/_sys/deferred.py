"""Locks for work that finalisers need done but must not wait for.

A signal handler that raises, as that of ctrl-C does, leaves none of them locked. CPython runs handlers between steps of
Python code: at the beginning of a function, and after a call. CPython 3.11 to 3.13 run none between a ``with``
statement and the methods of a context manager in C. So what takes these locks for a ``with`` statement, and what gives
them up, is in C. CPython 3.14 may run one just after a lock was taken: there the lock can still be left locked.
"""

from __future__ import annotations

import warnings
from _thread import RLock, start_new_thread
from collections import deque
from collections.abc import Callable
from operator import call


class OwnedLock(RLock):  # type: ignore[misc] # for type checkers nobody inherits from it
    """A lock that says so where waiting for it would be for ever: in a finaliser that runs in its holder's thread.

    A ``with`` statement there goes on at once.
    """

    def take(self, timeout: float = -1) -> bool:
        """Take it; False if this thread has it already, or another for so many seconds; below 0: for any time.

        It is to be given up by `release`, in the ``finally`` of a ``try`` that follows at once: without a call between
        them no signal comes between.
        """
        if self._is_owned():  # type: ignore[attr-defined]
            return False
        try:
            return self.acquire(timeout=timeout)
        except BaseException:
            # A signal handler's, before it was taken or after: the lock knows.
            try:
                self.release()
            except RuntimeError:
                pass
            raise


class PlainDeferringLock(OwnedLock):  # type: ignore[misc]
    """What is used as `DeferringLock` without the native module.

    It is given up by a method in C, which does not look at what was left. A thread that is started for it does that as
    soon as the lock is free.
    """

    def __init__(self) -> None:
        self._left: deque[Callable[[], object]] = deque()

    def __enter__(self) -> None:  # type: ignore[override]
        if not self.take():
            self.acquire()  # this thread has it: counted, as it is given up once more
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
                pass  # the interpreter is about to end: the next holder of the lock does the work

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
                # Taken out and called by one call in C: no signal comes between.
                next(map(call, iter(self._left.popleft, None)))
            except Exception as error:  # noqa: BLE001 - a finaliser's work warns, it never raises
                warnings.warn(f"poolbridge: {error!r} while giving memory back", ResourceWarning, stacklevel=2)


try:
    from poolbridge._native import DeferringLock as DeferringLock  # noqa: PLC0414 - it is for others
except ImportError:
    DeferringLock = PlainDeferringLock  # type: ignore[assignment, misc]
"""A lock whose holder also does what others left for it.

The garbage collector may run a finaliser in any thread at any point, also while that very thread holds the lock. To
wait there would be a deadlock. So a finaliser calls `later`. The work is done at once if the lock is free, and else by
the thread that holds it, right after. What was left comes before what the next holder does.
"""
