"""Keeps descriptors away from the numbers of the standard streams."""

from __future__ import annotations

import fcntl
import os

_FIRST = 3


def beyond_standard(fd: int) -> int:
    """Return the descriptor `fd`, or a copy with a number above 2, and close `fd` then.

    If the process has closed one of its standard streams, a new descriptor gets the stream's number. A child of the
    process would then lose the descriptor, and what libraries print would be written to it.
    """
    if fd >= _FIRST:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST)
    finally:
        os.close(fd)
