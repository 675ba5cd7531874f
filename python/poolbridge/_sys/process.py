"""Keeps the id of this process, and numbers its threads. Reading the id or a number needs no system call."""

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
    """The number of a thread. This class gives each number to one thread only.

    The identity that Python gives to a thread is not enough: Python gives the identity of an ended thread to a new
    thread. But the per-thread default streams of CUDA of these two threads are two streams, and the stream of the ended
    thread may still have work.
    """

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.number = next(self._numbers)


_thread = _Thread()


def this_thread() -> int:
    """Return the number of this thread. No other thread of this process ever has the same number."""
    return _thread.number
