"""Does a session's work that may wait for devices, in threads of its own."""

from __future__ import annotations

from _thread import start_new_thread
from collections import deque
from collections.abc import Callable

from poolbridge._sys.log import LOG
from poolbridge.errors import PoolbridgeError

# How many threads of one session may wait for devices at once. A thread that waits may keep a CPU busy.
_MOST_THREADS = 4


class Background:
    """Work that threads do. The threads start when there is work, and end when there is none. Thread-safe."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()
        # A thread that does work takes a turn, and gives it back when no work is left.
        self._turns = deque(range(_MOST_THREADS))

    def add(self, work: Callable[[], None]) -> bool:
        """Let a thread do `work`. Never waits: finalisers call this method.

        Returns
        -------
        bool
            False if this process may start no more threads. Then another thread of the process should call `run`.
        """
        try:
            self._work.append(work)
        finally:  # also if a signal handler raises an error
            started = self._start()
        return started

    def _start(self) -> bool:
        if self._turns:  # otherwise enough threads do work
            try:
                start_new_thread(self.run, ())
            except RuntimeError:
                return False
        return True

    def run(self) -> None:
        """Do the work that is left, unless `_MOST_THREADS` threads do work already."""
        while self._work:
            try:
                turn = self._turns.pop()
            except IndexError:
                return
            try:
                self._run_in_turn()
            finally:
                self._turns.append(turn)

    def _run_in_turn(self) -> None:
        while self._work:
            try:
                work = self._work.popleft()
            except IndexError:  # another thread has taken it
                return
            try:
                work()
            except PoolbridgeError:
                pass  # the lease has ended with the connection
            except Exception:  # noqa: BLE001 - the thread goes on with other work
                LOG.exception("work of a session failed in the background")
