"""Starts a service that the programs of this user share, if no service runs yet."""

from __future__ import annotations

import os
import time
from pathlib import Path

from poolbridge._client.service_process import Process
from poolbridge._sys.log import LOG
from poolbridge.errors import (
    ServiceStartError,
    ServiceStartTimeoutError,
    SocketFolderError,
    SocketInUseError,
)

START_SECONDS = 30.0
"""Seconds that a new service may take until it is ready."""

# The service ends when no client has been connected for this time. If programs run one after the other, with shorter
# pauses than this time, they share the service and its pools.
_UNUSED = "2s"
# If another process is starting the service, this process waits for this number of seconds. If no service listens then,
# this process tries again to start a service.
_OTHERS_SECONDS = 1.0


class Starter:
    """Starts a service at a socket within a time limit, if no service listens at the socket.

    If several processes start a service at the same time, only one process succeeds, because a service locks its
    socket, and only one service can have the lock. The other processes wait for that service.

    Parameters
    ----------
    path
        The socket's path.
    wait
        The time limit in seconds. If `wait` is less than `START_SECONDS`, the time limit is `START_SECONDS`.

    Attributes
    ----------
    wait
        How many seconds the caller's next attempt to connect should wait for the service to appear.
    """

    def __init__(self, path: str, wait: float) -> None:
        self._path = str(Path(path).absolute())
        self._seconds = max(wait, START_SECONDS)
        self._until = time.monotonic() + self._seconds
        self._locked = False  # another process has the lock of the socket
        self.wait = 0.0

    def start(self) -> bool:
        """Start the service, unless another process starts it. Call this method after an attempt to connect has failed.

        Returns
        -------
        bool
            Whether to try again; False: the time limit has passed, so raise the error of the attempt.

        Raises
        ------
        ServiceStartError
            The service cannot be started.
        ServiceStartTimeoutError
            The time limit has passed, and another process has locked the socket, but does not listen at it.
        """
        left = self._until - time.monotonic()
        if left <= 0 and self._locked:
            lock = f"{self._path}.lock"
            raise ServiceStartTimeoutError(
                f"no service listens at {self._path!r}, and none can be started: for {self._seconds:g} s, another "
                f"service had the lock {lock!r}. It is stopped, or cannot make its socket again. `fuser {lock}` shows "
                "its process: end it, or use another path"
            ) from None
        if left <= 0:
            return False
        try:
            options = ["--socket", self._path, "--end-unused", _UNUSED]
            process = Process(options, self._log(), left, bounded=True)
        except SocketInUseError:
            # Another process is starting a service at this socket, or the service at this socket is ending.
            LOG.debug("another process has the lock of %s", self._path)
            self._locked = True
            self.wait = min(_OTHERS_SECONDS, left)
            return True
        except ServiceStartError as failed:
            failed.__suppress_context__ = True  # that no service runs is why this one was to start
            raise
        process.leave()
        self._locked = False
        self.wait = 0.0
        return True

    def _log(self) -> Path | None:
        """Make the folder of the socket, and return the path of the log in this folder.

        If other users can create files in the folder, or own the folder in which it would be made, return None: the
        service then refuses to start and says why.
        """
        log = Path(f"{self._path}.log")
        try:
            above = next(one for one in (log.parent, *log.parent.parents) if one.exists())
            if above != log.parent and above.stat().st_uid not in (0, os.geteuid()):
                return None  # root must not make a folder that its user cannot enter
            log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = log.parent.stat()
            if folder.st_uid not in (0, os.geteuid()) or folder.st_mode & 0o022:
                return None
        except OSError as error:
            raise SocketFolderError(f"no socket can be made at {self._path!r}: {error}") from error
        return log
