"""A service of one's own: for scripts, notebooks and tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from poolbridge._client.aclient import AsyncClient, connect_async
from poolbridge._client.client import Client
from poolbridge._client.client_state import DEFAULT_TIMEOUT
from poolbridge._client.connect import connect
from poolbridge._client.program import Process
from poolbridge._client.starter import START_SECONDS
from poolbridge._sys.errors import InvalidArgumentError, ServiceNotRunningError


class Service:
    """A service that this process has started for itself; made by `serve`.

    A context manager, also an asynchronous one: the service starts at the beginning of the block and ends with it. It
    ends too when this process does, by whatever means; not with the thread that has started it, and no forked child
    keeps it alive.
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
        if not timeout > 0:
            raise InvalidArgumentError(f"timeout={timeout!r}: expected seconds above 0")
        where = ["--private"] if path is None else ["--socket", os.path.abspath(path)]
        self._private = path is None
        self._options = [*where, *(part for pool in pools for part in ("--pool", _named(pool))), *options]
        self._log = log
        self._timeout = timeout
        self._process: Process | None = None
        self._starter = 0
        self._lock = threading.Lock()

    def start(self) -> Self:
        """Start the service, and wait until it is ready; the ``with`` block does this.

        Raises
        ------
        ServiceProgramError
            There is no ``poolsvc``.
        SocketInUseError, SocketFolderError
            It cannot listen at the path.
        ServiceStartError
            It ended before it was ready, for another reason; the message has what it said.
        ServiceStartTimeoutError
            It was not ready in time.
        InvalidArgumentError
            It was started before.
        """
        with self._lock:
            if self._process is not None:
                raise InvalidArgumentError("this service was started already: make one more by poolbridge.serve()")
            # It can be read from when this process has ended, and not before.
            end = os.pidfd_open(os.getpid())
            try:
                self._process = Process(["--end-fd", str(end), *self._options], self._log, self._timeout)
            finally:
                os.close(end)
            self._starter = os.getpid()
        return self

    def stop(self) -> None:
        """End the service, and wait until it has ended; the end of the ``with`` block does this. Idempotent.

        In a forked child it does nothing: the service is the parent's.
        """
        with self._lock:
            if self._process is None or os.getpid() != self._starter:
                return
            self._process.stop()
            if self._private:  # one that was killed has left it behind
                shutil.rmtree(Path(self._process.path).parent, ignore_errors=True)

    @property
    def path(self) -> str:
        """The service's socket, for ``poolbridge.connect(path)``, ``--socket`` and ``$POOLBRIDGE_SOCKET``.

        Raises
        ------
        ServiceNotRunningError
            It was not started.
        """
        return self._started().path

    @property
    def pid(self) -> int:
        """The service's process.

        Raises
        ------
        ServiceNotRunningError
            It was not started.
        """
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether the service was started and has not ended."""
        return self._process is not None and not self._process.ended

    def connect(self, *, timeout: float = DEFAULT_TIMEOUT, device: int | str | None = None) -> Client:
        """Connect to the service; see `poolbridge.connect` for the arguments and errors."""
        return connect(self.path, timeout=timeout, device=device)

    async def connect_async(self, *, timeout: float = DEFAULT_TIMEOUT, device: int | str | None = None) -> AsyncClient:
        """Connect to the service from asyncio; see `poolbridge.connect_async`."""
        return await connect_async(self.path, timeout=timeout, device=device)

    def _started(self) -> Process:
        if self._process is None:
            raise ServiceNotRunningError("the service was not started yet: `with poolbridge.serve() as service:`")
        return self._process

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])  # its thread goes on, and would leave a service behind
            await asyncio.to_thread(self.stop)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """Run a service for this process alone: ``with poolbridge.serve(…) as service: client = service.connect()``.

    The program is ``$POOLBRIDGE_POOLSVC``, else the ``poolsvc`` that was installed with this package, else that of the
    ``PATH``.

    Parameters
    ----------
    pools
        Pools to begin with, as ``poolsvc serve --pool`` takes them; the name may come first without its key:
        ``"frames:kind=host,max=64MiB"``.
    path
        Its socket, which others may then find. Left out: one in a new folder, which goes with the service.
    options
        More options of ``poolsvc serve``, such as ``["--limit", "sessions=100"]``.
    log
        A file that what the service says is appended to. Left out: it is shown only in the error if it does not start.
    timeout
        Seconds that it may take until it is ready.

    Returns
    -------
    Service
        A context manager, also an asynchronous one. It has ``path``, ``connect()`` and ``connect_async()``; its block
        raises what `Service.start` raises.
    """
    return Service(pools=pools, path=path, options=options, log=log, timeout=timeout)


def _named(pool: str) -> str:
    """Give a pool as ``--pool`` takes it: ``frames:kind=host`` is ``name=frames,kind=host``."""
    head, colon, rest = pool.partition(":")
    if colon and head and "=" not in head:
        return f"name={head},{rest}"
    return pool
