"""Attaches Dask's workers to services by a plugin, and has the functions that tasks and programs call."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from distributed import Client as DaskClient, Worker, WorkerPlugin, get_worker
from tornado.ioloop import PeriodicCallback

from poolbridge._client import operations as _operations
from poolbridge._client.lease import Lease
from poolbridge._memory.kinds import ON_CPU
from poolbridge._sys.error_texts import from_signal, shown
from poolbridge._sys.literals import Kind
from poolbridge._sys.log import LOG
from poolbridge.dask import _arrays
from poolbridge.dask._counts import Counts, Stats
from poolbridge.dask._link import Link, Options
from poolbridge.errors import (
    InvalidArgumentError,
    NotFoundError,
    PoolbridgeError,
    ServiceNotRunningError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distributed.comm.core import Comm

    from poolbridge._client.client import Client

_NAME: Final = "poolbridge"
_LOOK_MS: Final = 1000  # a worker checks at this interval whether its service is gone


class PoolbridgePlugin(WorkerPlugin):
    """A plugin of Dask that attaches each worker to the poolbridge service of its machine, and opens a pool there.

    Register the plugin once for a cluster: ``client.register_plugin(PoolbridgePlugin(…))``. Workers that come later
    get the plugin as well. The plugin ends with its worker, or with ``client.unregister_worker_plugin("poolbridge")``.

    Parameters
    ----------
    pool
        Name of the pool in which `empty` and `asarray` make arrays.
    path
        Path of the service's socket on each machine; None: each worker calls `poolbridge.default_path`, which reads
        ``$POOLBRIDGE_SOCKET`` in the worker's environment.
    start
        True: a worker starts a service if none listens, as ``poolbridge.connect(start=True)`` does. The workers of a
        machine share this service, and the service ends with the last of these workers.
    max_bytes, kind
        The limit of the pool, and its kind, ``"host"`` or ``"pinned"``. A worker makes the pool if the pool does not
        exist; an existing pool must have the same limit and kind. If `max_bytes` is None, the pool must exist, and
        `kind` has no effect.
    copy_from
        A number of bytes, or a text such as ``"1MiB"``. If a NumPy array lives in no lease, has at least this size, and
        goes to a worker with the same service, the sending worker copies the array into the pool. The copy lives as
        long as the array. None: Dask moves the bytes of arrays that live in no lease.
    missing
        What happens on a machine without a service or without the pool. ``"error"``: the worker does not get the
        plugin, ``register_plugin`` raises, and a worker that comes later does not start. ``"ignore"``: the worker
        continues without a service, and Dask moves the bytes. `empty` and `asarray` make ordinary arrays, which the
        worker counts and logs.
    timeout
        Seconds that the service may take to answer a request.

    Raises
    ------
    InvalidArgumentError
        An argument is not as described above.
    """

    name = _NAME

    def __init__(
        self,
        pool: str = "dask",
        *,
        path: str | os.PathLike[str] | None = None,
        start: bool = False,
        max_bytes: int | str | None = None,
        kind: Kind = "host",
        copy_from: int | str | None = None,
        missing: Literal["error", "ignore"] = "error",
        timeout: float = 10.0,
    ) -> None:
        if missing not in {"error", "ignore"}:
            raise InvalidArgumentError(f"missing={shown(missing)}: expected 'error' or 'ignore'")
        if kind not in ON_CPU:
            raise InvalidArgumentError(
                f"kind={shown(kind)}: the plugin's pool is for arrays of NumPy, in memory of the CPU: 'host' or "
                "'pinned'. For memory of a GPU, tasks make a pool by pool_client().create_pool(…), and return leases "
                "of it"
            )
        self._options = Options(
            pool=_operations.check_name(pool, "pool"),
            path=None if path is None else os.fspath(path),
            start=bool(start),
            max_bytes=None if max_bytes is None else _operations.check_bytes(max_bytes, "max_bytes", least=1),
            kind=kind,
            copy_from=None if copy_from is None else _operations.check_bytes(copy_from, "copy_from"),
            timeout=timeout,
            missing=missing,
        )

    async def setup(self, worker: Worker) -> None:
        """Attach a worker to the service of its machine. Dask calls this method.

        Raises
        ------
        ServiceNotRunningError, NotFoundError
            The machine has no service, or the service does not have the plugin's pool; and `missing` is ``"error"``.
        AlreadyExistsError
            The pool exists with another limit or kind; the message names the difference.
        PoolbridgeError
            The service cannot be used for another reason.
        UnavailableError
            This version of distributed lacks a function that the plugin needs.
        """
        attached = _Attached(worker, self._options)
        try:
            await asyncio.to_thread(attached.connected)
        except (ServiceNotRunningError, NotFoundError) as error:
            if self._options.missing == "error":
                raise
            attached.counts.degraded(type(error).__name__, error)
        attached.attach()
        _ATTACHED[worker] = attached

    async def teardown(self, worker: Worker) -> None:
        """Detach a worker and close its connection. Dask calls this method. Arrays that are alive stay valid."""
        attached = _ATTACHED.pop(worker, None)
        if attached is not None:
            link = attached.detach()
            if link is not None:
                await asyncio.to_thread(link.close)


class _Attached:
    """A worker that has the plugin."""

    def __init__(self, worker: Worker, options: Options) -> None:
        self.worker = worker
        self.options = options
        self.link: Link | None = None
        self.counts = Counts(self._log_event)
        if "get_data" not in worker.handlers or not hasattr(worker.rpc, "connection_args"):
            raise UnavailableError(
                "this version of distributed has no handler get_data or no connection_args of its connections: "
                "see docs/engines.md for the versions that poolbridge was tried with"
            )
        self._get_data = worker.handlers["get_data"]
        self._watch = PeriodicCallback(self._look, _LOOK_MS)
        self._connecting = threading.Lock()
        self._detached = False

    def connected(self) -> Link:
        """Return the connection to the service. If the worker has no connection yet, connect now. This may take time.

        Raises
        ------
        ServiceNotRunningError, NotFoundError
            The machine has no service, or the service does not have the plugin's pool.
        """
        with self._connecting:
            link = self.link
            if link is None:
                link = self.link = Link(self.options, self.counts, self._changed, self._drop)
                if self._detached:
                    self.link = None
                    link.close()
                    raise ServiceNotRunningError("this worker is being closed, or its plugin taken away")
                self._changed()
            return link

    def attach(self) -> None:
        """From now on, make the worker send and receive descriptions of buffers. Call `attach` in its event loop."""
        original = self._get_data

        @wraps(original)
        async def get_data(comm: Comm, *arguments: Any, **keywords: Any) -> Any:
            link = self.link
            if link is None:
                return await original(comm, *arguments, **keywords)
            token = _arrays.SENDING.set(_arrays.Sending(link, self.worker.address, comm.remote_info.get(_NAME)))
            try:
                return await original(comm, *arguments, **keywords)
            except BaseException as error:
                _forget(error)
                raise
            finally:
                _arrays.SENDING.reset(token)

        _arrays.register()
        self.worker.handlers["get_data"] = get_data
        self.worker.metrics[_NAME] = lambda _worker: self.counts.snapshot()
        self._announce()
        self._watch.start()

    def detach(self) -> Link | None:
        """Undo `attach`, and return the connection, which the caller closes."""
        self._watch.stop()
        self._detached = True
        self.worker.handlers["get_data"] = self._get_data
        self.worker.metrics.pop(_NAME, None)
        link, self.link = self.link, None
        self._announce()
        return link

    async def _look(self) -> None:
        """If this worker has no service, or its service is gone, try to connect. Transfers do not wait for `_look`."""
        link = self.link
        if link is not None and link.service is not None:
            return
        self._announce()
        try:
            await asyncio.to_thread(self.connected if link is None else link.renew)
        except (PoolbridgeError, OSError) as error:
            LOG.debug("dask: %s", error)

    def _changed(self) -> None:
        self.worker.loop.add_callback(self._announce)

    def _announce(self) -> None:
        """Make this worker send the present value of `Link.says` to each worker to which it connects from now on."""
        says = None if self.link is None else self.link.says
        rpc: Any = self.worker.rpc
        arguments: dict[str, Any] = dict(rpc.connection_args)
        overrides = dict(arguments.get("handshake_overrides", {}))
        if overrides.pop(_NAME, None) == says:
            return
        if says is not None:
            overrides[_NAME] = says
        rpc.connection_args = arguments | {"handshake_overrides": overrides}
        rpc.collect()  # close the idle connections, in which this worker has told an earlier result of `Link.says`

    def _drop(self, sender: str) -> None:
        self.worker.loop.add_callback(self.worker.rpc.remove, sender)

    def _log_event(self, text: str) -> None:
        self.worker.log_event(_NAME, {"worker": self.worker.address, "text": text})


def _forget(error: BaseException | None) -> None:
    """Clear the local variables in an error's traceback.

    Dask's log keeps the error. If `_forget` did not clear the local variables, they would keep the sent arrays in
    memory.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


_ATTACHED: Final[dict[Worker, _Attached]] = {}


def _here() -> _Attached:
    try:
        attached = _ATTACHED.get(get_worker())
    except ValueError:
        raise InvalidArgumentError(
            "this is no task of a Dask worker: call it in a task, or use poolbridge.connect()"
        ) from None
    if attached is None:
        raise InvalidArgumentError(
            "this worker has no PoolbridgePlugin: client.register_plugin(poolbridge.dask.PoolbridgePlugin(…))"
        )
    return attached


def pool_client() -> Client:
    """Return the client that connects this worker to its service. Call `pool_client` in a task.

    If the worker has no service, or its service is gone, this call connects to the service that listens now.

    Returns
    -------
    Client
        The client. Do not close it. The client's default pool is the plugin's pool.

    Raises
    ------
    InvalidArgumentError
        The caller is no task of a worker that has the plugin.
    ServiceNotRunningError, NotFoundError
        The machine has no service, or the service does not have the plugin's pool.
    """
    return _here().connected().client()


def empty(
    shape: int | Iterable[int], dtype: Any = "float64", *, timeout: float | None = 10.0
) -> np.ndarray[Any, np.dtype[Any]]:
    """Make an array in this worker's pool. Call `empty` in a task. The content of the array is undefined.

    Fill the array and return it from the task. The array becomes read-only when it goes to another worker.

    Parameters
    ----------
    shape
        Elements along each axis.
    dtype
        A NumPy dtype of a fixed size, without Python objects.
    timeout
        Seconds to wait for free memory in the pool; 0: do not wait; None: no limit.

    Returns
    -------
    numpy.ndarray
        An array in C order. The pool reuses the array's buffer when the array and all its views are gone in all
        workers.

    Raises
    ------
    PoolLimitError
        The pool had no free memory for the array within `timeout`. An array larger than the pool never fits.
    InvalidArgumentError
        The caller is no task of a worker that has the plugin, or the shape or dtype is not possible.
    PoolbridgeError
        The service is gone, and this worker cannot connect again.
    """
    attached = _here()
    try:
        dtype = np.dtype(dtype)
    except Exception as error:  # also what its repr raises, which NumPy calls
        if from_signal(error):
            raise
        raise InvalidArgumentError(
            f"{shown(dtype)} is no dtype: expected a dtype of NumPy, such as 'float32'"
        ) from None
    if dtype.hasobject:
        raise InvalidArgumentError(f"elements of {dtype} hold Python objects, which other processes cannot use")
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    try:
        return attached.connected().empty(lengths, dtype, timeout=timeout)
    except (ServiceNotRunningError, NotFoundError):
        if attached.options.missing == "error":
            raise
    attached.counts.degraded("no service")
    return np.empty(lengths, dtype)


def asarray(array: Any, *, timeout: float | None = 10.0) -> np.ndarray[Any, np.dtype[Any]]:
    """Copy an array into this worker's pool. Call `asarray` in a task.

    If the array already lives in a lease of the worker's service, return the array itself, without a copy.

    Parameters
    ----------
    array
        Anything that `numpy.asarray` accepts, or a lease. A lease of memory of a GPU is copied to the CPU. NumPy has no
        ``bfloat16``, so a lease of ``bfloat16`` is copied as float32.
    timeout
        Seconds to wait for free memory in the pool; 0: do not wait; None: no limit.

    Returns
    -------
    numpy.ndarray
        The copy in the pool, or the array in its lease.

    Raises
    ------
    PoolLimitError, InvalidArgumentError, PoolbridgeError
        See `empty`.
    """
    attached = _here()
    try:
        given = np.asarray(array)
    except TypeError:
        if not isinstance(array, Lease):
            raise
        given = array.to_numpy()
    if attached.link is not None and attached.link.holds(given):
        return given
    made = empty(given.shape, given.dtype, timeout=timeout)
    made[...] = given
    return made


def stats(client: DaskClient, workers: Iterable[str] | None = None) -> dict[str, Stats]:
    """Ask the workers of a cluster how many arrays went in place, how many did not, and why.

    With each heartbeat, each worker sends the same numbers to the scheduler, in the metric ``poolbridge``. When a
    worker counts a reason for the first time, it logs an event in the topic ``poolbridge``; see ``client.get_events``.

    Parameters
    ----------
    client
        A client of Dask that is not asynchronous.
    workers
        Addresses of workers; None: all.

    Returns
    -------
    dict
        A `Stats` for the address of each worker that has the plugin.

    Raises
    ------
    InvalidArgumentError
        `client` is no client of Dask, or it is asynchronous.
    """
    given: Any = client
    if not isinstance(given, DaskClient) or given.asynchronous:
        what = "an asynchronous client" if isinstance(given, DaskClient) else f"a {type(given).__name__}"
        raise InvalidArgumentError(f"expected a distributed.Client that is not asynchronous, not {what}")
    asked = None if workers is None else list(workers)
    found: Any = given.run(_stats_of, workers=asked)
    return {address: Stats.from_snapshot(of) for address, of in found.items() if of is not None}


def _stats_of(dask_worker: Worker) -> dict[str, Any] | None:
    attached = _ATTACHED.get(dask_worker)
    return attached.counts.snapshot() if attached is not None else None
