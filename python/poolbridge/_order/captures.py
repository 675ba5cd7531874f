"""Work of streams that can only be done when no graph captures it; see `StreamCaptureError`."""

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

# The driver tells nobody when a capture into a graph ends, so it is asked at this interval, in seconds.
_LOOK: Final = 0.005


class Captures:
    """Work that is tried again until it raises no `StreamCaptureError`, by one thread. Thread-safe."""

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Forget the parent's work in a forked child, which has no thread for it."""
        self._work: deque[Callable[[], object]] = deque()
        self._running = False

    def run(self, work: Callable[[], object]) -> None:
        """Do work now, or leave it to the thread if a graph captures it."""
        try:
            work()
        except StreamCaptureError:
            self.add(work)

    def add(self, work: Callable[[], object]) -> None:
        """Leave work to the thread. Never waits, never raises; finalisers call it."""
        self._work.append(work)
        if self._running:
            return
        self._running = True  # two threads that come here at once start two, which does no harm
        try:
            threading.Thread(target=self._try, name="poolbridge-capture", daemon=True).start()
        except RuntimeError as error:  # this process may have no more threads, or ends
            self._running = False
            LOG.warning("releases wait until a thread can be started: %s", error)

    def _try(self) -> None:
        while self._work or not self._rested():
            time.sleep(_LOOK)
            for _ in range(len(self._work)):
                try:
                    self.run(self._work.popleft())
                except IndexError:  # another thread took it
                    break
                except PoolbridgeError:
                    pass  # the session of that work has ended
                except Exception:  # noqa: BLE001 - the thread goes on with other work
                    LOG.exception("work of a stream failed after the stream's capture")

    def _rested(self) -> bool:
        """End the thread. False if work came at the same time: its sender may have seen the thread."""
        self._running = False
        if not self._work:
            return True
        self._running = True
        return False


CAPTURES: Final = Captures()
"""The work of this process."""
os.register_at_fork(after_in_child=CAPTURES.start_anew)
