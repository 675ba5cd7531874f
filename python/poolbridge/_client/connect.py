"""Connecting to the service."""

from __future__ import annotations

import copyreg
import os
import select
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from poolbridge._client import operations as _operations, paths as _paths
from poolbridge._client.base_client import DEFAULT_TIMEOUT, DYING, explained, hello, session_of
from poolbridge._client.client import Client
from poolbridge._client.shared_service import Starter
from poolbridge._client.tracing import check_tracer
from poolbridge._session.session import Session
from poolbridge._session.socket_reader import SocketReader
from poolbridge._sys.descriptors import descriptors_named
from poolbridge._sys.log import LOG
from poolbridge._wire.messages import HelloReply
from poolbridge._wire.transport import Transport
from poolbridge.errors import (
    ClosedError,
    ConnectionLostError,
    ServiceNotRunningError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from poolbridge._client.tracing import Tracer


def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    wait: float = 0.0,
    device: int | str | None = None,
    start: bool = False,
    tracer: Tracer | None = None,
) -> Client:
    """Connect to the service.

    Parameters
    ----------
    path
        Path of the service's socket; None: the path that `default_path` returns.
    timeout
        How many seconds the service may take to answer a request; 10 by default. If the program allows a request to
        wait at the service, as with ``allocate(timeout=…)``, the client adds the time that the program allows.
    wait
        Seconds to wait for the service to appear; 0: do not wait. With `start`, the service may take 30 seconds to
        start, or `wait` if that is longer.
    device
        The GPU on which this program works: an ordinal or a name in this process's numbering (``1`` or ``"cuda:1"``),
        or a UUID. When the client maps memory that is on another GPU, the client gives the GPU `device` access to that
        memory. If the hardware does not allow this access, the call that maps the memory raises `PeerAccessError`. For
        memory on another GPU, the program must pass its streams on the GPU `device` to `Lease.used_on`. The client
        opens memory of kind ``legacy`` for the GPU `device` only: kernels on any other GPU must not use the memory's
        address, even if the memory is on that GPU. None: the program uses each memory on the GPU that has the memory.
    start
        If no service listens at the path, start a service. The service's program is ``$POOLBRIDGE_POOLSVC``, else the
        ``poolsvc`` that was installed with this package, else the ``poolsvc`` that is found on the ``PATH``. The
        service ends and frees its memory when no client has been connected for two seconds. Commands that
        only look, such as ``poolsvc top``, do not count. Programs that start a service at the same time share one
        service. The service's log is the file ``<path>.log``.
    tracer
        The object that the client calls around every allocation, publication, receipt and release: an
        `OpenTelemetryTracer`, an `NvtxTracer`, or the program's own `Tracer`. None: the client calls no tracer, and
        tracing costs nothing.

    Returns
    -------
    Client
        The connected client, which is a context manager.

    Raises
    ------
    ServiceNotRunningError
        No service listens at the path. The error is `ServiceStartTimeoutError` if no service appeared within `wait`.
        With `start`, the error is `ServiceStartError` if the service could not be started: `ServiceProgramError` if
        there is no ``poolsvc``, `SocketFolderError` if the service cannot make a socket at the path.
    UnsupportedError
        gevent or eventlet has patched this process, and its `select` has no epoll.
    AccessDeniedError
        The service does not allow this user to connect.
    PoolLimitError
        The service has reached its limit of sessions, or this process has no free file descriptor.
    VersionError
        The service does not know the client's version of the protocol.
    ServiceStalledError
        The service accepted the connection and does not answer.
    InvalidArgumentError
        `path` cannot be the path of a socket, or `timeout`, `wait`, `device` or `tracer` is not as described above.
    """
    gpu = _operations.check_device(device)
    checked = None if tracer is None else check_tracer(tracer)
    where = _paths.check_path(path) if path is not None else _paths.default_path()
    timeout = _operations.check_seconds(timeout, zero=False)
    wait = _operations.check_seconds(wait, "wait")
    if not start:
        return _connect(where, timeout, wait, gpu, checked)
    starter = Starter(where, wait)
    while True:
        try:
            return _connect(where, timeout, starter.wait, gpu, checked)
        except (ServiceNotRunningError, ClosedError):
            if not starter.start():
                raise


@descriptors_named("the client cannot connect")
def _connect(where: str, timeout: float, wait: float, gpu: int | str | None, tracer: Tracer | None) -> Client:
    if not hasattr(select, "epoll"):
        raise UnsupportedError(
            "gevent or eventlet has patched this process, and poolbridge waits in real threads: patch without threads "
            "and select, such as gevent.monkey.patch_all(thread=False, select=False), or connect in another process"
        )
    patience = _paths.Patience(where, wait, timeout, time.monotonic())
    for _ in range(DYING):
        try:
            return _begin(where, timeout, patience, gpu, tracer)
        except ConnectionLostError:
            pass  # the service died
    return _begin(where, timeout, patience, gpu, tracer)


def _begin(
    where: str, timeout: float, patience: _paths.Patience, gpu: int | str | None, tracer: Tracer | None
) -> Client:
    absolute = _paths.absolute(where)
    while isinstance(sock := patience.attempt(time.monotonic()), float):
        time.sleep(sock)
    session = Session(Transport(sock))
    session.dial = partial(_paths.dialled_again, _paths.lasting(where), timeout)
    session.device, session.tracer = gpu, tracer
    try:
        reader = SocketReader(session)
    except BaseException:
        session.transport.close()
        raise
    try:
        with explained(where):
            reader.call(hello(), HelloReply, patience.left(time.monotonic()))
    except BaseException:
        session.close()
        reader.stop()
        raise
    return Client(session, reader, absolute, timeout)


def _again(  # noqa: PLR0917 - pickles have positional arguments
    path: str, timeout: float, device: int | str | None, pool: str | None, epoch: str, tracer: Tracer | None
) -> Client:
    """Make the client again when ``pickle`` loads it: connect to the service, and open the client's default pool."""
    client = connect(path, timeout=timeout, device=device, tracer=tracer)
    if client.epoch != epoch:
        LOG.warning(
            "the service at %s is another one than when the client was pickled: its pools and names are gone", path
        )
    if pool is not None:
        try:
            client.open_pool(pool)
        except BaseException:
            client.close()
            raise
    return client


def _reduced(client: Client) -> tuple[Callable[..., Any], tuple[object, ...]]:
    """Tell ``pickle`` how to load the client: by a call of `_again`, which connects anew and opens the default pool."""
    session = session_of(client)
    session.check_usable()
    pool = client._default_pool  # noqa: SLF001
    name = pool.name if pool is not None else None
    return _again, (client.path, client.timeout, session.device, name, client.epoch, session.tracer)


copyreg.pickle(Client, _reduced)
