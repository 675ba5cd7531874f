"""Where the service listens, and how a client reaches it."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from poolbridge._sys.errors import (
    AccessDeniedError,
    InvalidArgumentError,
    ServiceNotRunningError,
    ServiceStartTimeoutError,
)

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1


def default_path() -> str:
    """Find the socket's path when none is given.

    Returns
    -------
    str
        ``$POOLBRIDGE_SOCKET``, else ``$XDG_RUNTIME_DIR/poolbridge/poolsvc.sock``, else
        ``poolbridge-<uid>/poolsvc.sock`` below ``$TMPDIR``, or below ``/tmp``.
    """
    given = os.environ.get("POOLBRIDGE_SOCKET")
    if given:
        return given
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return str(Path(runtime) / "poolbridge" / "poolsvc.sock")
    # Not `tempfile.gettempdir`, which looks elsewhere than the service does.
    folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - as the service has it
    return str(Path(folder) / f"poolbridge-{os.getuid()}" / "poolsvc.sock")


def dial(path: str) -> socket.socket | None:
    """Try to connect once, without waiting.

    Returns
    -------
    socket.socket or None
        None if the service is there but its queue of new connections is full at this moment.

    Raises
    ------
    ServiceNotRunningError
        Nobody listens there.
    AccessDeniedError
        This user may not connect.
    InvalidArgumentError
        The path is no path of a socket.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
    except BlockingIOError:
        sock.close()
        return None
    except PermissionError as error:
        sock.close()
        raise AccessDeniedError(
            f"user {os.getuid()} may not connect to {path!r}: {error.strerror}. Start the service with --mode 0660, "
            "for a group, or --mode 0666, for all, its socket in a folder that this user may enter, and make pools "
            f"with uids=[{os.getuid()}] or gids=[…] (`--pool …,uid={os.getuid()}`) for it"
        ) from error
    except OSError as error:
        sock.close()
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
            raise ServiceNotRunningError(_not_running(path, error)) from error
        raise InvalidArgumentError(f"{path!r} cannot be connected to: {error}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def _not_running(path: str, error: OSError) -> str:
    if error.errno != errno.ECONNREFUSED:
        what = "no socket is there"
    elif Path(path).is_socket():
        what = "a socket is there, but nobody listens"
    else:
        what = "what is there is no socket"
    return (
        f"the poolbridge service is not running: looked at {path!r} ({what}). Start it with `poolsvc serve`, have this "
        "program start one by connect(start=True), or poolbridge.serve() for one of its own, or set POOLBRIDGE_SOCKET "
        "to the socket of a running one"
    )


class Patience:
    """How long to go on trying to connect.

    Parameters
    ----------
    path
        The socket's path.
    wait
        Seconds that the service may take to appear.
    timeout
        Seconds that a service may take to accept.
    now
        Monotonic time at the start, in seconds.
    """

    def __init__(self, path: str, wait: float, timeout: float, now: float) -> None:
        if not wait >= 0 or not timeout > 0:
            raise InvalidArgumentError(f"wait={wait!r}, timeout={timeout!r}: expected seconds, timeout above 0")
        self._path = path
        self._wait = wait
        self._until_there = now + wait
        self._until_accepted = now + max(wait, timeout)
        self._pause = _FIRST_PAUSE

    def attempt(self, now: float) -> socket.socket | float:
        """Try once.

        Returns
        -------
        socket.socket or float
            The connected socket, or how many seconds to pause before the next attempt.

        Raises
        ------
        ServiceNotRunningError
            Nobody listens there, and no time is left.
        """
        try:
            sock = dial(self._path)
        except ServiceNotRunningError as error:
            if now < self._until_there:
                return self._next_pause(self._until_there - now)
            if self._wait:
                raise ServiceStartTimeoutError(f"{error}; waited {self._wait:g} s for it") from error
            raise
        if sock is not None:
            return sock
        if now < self._until_accepted:
            return self._next_pause(self._until_accepted - now)
        raise ServiceStartTimeoutError(f"the service at {self._path!r} does not accept connections")

    def _next_pause(self, left: float) -> float:
        pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
        return min(pause, left)
