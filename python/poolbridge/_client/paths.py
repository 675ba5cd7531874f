"""Finds the path of the service's socket, and connects to the service."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from poolbridge._session.resumption import ABSENT_SECONDS
from poolbridge._sys.descriptors import beyond_standard
from poolbridge._sys.error_texts import shown
from poolbridge.errors import (
    AccessDeniedError,
    InvalidArgumentError,
    ServiceNotRunningError,
    ServiceStartTimeoutError,
)

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
_SOCKET_PATH = 108  # bytes of the longest path of a socket, and 1


def default_path() -> str:
    """Return the path of the service's socket that `connect` and ``poolsvc serve`` use if the program gives no path.

    Returns
    -------
    str
        The value of ``$POOLBRIDGE_SOCKET``. If this variable is not set: ``$XDG_RUNTIME_DIR/poolbridge/poolsvc.sock``.
        If ``$XDG_RUNTIME_DIR`` is not set either: ``$TMPDIR/poolbridge-<uid>/poolsvc.sock``. If ``$TMPDIR`` is not set:
        ``/tmp/poolbridge-<uid>/poolsvc.sock``.
    """
    given = os.environ.get("POOLBRIDGE_SOCKET")
    if given:
        return given
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return str(Path(runtime) / "poolbridge" / "poolsvc.sock")
    return _shared_path()


def check_path(path: str | os.PathLike[str], what: str = "path") -> str:
    """Return a file's path as a text.

    Raises
    ------
    InvalidArgumentError
        The value is no path; `what` names it in the error text.
    """
    try:
        text = os.fsdecode(path)
        if b"\0" not in os.fsencode(text) and text:
            return str.__str__(text)
    except (TypeError, UnicodeError):
        pass
    raise InvalidArgumentError(f"{what} {shown(path)} is no path of a file: expected a text or a pathlib.Path")


def absolute(path: str) -> str:
    """Return the absolute form of a path now, because the program may change its folder later.

    Raises
    ------
    InvalidArgumentError
        The path is relative, and the process's folder is gone.
    """
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        raise InvalidArgumentError(f"path {path!r} is relative, and this process's folder is gone") from None


def lasting(path: str) -> str:
    """Return a path that stays right when the program changes its folder, unless it is too long for a socket."""
    whole = path if os.path.isabs(path) else absolute(path)
    return whole if len(os.fsencode(whole)) < _SOCKET_PATH else path


def _shared_path() -> str:
    """Return the default path in the folder for temporary files. All users share this folder."""
    # Do not call `tempfile.gettempdir`: it may choose another folder than the service does.
    folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - as the service has it
    return str(Path(folder) / f"poolbridge-{os.getuid()}" / "poolsvc.sock")


def _check_server(sock: socket.socket, path: str) -> None:
    """Raise an error if another user, except root, runs the service at this user's default path."""
    if path != _shared_path():
        return
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if uid not in (0, os.getuid()):
        raise AccessDeniedError(
            f"the service at {path!r} is of user {uid}, expected user {os.getuid()} or root: every user can make that "
            f"folder. Set POOLBRIDGE_SOCKET to a path in a folder that only you can write; to use the service of user "
            f"{uid}, have it listen at a path without your number"
        )


def dial(path: str) -> socket.socket | None:
    """Try once to connect, without waiting.

    Returns
    -------
    socket.socket or None
        The connected socket; None if the service listens but its queue of new connections is full now.

    Raises
    ------
    ServiceNotRunningError
        No service listens at the path.
    AccessDeniedError
        The service does not allow this user to connect; or the path is this user's default path below ``$TMPDIR`` or
        ``/tmp``, and another user runs the service at that path.
    InvalidArgumentError
        The path cannot be the path of a socket.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    sock = socket.socket(fileno=beyond_standard(sock.detach()))
    try:
        sock.connect(path)
        _check_server(sock, path)
    except AccessDeniedError:
        sock.close()
        raise
    except BlockingIOError:
        sock.close()
        return None
    except PermissionError as error:
        sock.close()
        if (locked := _locked_out(path)) is not None:
            raise AccessDeniedError(locked) from None
        raise AccessDeniedError(
            f"user {os.getuid()} may not connect to {path!r}: {error.strerror}. Start the service with --mode 0660, "
            "for its group, or --mode 0666, for all users, and with its socket in a folder that this user may enter. "
            f"Make pools for this user, with uids=[{os.getuid()}] or gids=[…] (`--pool …,uid={os.getuid()}`)"
        ) from None
    except OSError as error:
        sock.close()
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
            raise ServiceNotRunningError(_not_running(path, error)) from None
        raise InvalidArgumentError(f"{path!r} cannot be connected to: {error}") from None
    except BaseException:
        sock.close()
        raise
    return sock


def _locked_out(path: str) -> str | None:
    """Say what to do if the socket's folder is of another user and in a folder of this user; else return None.

    ``sudo -E`` keeps ``$XDG_RUNTIME_DIR``: a service of root once made its folder there.
    """
    folder = Path(path).absolute().parent
    try:
        owner, outer = folder.stat().st_uid, folder.parent.stat().st_uid
    except OSError:
        return None
    if owner == os.getuid() or outer != os.getuid():
        return None
    return (
        f"user {os.getuid()} may not enter {str(folder)!r}, which is of user {owner} in a folder of this user, "
        f"as after `sudo -E`. End the service that user {owner} runs there, if any, and remove the folder: "
        f"`sudo rm -r {folder}`"
    )


def _not_running(path: str, error: OSError) -> str:
    if error.errno != errno.ECONNREFUSED:
        what = "no socket is there"
    elif Path(path).is_socket():
        what = "there is a socket, but nobody listens"
    else:
        what = "the file there is no socket"
    return (
        f"the poolbridge service is not running: looked at {path!r} ({what}). Start it with `poolsvc serve`; or let "
        "this program start one, by connect(start=True) or poolbridge.serve(); or set POOLBRIDGE_SOCKET to the socket "
        "of a running service"
    )


def dialled_again(where: str, timeout: float) -> Callable[[float], socket.socket | float]:
    """Return a function that tries to connect again to the service at a path; see `Patience.attempt`."""
    return Patience(where, ABSENT_SECONDS, timeout, time.monotonic()).attempt


class Patience:
    """Tries to connect again and again, within a time limit. The caller pauses between the attempts.

    Parameters
    ----------
    path
        The socket's path.
    wait
        Seconds to wait for the service to appear.
    timeout
        How many seconds the service may take to accept the connection, if the service already listens, and then to
        answer hello. The latter time limit holds over all services that die before they answer.
    now
        The present time on the monotonic clock, in seconds. The other time limits begin at this time.
    """

    def __init__(self, path: str, wait: float, timeout: float, now: float) -> None:
        self._path = path
        self._wait = wait
        self._until_there = now + wait
        self._until_accepted = now + max(wait, timeout)
        self._timeout = timeout
        self._until_answered: float | None = None
        self._pause = _FIRST_PAUSE

    def left(self, now: float) -> float:
        """Return how many seconds the service may still take to answer hello."""
        if self._until_answered is None:
            self._until_answered = now + self._timeout
        return max(self._until_answered - now, 0.0)

    def attempt(self, now: float) -> socket.socket | float:
        """Try once to connect. `now` is the present time on the monotonic clock.

        Returns
        -------
        socket.socket or float
            The connected socket, or the seconds to pause before the next attempt.

        Raises
        ------
        ServiceNotRunningError
            The time limit has passed. Either no service listens at the path, or the service has not accepted the
            connection.
        """
        try:
            sock = dial(self._path)
        except ServiceNotRunningError as error:
            if now < self._until_there:
                return self._next_pause(self._until_there - now)
            if self._wait:
                raise ServiceStartTimeoutError(f"{error}; waited {self._wait:g} s for it") from None
            raise
        if sock is not None:
            return sock
        if now < self._until_accepted:
            return self._next_pause(self._until_accepted - now)
        raise ServiceStartTimeoutError(f"the service at {self._path!r} does not accept connections")

    def _next_pause(self, left: float) -> float:
        pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
        return min(pause, left)
