"""Which process and which thread this is, without a system call for each question."""

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
    """The number of a thread; identities of threads that ended are given again, their streams go on."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.number = next(self._numbers)


_thread = _Thread()


def this_thread() -> int:
    """Give the number of this thread, which no other thread of this process ever has."""
    return _thread.number
