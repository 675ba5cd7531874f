"""Connects this process to the service of its node, and makes arrays in the service's pools."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import poolbridge
from poolbridge.ray import _cluster
from poolbridge.ray._sharing import again

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_POOL: Final = "ray"
"""The pool that is used when the caller names no pool."""


def connect(path: str) -> poolbridge.Client:
    """Connect to the service of this node.

    Raises
    ------
    ServiceNotRunningError
        The node has no service. The message says how a program with Ray starts a service.
    """
    try:
        return poolbridge.connect(path)
    except poolbridge.ServiceNotRunningError as error:
        raise poolbridge.ServiceNotRunningError(
            f"the poolbridge service is not running on this node: looked at {path!r}. Start one on every node by "
            "poolbridge.ray.start(), in the program that has called ray.init(); or run `poolsvc serve` on each node, "
            "and set POOLBRIDGE_SOCKET to its socket where Ray is started"
        ) from error


class Connection:
    """Connects this process to its node's service at the first call of a method, and again if the service is gone.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: poolbridge.Client | None = None

    def client(self) -> poolbridge.Client:
        """Return the connected client.

        Raises
        ------
        ServiceNotRunningError
            The node has no service.
        """
        with self._lock:
            if self._client is None or self._client.closed:
                self._client = connect(_cluster.service_path())
            return self._client

    def allocate(
        self, shape: int | Iterable[int], dtype: Any, pool: str, timeout: float | None
    ) -> tuple[poolbridge.Client, poolbridge.Lease]:
        """Allocate a buffer in a pool of the node. Return the client and the buffer's lease.

        If another pool with this name has taken the pool's place, try again once in that pool.

        Raises
        ------
        ServiceNotRunningError
            The node has no service.
        PoolbridgeError
            Those of `poolbridge.Client.allocate`.
        """
        client, known = self.pool(pool)
        try:
            return client, client.allocate(shape, dtype, pool=known, timeout=timeout)
        except poolbridge.NotFoundError:  # the pool was destroyed; there may be a new pool of the same name
            client._forget(known)  # noqa: SLF001 - of one family
        client, known = self.pool(pool)
        return client, client.allocate(shape, dtype, pool=known, timeout=timeout)

    def pool(self, name: str) -> tuple[poolbridge.Client, poolbridge.PoolInfo]:
        """Return the client, and the pool `name` of its service. The client opens each pool only once.

        Raises
        ------
        ServiceNotRunningError
            The node has no service.
        NotFoundError
            The service has no such pool.
        """
        client = self.client()
        try:
            return client, client._run(client._pool(name))  # noqa: SLF001
        except poolbridge.NotFoundError as error:
            there = ", ".join(repr(pool.name) for pool in client.pools()) or "none"
            raise poolbridge.NotFoundError(
                f"the service at {client.path} has no pool {name!r} (it has {there}): each node needs one, "
                "which poolbridge.ray.start(pools=…) makes, or `poolsvc pool create`"
            ) from error

    def close(self) -> None:
        """Close the client, if there is one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


CONNECTION: Final = Connection()


def client() -> poolbridge.Client:
    """Return the client that connects this process to its node's service. All transports of the process use it.

    Returns
    -------
    Client
        The client. The first call connects. If the service is gone, the next call connects again.

    Raises
    ------
    ServiceNotRunningError
        The node has no service.
    """
    return CONNECTION.client()


def empty(
    shape: int | Iterable[int], dtype: Any = "float32", *, pool: str = DEFAULT_POOL, timeout: float | None = 10.0
) -> np.ndarray[Any, Any]:
    """Make a NumPy array in a pool of this node. An actor can fill the array and return it without a copy.

    When the transport sends the array or a part of it, the sent array becomes read-only.

    Parameters
    ----------
    shape
        Elements along each axis. A number: one axis with this number of elements. ``()``: no axis and one element.
    dtype
        A NumPy dtype.
    pool
        The name of a pool whose memory the CPU can reach.
    timeout
        Seconds to wait for free memory in the pool; 0: do not wait; None: no limit.

    Returns
    -------
    numpy.ndarray
        The array. The content is undefined. The service frees the buffer when no process uses the buffer any more.

    Raises
    ------
    ServiceNotRunningError
        The node has no service.
    NotFoundError
        The service has no such pool.
    PoolLimitError
        The pool had no free memory for the array within `timeout`.
    TypeError
        The pool's memory is on a GPU. Allocate in such a pool by ``client().allocate``, and pass the lease to a
        library by DLPack.
    """
    _, lease = again(lambda: CONNECTION.allocate(shape, dtype, pool, timeout))
    return np.asarray(lease)


def close() -> None:
    """Close this process's connection. Idempotent.

    The leases of this process end, so other processes cannot lease its buffers any more. Arrays that are alive can
    still be read. A process does not need to call `close` before it ends.
    """
    CONNECTION.close()
