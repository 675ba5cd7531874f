"""Keeps descriptors away from the numbers of the standard streams, and names the limit if none is free."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from poolbridge._sys.error_texts import no_descriptor
from poolbridge.errors import PoolbridgeError, PoolLimitError

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


@contextmanager
def descriptors_named(what: str) -> Iterator[None]:
    """If the ``with`` block fails because there is no free file descriptor, raise an error that says so.

    Parameters
    ----------
    what
        What the program cannot do then: the beginning of the error's text.
    """
    try:
        yield
    except PoolbridgeError:
        raise
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise PoolLimitError(f"{what}: {no_descriptor()}") from error
