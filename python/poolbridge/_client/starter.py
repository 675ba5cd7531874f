"""Starting the service that programs of this user share, where none runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from poolbridge._client.program import Process
from poolbridge._sys.errors import PoolbridgeError, SocketFolderError, SocketInUseError
from poolbridge._sys.log import LOG

START_SECONDS = 30.0
"""How long a service may take to start."""

# For how long nobody has to be connected before it ends: programs that come one after the other find their pools.
_UNUSED = "2s"
# How long to wait for the service that another process starts before trying again.
_OTHERS_SECONDS = 1.0
_MOST_LOG = 1 << 20


class Starter:
    """Starts a service at a socket, for as long as there is none, until time is up.

    Of several processes that do so at once one succeeds, since a service locks its socket; the others wait for it.

    Parameters
    ----------
    path
        The socket's path.
    wait
        Seconds that it may take, if that is more than `START_SECONDS`.

    Attributes
    ----------
    wait
        Seconds that the next attempt to connect is to wait for the service to appear.
    """

    def __init__(self, path: str, wait: float) -> None:
        self._path = str(Path(path).absolute())
        self._until = time.monotonic() + max(wait, START_SECONDS)
        self.wait = 0.0

    def start(self, error: PoolbridgeError) -> None:
        """Start the service, or let another process do it; to be called after it could not be connected to.

        Parameters
        ----------
        error
            Why it could not be connected to; raised when time is up.

        Raises
        ------
        ServiceStartError
            It cannot be started.
        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise error
        try:
            process = Process(["--socket", self._path, "--end-unused", _UNUSED], self._log(), left)
        except SocketInUseError:
            # Another process starts one, or one is about to end.
            LOG.debug("another process has the lock of %s", self._path)
            self.wait = min(_OTHERS_SECONDS, left)
            return
        process.leave()
        self.wait = 0.0

    def _log(self) -> Path | None:
        """Give the log's path, in the socket's folder, which is made; a log that has grown long begins anew.

        In a folder where others may put files there is no log: the service refuses it, and says why.
        """
        log = Path(f"{self._path}.log")
        try:
            log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = log.parent.stat()
            if folder.st_uid not in (0, os.geteuid()) or folder.st_mode & 0o022:
                return None
            if log.exists() and log.stat().st_size > _MOST_LOG:
                log.write_bytes(b"")
        except OSError as error:
            raise SocketFolderError(f"no socket can be made at {self._path!r}: {error}") from error
        return log
