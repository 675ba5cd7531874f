"""Repeats work that failed because a stream's work was being captured into a graph; see `StreamCaptureError`."""

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

# The driver does not say when a capture into a graph ends, so the thread tries its work at this interval, in seconds.
_LOOK: Final = 0.005


class Captures:
    """Work that one thread tries again until the work raises no `StreamCaptureError`. Thread-safe."""

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Forget the parent's work in a forked child, because the child has no thread for the work."""
        self._work: deque[Callable[[], object]] = deque()
        self._running = False

    def run(self, work: Callable[[], object]) -> None:
        """Do `work` now. If a graph captures the stream, leave `work` to the thread."""
        try:
            work()
        except StreamCaptureError:
            self.add(work)

    def add(self, work: Callable[[], object]) -> None:
        """Leave `work` to the thread. Never waits, never raises; finalisers call `add`."""
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
        """End the thread. Return False if `add` got work at the same time and started no thread for the work."""
        self._running = False
        if not self._work:
            return True
        self._running = True
        return False


CAPTURES: Final = Captures()
"""The work of this process that waits for the end of a capture."""
os.register_at_fork(after_in_child=CAPTURES.start_anew)
