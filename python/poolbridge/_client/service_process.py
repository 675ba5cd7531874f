"""Finds the service's program, and runs it as a child of this process."""

from __future__ import annotations

import itertools
import os
import select
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from poolbridge._sys.descriptors import beyond_standard
from poolbridge._sys.log import LOG
from poolbridge.errors import (
    ServiceProgramError,
    ServiceStartError,
    ServiceStartTimeoutError,
    SocketFolderError,
    SocketInUseError,
)

# Exit statuses of `poolsvc serve`.
_ERRORS: Final = {3: SocketInUseError, 4: SocketFolderError}
_STOP_SECONDS: Final = 30.0
_MOST_SAID = 4000
_MOST_LOG: Final = "1MiB"


def find_program() -> str:
    """Find the program ``poolsvc``.

    Returns
    -------
    str
        The program's path: ``$POOLBRIDGE_POOLSVC``; else the program that was installed with this package; else a
        ``poolsvc`` in the folder of the Python interpreter; else a ``poolsvc`` that is found on the ``PATH``.

    Raises
    ------
    ServiceProgramError
        No ``poolsvc`` was found, or ``$POOLBRIDGE_POOLSVC`` is no program.
    """
    given = os.environ.get("POOLBRIDGE_POOLSVC")
    if given:
        if not _runs(Path(given)):
            raise ServiceProgramError(f"POOLBRIDGE_POOLSVC is {given!r}, which is no program")
        return str(Path(given).absolute())
    beside = [_installed(), Path(sysconfig.get_path("scripts")) / "poolsvc"]
    if sys.executable:
        beside.insert(1, Path(sys.executable).parent / "poolsvc")
    for path in beside:
        if path is not None and _runs(path):
            return str(path)
    found = shutil.which("poolsvc")
    if found is None:
        raise ServiceProgramError(
            f"there is no poolsvc to start: it was not installed with the package, is not beside {sys.executable}, "
            "and not on the PATH. Install a wheel of poolbridge, which has it; or build it (`make build` in a "
            "checkout) and set POOLBRIDGE_POOLSVC to it"
        )
    return found


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _installed() -> Path | None:
    """Return the path of the ``poolsvc`` of this package, also if pip used --user, --target or --prefix."""
    from importlib import metadata

    try:
        files = metadata.files("poolbridge") or ()
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.name == "poolsvc"), None)


class Process:
    """A service that this process has started. The constructor returns when the service is ready.

    Attributes
    ----------
    path
        Path of the service's socket.
    pid
        The service's process id.

    Parameters
    ----------
    options
        Options of ``poolsvc serve``.
    log
        A file to which the service appends its log; None: the log is in memory, and only the text of an error shows it.
    bounded
        True: the service drops the older half of the log when the log is longer than `_MOST_LOG`. A log in memory is
        always bounded.
    timeout
        Seconds within which the service must be ready.
    """

    def __init__(
        self, options: Sequence[str], log: str | os.PathLike[str] | None, timeout: float, *, bounded: bool = False
    ) -> None:
        program = find_program()
        if bounded or log is None:
            options = [*options, "--log-bytes", _MOST_LOG]
        LOG.debug("starting %s serve %s", program, " ".join(options))
        # If the service ends before it is ready, the error text contains what it wrote to stderr. The service writes to
        # a file and not to a pipe: if this process closed its end of a pipe, the service would lose its log.
        with _open_log(log) as said:
            before = _end(said)
            ready, ready_end = map(beyond_standard, os.pipe())
            try:
                try:
                    self._process = subprocess.Popen(  # noqa: S603 - our own program
                        [program, "serve", "--ready-fd", str(ready_end), *options],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=said,
                        pass_fds=[ready_end, *_descriptors(options)],
                        start_new_session=True,  # ctrl-C interrupts this process only; this process ends the service
                    )
                except OSError as error:
                    raise ServiceStartError(f"{program!r} cannot be started: {error}") from error
                finally:
                    os.close(ready_end)
                self.pid = self._process.pid
                try:
                    self.path = self._await_ready(ready, timeout)
                except BaseException:
                    self.stop()
                    raise
            finally:
                os.close(ready)
            if not self.path:
                raise self._ended(program, _said(said, before))
        LOG.info("started a service at %s, process %d", self.path, self.pid)

    def _await_ready(self, ready: int, timeout: float) -> str:
        """Wait until the service listens and writes its path to the pipe `ready`. Return the path.

        If the service ends before it listens, return ``""``.
        """
        until = time.monotonic() + timeout
        line = b""
        # If another thread of this process forks while the pipe exists, the forked process may keep the pipe open after
        # the service has ended. The pipe then does not show that the service has ended. So this method also polls the
        # service's pidfd.
        ended = os.pidfd_open(self.pid)
        try:
            poll = select.poll()
            poll.register(ready, select.POLLIN)
            poll.register(ended, select.POLLIN)
            while not line.endswith(b"\n"):
                events = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
                if not events:
                    raise ServiceStartTimeoutError(f"the service that was started was not ready within {timeout:g} s")
                part = os.read(ready, 4096) if ready in events else b""
                if not part:
                    self._process.wait()
                    return ""
                line += part
        finally:
            os.close(ended)
        return os.fsdecode(line[:-1])

    def _ended(self, program: str, said: str) -> ServiceStartError:
        status = self._process.returncode
        error = _ERRORS.get(status, ServiceStartError)
        return error(f"{program} ended with status {status} before it was ready. It said: {said.strip() or 'nothing'}")

    def stop(self) -> None:
        """End the service and wait until it has ended. Idempotent."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            LOG.warning("the service, process %d, does not end when it is told to, and is killed", self.pid)
            self._process.kill()
            self._process.wait()

    def leave(self) -> None:
        """Let the service run on without this object. A thread waits for the service's end, so that no zombie stays."""
        threading.Thread(target=self._process.wait, name="poolbridge-service", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether the service has ended."""
        return self._process.poll() is not None


def _open_log(path: str | os.PathLike[str] | None) -> IO[bytes]:
    """Open the file that the service writes its log to. If `path` is None, the file is in memory."""
    if path is None:
        return os.fdopen(os.memfd_create("poolsvc.log"), "w+b")
    try:
        return Path(path).open("a+b")
    except OSError as error:
        raise SocketFolderError(f"the service's log {os.fspath(path)!r} cannot be written: {error.strerror}") from error


def _descriptors(options: Sequence[str]) -> list[int]:
    return [int(value) for option, value in itertools.pairwise(options) if option == "--end-fd"]


def _said(file: IO[bytes], before: int) -> str:
    file.seek(max(before, _end(file) - _MOST_SAID))
    return file.read(_MOST_SAID).decode(errors="replace")


def _end(file: IO[bytes]) -> int:
    return file.seek(0, os.SEEK_END) if file.seekable() else 0
