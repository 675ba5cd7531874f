"""Connecting to the service."""

from __future__ import annotations

import copyreg
import os
import time
from collections.abc import Callable

from poolbridge._client import operations as _operations
from poolbridge._client import paths as _paths
from poolbridge._client.client import Client
from poolbridge._client.client_state import DEFAULT_TIMEOUT, explained, hello
from poolbridge._client.starter import Starter
from poolbridge._session.session import Session
from poolbridge._session.socket_reader import SocketReader
from poolbridge._sys.errors import ClosedError, ServiceNotRunningError
from poolbridge._sys.log import LOG
from poolbridge._wire.messages import HelloReply
from poolbridge._wire.transport import Transport


def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    wait: float = 0.0,
    device: int | str | None = None,
    start: bool = False,
) -> Client:
    """Connect to the service.

    Parameters
    ----------
    path
        The service's socket. Left out: ``$POOLBRIDGE_SOCKET``, else ``$XDG_RUNTIME_DIR/poolbridge/poolsvc.sock``, else
        ``poolbridge-<uid>/poolsvc.sock`` below ``$TMPDIR``, or below ``/tmp``.
    timeout
        Seconds that the service may take for an answer, besides the time that a request itself may wait.
    wait
        Seconds that the service may take to appear.
    device
        A GPU to work on, by ordinal or name as this process counts (``"cuda:1"``) or by UUID: it is let reach memory of
        other GPUs that this client maps. Where the hardware does not let it, mapping raises `PeerAccessError`. Streams
        of it are to be named (`Lease.used_on`). Memory of kind ``legacy`` is opened for this GPU alone: kernels of
        others, the memory's own too, must not touch it at its address. Left out: memory is used on its own GPU.
    start
        Start the service if none runs there: with ``$POOLBRIDGE_POOLSVC``, else the ``poolsvc`` that was installed with
        this package, else that of the ``PATH``. It ends, with all that it holds, when no client has been connected for
        two seconds. Programs that do so at the same time get the same service. Its log is beside the socket.

    Returns
    -------
    Client
        Connected; a context manager.

    Raises
    ------
    ServiceNotRunningError
        Nobody listens there; `ServiceStartTimeoutError` after waiting; with `start` `ServiceStartError`, which is
        `ServiceProgramError` if there is no ``poolsvc`` and `SocketFolderError` if no socket can be made there.
    AccessDeniedError
        This user may not connect.
    PoolLimitError
        The service has as many sessions as it may.
    VersionError
        Client and service share no protocol version.
    ServiceStalledError
        The service accepted and does not answer.
    """
    gpu = _operations.check_device(device)
    where = os.fspath(path) if path is not None else _paths.default_path()
    if not start:
        return _connect(where, timeout, wait, gpu)
    starter = Starter(where, wait)
    while True:
        try:
            return _connect(where, timeout, starter.wait, gpu)
        except (ServiceNotRunningError, ClosedError) as error:
            starter.start(error)


def _connect(where: str, timeout: float, wait: float, gpu: int | str | None) -> Client:
    patience = _paths.Patience(where, wait, timeout, time.monotonic())
    while isinstance(sock := patience.attempt(time.monotonic()), float):
        time.sleep(sock)
    session = Session(Transport(sock))
    session.device = gpu
    reader = SocketReader(session)
    try:
        with explained(where):
            reader.call(hello(), HelloReply, timeout)
    except BaseException:
        session.close()
        reader.stop()
        raise
    return Client(session, reader, where, timeout)


def _again(path: str, timeout: float, device: int | str | None, pool: str | None, epoch: str) -> Client:
    """Connect as a client that was pickled; to be called where it is unpickled."""
    client = connect(path, timeout=timeout, device=device)
    if client.epoch != epoch:
        LOG.warning("the service at %s is another one than when the client was pickled: what that had is gone", path)
    if pool is not None:
        try:
            client.open_pool(pool)
        except BaseException:
            client.close()
            raise
    return client


def _reduced(client: Client) -> tuple[Callable[..., Client], tuple[object, ...]]:
    """Say how a client is unpickled: by a connection of its own, with the same default pool."""
    client._session.check_usable()  # noqa: SLF001 - of one family
    pool = client._default_pool  # noqa: SLF001
    path = os.path.abspath(client.path)
    name = pool.name if pool is not None else None
    return _again, (path, client.timeout, client._session.device, name, client.epoch)  # noqa: SLF001


copyreg.pickle(Client, _reduced)
