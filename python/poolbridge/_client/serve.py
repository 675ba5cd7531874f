"""Runs a service that ends when this process ends, for scripts, notebooks and tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Never, Self

from poolbridge._client.aconnect import connect_async
from poolbridge._client.base_client import DEFAULT_TIMEOUT
from poolbridge._client.client import Client
from poolbridge._client.connect import connect
from poolbridge._client.operations import check_seconds, check_text
from poolbridge._client.paths import check_path
from poolbridge._client.service_process import Process
from poolbridge._client.shared_service import START_SECONDS
from poolbridge._sys.descriptors import beyond_standard
from poolbridge._sys.error_texts import shown
from poolbridge.errors import (
    InvalidArgumentError,
    ServiceNotRunningError,
)

if TYPE_CHECKING:
    from poolbridge._client.aclient import AsyncClient
    from poolbridge._client.tracing import Tracer


class Service:
    """A service that this process starts and that ends when this process ends. `serve` returns a `Service`.

    A `Service` is a context manager for ``with`` and for ``async with``: the service starts at the beginning of the
    block and ends at the end of the block. The service also ends when this process ends, even if the process is killed.
    The service continues when the thread that started it ends. If this process has forked a child and then ends, the
    service ends although the child still runs.
    """

    def __init__(
        self,
        *,
        pools: Sequence[str] = (),
        path: str | os.PathLike[str] | None = None,
        options: Sequence[str] = (),
        log: str | os.PathLike[str] | None = None,
        timeout: float = START_SECONDS,
    ) -> None:
        where = ["--private"] if path is None else ["--socket", os.path.abspath(check_path(path))]
        self._private = path is None
        named = [part for pool in _texts(pools, "pools") for part in ("--pool", pool)]
        self._options = [*where, *named, *_texts(options, "options")]
        self._log = None if log is None else check_path(log, "log")
        self._timeout = check_seconds(timeout, zero=False)
        self._process: Process | None = None
        self._starter = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> Never:
        raise TypeError(
            "a service cannot be copied or sent to another process: send service.path, for poolbridge.connect(path)"
        )

    def start(self) -> Self:
        """Start the service and wait until it is ready. A ``with`` block calls this method at its beginning.

        Returns
        -------
        Service
            This object.

        Raises
        ------
        ServiceProgramError
            The program ``poolsvc`` was not found.
        SocketInUseError, SocketFolderError
            The service cannot listen at the socket's path, or cannot write its log.
        ServiceStartError
            The service ended before it was ready, for another reason; the message contains what the service printed.
        ServiceStartTimeoutError
            The service was not ready within the ``timeout`` of `serve`.
        InvalidArgumentError
            The service was started before.
        """
        with self._lock:
            if self._process is not None:
                raise InvalidArgumentError("this service was started already: make another one by poolbridge.serve()")
            # The service polls this pidfd, which becomes readable when this process ends. The service then ends too.
            end = beyond_standard(os.pidfd_open(os.getpid()))
            try:
                self._process = Process(["--end-fd", str(end), *self._options], self._log, self._timeout)
            finally:
                os.close(end)
            self._starter = os.getpid()
        return self

    def stop(self) -> None:
        """End the service and wait until it has ended. A ``with`` block calls this method at its end. Idempotent.

        The method does nothing in a forked child, because the service belongs to the parent.
        """
        with self._lock:
            if self._process is None or os.getpid() != self._starter:
                return
            self._process.stop()
            if self._private:  # a service that was killed has left its folder behind
                shutil.rmtree(Path(self._process.path).parent, ignore_errors=True)

    @property
    def path(self) -> str:
        """Path of the service's socket, to pass to ``poolbridge.connect``, ``--socket`` or ``$POOLBRIDGE_SOCKET``.

        Raises
        ------
        ServiceNotRunningError
            The service was not started.
        """
        return self._started().path

    @property
    def pid(self) -> int:
        """The service's process id.

        Raises
        ------
        ServiceNotRunningError
            The service was not started.
        """
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether the service was started and has not ended."""
        return self._process is not None and not self._process.ended

    def connect(
        self, *, timeout: float = DEFAULT_TIMEOUT, device: int | str | None = None, tracer: Tracer | None = None
    ) -> Client:
        """Connect to the service; see `poolbridge.connect` for the parameters and errors."""
        return connect(self.path, timeout=timeout, device=device, tracer=tracer)

    async def connect_async(
        self, *, timeout: float = DEFAULT_TIMEOUT, device: int | str | None = None, tracer: Tracer | None = None
    ) -> AsyncClient:
        """Connect to the service from asyncio; see `poolbridge.connect_async`."""
        return await connect_async(self.path, timeout=timeout, device=device, tracer=tracer)

    def _started(self) -> Process:
        if self._process is None:
            raise ServiceNotRunningError(
                "the service was not started yet: use `with poolbridge.serve() as service:`, or call start()"
            )
        return self._process

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])  # the thread cannot be cancelled: wait for it, then end the service
            await asyncio.to_thread(self.stop)
            raise
        finally:
            del starting  # the task keeps its error, whose traceback refers to this stack frame

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.to_thread(self.stop)

    def __repr__(self) -> str:
        if self._process is None:
            return "<poolbridge.Service, not started>"
        return f"<poolbridge.Service {self.path}, {'process ' + str(self.pid) if self.running else 'ended'}>"


def serve(
    *,
    pools: Sequence[str] = (),
    path: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
    log: str | os.PathLike[str] | None = None,
    timeout: float = START_SECONDS,
) -> Service:
    """Run a service that ends with this process: ``with poolbridge.serve(…) as service: client = service.connect()``.

    The service's program is ``$POOLBRIDGE_POOLSVC``; else the ``poolsvc`` that was installed with this package; else a
    ``poolsvc`` in the folder of the Python interpreter; else a ``poolsvc`` that is found on the ``PATH``.

    Parameters
    ----------
    pools
        Pools that the service makes at its start, each in the form of the option ``poolsvc serve --pool``, such as
        ``"name=frames,kind=host,max=64MiB"``.
    path
        Path of the service's socket. Other programs can connect to the service at this path. None: the socket is in a
        new private folder, which is removed when the service ends.
    options
        More options of ``poolsvc serve``, such as ``["--limit", "sessions=100"]``.
    log
        A file to which the service appends its log. None: the log is in memory, and the user sees it only if the start
        fails: the error's text contains the log.
    timeout
        Seconds that the service may take until it is ready; 30 by default.

    Returns
    -------
    Service
        A context manager for ``with`` and for ``async with``. The service starts when the program enters the block or
        calls `Service.start`. `Service.start` lists the errors.

    Raises
    ------
    InvalidArgumentError
        An argument is not as described above.
    """
    return Service(pools=pools, path=path, options=options, log=log, timeout=timeout)


def _texts(texts: Sequence[str], what: str) -> list[str]:
    if isinstance(texts, (list, tuple)) and all(isinstance(text, str) and "\0" not in text for text in texts):
        return [check_text(text) for text in texts]
    raise InvalidArgumentError(f"{what} {shown(texts)} is no list of texts")
