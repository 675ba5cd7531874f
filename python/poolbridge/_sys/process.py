"""The id of this process and the number of this thread, without a system call for each query."""

from __future__ import annotations

import itertools
import os
import threading

pid = os.getpid()


def _forked() -> None:
    global pid  # noqa: PLW0603 - a fork changes it for the whole process
    pid = os.getpid()


os.register_at_fork(after_in_child=_forked)


class _Thread(threading.local):
    """The number of a thread. Python reuses the identity of an ended thread, but never reuses a number.

    A new thread gets a new number, because the per-thread default stream of an ended thread may still have work.
    """

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.number = next(self._numbers)


_thread = _Thread()


def this_thread() -> int:
    """Return the number of this thread, which no other thread of this process ever has."""
    return _thread.number
