"""Which process this is, without a system call for each question."""

from __future__ import annotations

import os

pid = os.getpid()


def _forked() -> None:
    global pid  # noqa: PLW0603 - a fork changes it for the whole process
    pid = os.getpid()


os.register_at_fork(after_in_child=_forked)
