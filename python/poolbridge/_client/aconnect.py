"""Connecting to the service from asyncio."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING

from poolbridge._client import operations as _operations, paths as _paths
from poolbridge._client.aclient import AsyncClient
from poolbridge._client.base_client import DEFAULT_TIMEOUT, DYING, explained, hello
from poolbridge._client.shared_service import Starter
from poolbridge._client.tracing import check_tracer
from poolbridge._session.cancellation import Cancellation
from poolbridge._session.loop_reader import LoopReader
from poolbridge._session.session import Session
from poolbridge._sys.descriptors import descriptors_named
from poolbridge._wire.messages import HelloReply
from poolbridge._wire.transport import Transport
from poolbridge.errors import ClosedError, ConnectionLostError, ServiceNotRunningError

if TYPE_CHECKING:
    from poolbridge._client.tracing import Tracer


async def connect_async(
    path: str | os.PathLike[str] | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    wait: float = 0.0,
    device: int | str | None = None,
    start: bool = False,
    tracer: Tracer | None = None,
) -> AsyncClient:
    """Connect to the service from asyncio. Parameters and errors are those of `connect`.

    Returns
    -------
    AsyncClient
        The connected client, an asynchronous context manager. Use it on the running event loop only.
    """
    gpu = _operations.check_device(device)
    checked = None if tracer is None else check_tracer(tracer)
    where = _paths.check_path(path) if path is not None else _paths.default_path()
    timeout = _operations.check_seconds(timeout, zero=False)
    wait = _operations.check_seconds(wait, "wait")
    if not start:
        with descriptors_named("the client cannot connect"):
            return await _connect(where, timeout, wait, gpu, checked)
    starter = Starter(where, wait)
    while True:
        try:
            with descriptors_named("the client cannot connect"):
                return await _connect(where, timeout, starter.wait, gpu, checked)
        except (ServiceNotRunningError, ClosedError):
            if not await asyncio.to_thread(starter.start):
                raise


async def _connect(
    where: str, timeout: float, wait: float, gpu: int | str | None, tracer: Tracer | None
) -> AsyncClient:
    patience = _paths.Patience(where, wait, timeout, asyncio.get_running_loop().time())
    for _ in range(DYING):
        try:
            return await _begin(where, timeout, patience, gpu, tracer)
        except ConnectionLostError:
            pass  # the service died
    return await _begin(where, timeout, patience, gpu, tracer)


async def _begin(
    where: str, timeout: float, patience: _paths.Patience, gpu: int | str | None, tracer: Tracer | None
) -> AsyncClient:
    loop, absolute = asyncio.get_running_loop(), _paths.absolute(where)
    while isinstance(sock := patience.attempt(loop.time()), float):
        await asyncio.sleep(sock)
    session = Session(Transport(sock))
    session.dial = partial(_paths.dialled_again, _paths.lasting(where), timeout)
    session.device, session.tracer, session.concurrent = gpu, tracer, True
    reader = LoopReader(session, loop)
    try:
        with explained(where):
            await reader.call(hello(), HelloReply, patience.left(loop.time()), Cancellation())
    except BaseException:
        session.close()
        reader.stop()
        raise
    return AsyncClient(session, reader, absolute, timeout)
