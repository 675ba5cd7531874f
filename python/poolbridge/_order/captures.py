"""Repeats calls that failed because the program was capturing a stream into a graph; see `StreamCaptureError`."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from poolbridge._sys.log import LOG
from poolbridge.errors import (
    PoolbridgeError,
    StreamCaptureError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# The driver does not say when a capture into a graph ends. So the thread of `Captures` sleeps for `_LOOK` seconds,
# calls the functions that have not succeeded yet, and sleeps again.
_LOOK: Final = 0.005


class Captures:
    """Functions that one thread calls again and again until they raise no `StreamCaptureError`. Thread-safe."""

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Forget all functions, in a forked child: the thread that calls the functions runs only in the parent."""
        self._work: deque[Callable[[], object]] = deque()
        self._running = False

    def run(self, work: Callable[[], object]) -> None:
        """Call `work` now. If `work` raises `StreamCaptureError`, let the thread call it again later."""
        try:
            work()
        except StreamCaptureError:
            self.add(work)

    def add(self, work: Callable[[], object]) -> None:
        """Let the thread call `work`. This method never waits and never raises, because finalisers call it."""
        self._work.append(work)
        if self._running:
            return
        self._running = True  # two threads may get here at once and start a thread each, which does no harm
        try:
            threading.Thread(target=self._try, name="poolbridge-capture", daemon=True).start()
        except RuntimeError as error:  # this process may start no more threads, or is ending
            self._running = False
            LOG.warning("releases wait until a thread can be started: %s", error)

    def _try(self) -> None:
        while self._work or not self._rested():
            time.sleep(_LOOK)
            for _ in range(len(self._work)):
                try:
                    self.run(self._work.popleft())
                except IndexError:  # another thread took the last work
                    break
                except PoolbridgeError:
                    pass  # the session of that work has ended
                except Exception:  # noqa: BLE001 - the thread goes on with other work
                    LOG.exception("work of a stream failed after the stream's capture")

    def _rested(self) -> bool:
        """Note that the thread ends. Return False if the thread must continue, because `add` just added a function."""
        self._running = False
        if not self._work:
            return True
        self._running = True
        return False


CAPTURES: Final = Captures()
"""The functions that this process must call again after a capture has ended."""
os.register_at_fork(after_in_child=CAPTURES.start_anew)
