"""Makes sure that each node of a cluster has a service."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

import poolbridge
from poolbridge._client.shared_service import START_SECONDS
from poolbridge._sys.error_texts import shown
from poolbridge._sys.log import LOG
from poolbridge.ray import _cluster
from poolbridge.ray._connection import DEFAULT_POOL

Pools = Mapping[str, Mapping[str, Any]]

_POOLS: Final[Pools] = MappingProxyType({DEFAULT_POOL: {"kind": "host", "max_bytes": "1GiB"}})
_KEYS: Final = {"pools", "path", "options"}


class Keeper:
    """An actor, one on each node, that keeps the node's service running.

    The keeper starts a service if none listens on the node, and makes missing pools. If the service ends, the keeper
    starts a new one.
    """

    def __init__(self, pools: Pools, path: str | None, options: Sequence[str]) -> None:
        self._pools = {name: dict(settings) for name, settings in pools.items()}
        self._path = path or poolbridge.default_path()
        self._options = tuple(options)
        self._lock = threading.Lock()
        self._service: poolbridge.Service | None = None
        self._made: set[str] = set()

    def path(self, pools: Pools | None = None) -> str:
        """Make the keeper's pools and `pools` in the node's service, if they are missing. Return the socket path."""
        with self._lock:
            if pools is not None:
                self._pools |= {name: dict(settings) for name, settings in pools.items()}
            with self._connect() as client:
                there = {pool.name for pool in client.pools()}
                for name, settings in self._pools.items():
                    client.create_pool(name, **settings, exist_ok=True)
                    if name not in there:
                        self._made.add(name)
            return self._path

    def service_pid(self) -> int | None:
        """Return the process id of the service that this actor has started; None if this actor has started none."""
        return self._service.pid if self._service is not None else None

    def stop(self) -> None:
        """End the service that this actor has started.

        If another program has started the service, destroy only the pools that this actor has made.
        """
        with self._lock:
            if self._service is not None:
                self._service.stop()
                return
            try:
                with poolbridge.connect(self._path) as client:
                    for name in self._made:
                        client.destroy_pool(name)
            except (poolbridge.ServiceNotRunningError, poolbridge.ClosedError, poolbridge.NotFoundError):
                pass  # the pools are gone

    def _connect(self) -> poolbridge.Client:
        try:
            return poolbridge.connect(self._path)
        except (poolbridge.ServiceNotRunningError, poolbridge.ClosedError):
            pass
        if self._service is not None:
            LOG.warning("ray: the service at %s has ended, and is started again", self._path)
            self._service.stop()
        Path(self._path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._service = poolbridge.serve(path=self._path, options=self._options).start()
        except poolbridge.SocketInUseError:  # another keeper of this machine starts the service at this moment
            return poolbridge.connect(self._path, wait=START_SECONDS)
        return poolbridge.connect(self._path)


class Services:
    """The services of a cluster's nodes. `start` makes this object. A ``with`` statement calls `stop` at its end.

    Attributes
    ----------
    paths
        The socket path of each node's service, by the node's id.
    """

    def __init__(self, paths: Mapping[str, str], keepers: Sequence[Any]) -> None:
        self.paths = dict(paths)
        self._keepers = list(keepers)

    def stop(self) -> None:
        """End the services that `start` has started. Idempotent.

        In a service that another program has started, destroy only the pools that `start` has made.
        """
        keepers, self._keepers = self._keepers, []
        _stop(keepers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<poolbridge.ray.Services of {len(self.paths)} nodes>"


def start(
    *,
    pools: Pools = _POOLS,
    path: str | None = None,
    options: Sequence[str] = (),
    nodes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Services:
    """Make sure that each node of the cluster has a service with the pools `pools`.

    An actor on each node starts a service if none listens on the node, and starts a new service if the service ends.
    The processes of a node find the service through this actor. The actors end with this process, and the services that
    the actors have started end with the actors.

    Parameters
    ----------
    pools
        The pools by name, each with the arguments of `poolbridge.Client.create_pool`; by default a pool ``"ray"`` of
        kind ``host`` with at most 1 GiB.
    path
        Path of the socket on each node; None: the path that `poolbridge.default_path` returns on the node.
    options
        Further options of ``poolsvc serve``, for the services that the actors start.
    nodes
        The nodes by id. Each node can have its own `pools`, `path` and `options`, which replace the arguments above.
        None: all nodes that are alive.

    Returns
    -------
    Services
        A context manager. At its end, it stops the services that the actors have started.

    Raises
    ------
    UnavailableError
        Ray is missing or too old, or this process is in no cluster.
    NotFoundError
        An id in `nodes` is not the id of a node that is alive.
    AlreadyExistsError
        A service has a pool of the same name with other settings; the message says which settings differ.
    ServiceStartError
        A service could not be started.
    InvalidArgumentError
        `pools` or `nodes` is not as described above.
    """
    _check_pools(pools)
    ray = _cluster.import_ray()
    if not ray.is_initialized():
        raise poolbridge.UnavailableError("this process is in no cluster: ray.init() first")
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    wanted: Mapping[str, Mapping[str, Any]] = {node: {} for node in alive} if nodes is None else nodes
    for node, settings in wanted.items():
        if node not in alive:
            raise poolbridge.NotFoundError(f"the cluster has no node {shown(node)}: it has {', '.join(alive)}")
        if not set(settings) <= _KEYS:
            raise poolbridge.InvalidArgumentError(
                f"node {node} has settings {', '.join(sorted(set(settings) - _KEYS))}: expected "
                f"{', '.join(sorted(_KEYS))}"
            )
        _check_pools(settings.get("pools", {}))
    common = {"pools": pools, "path": path, "options": options}
    made: list[Any] = []
    asked = {}
    try:
        for node, settings in wanted.items():
            given = common | dict(settings)
            keeper, new = _keeper(ray, node, **given)
            if new:
                made.append(keeper)
            asked[node] = keeper.path.remote({name: dict(of) for name, of in given["pools"].items()})
        return Services({node: str(_cluster.call(path)) for node, path in asked.items()}, made)
    except BaseException:
        _stop(made)
        raise


def _check_pools(pools: Pools) -> None:
    create = inspect.signature(poolbridge.Client.create_pool)
    for name, settings in pools.items():
        try:
            create.bind(None, name, exist_ok=True, **settings)
        except TypeError as error:
            raise poolbridge.InvalidArgumentError(
                f"pool {shown(name)}: {error}: expected the arguments of Client.create_pool, such as "
                "{'kind': 'host', 'max_bytes': '1GiB'}"
            ) from None


def _keeper(ray: Any, node: str, *, pools: Pools, path: str | None, options: Sequence[str]) -> tuple[Any, bool]:
    """Return the actor `Keeper` of a node, and whether this call has made the actor."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    name = _cluster.keeper_name(node)
    kind = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Keeper).options(
        name=name,
        namespace=_cluster.NAMESPACE,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    try:
        return ray.get_actor(name, namespace=_cluster.NAMESPACE), False
    except ValueError:
        pass
    try:
        return kind.remote({name: dict(of) for name, of in pools.items()}, path, tuple(options)), True
    except ValueError:  # another process has just made the keeper
        return ray.get_actor(name, namespace=_cluster.NAMESPACE), False


def _stop(keepers: Sequence[Any]) -> None:
    ray = _cluster.import_ray()
    if not ray.is_initialized():
        return  # the actors have ended with the cluster
    for keeper in keepers:
        try:
            _cluster.call(keeper.stop.remote())
        except ray.exceptions.RayActorError as error:
            LOG.debug("ray: a keeper is gone: %s", error)
        ray.kill(keeper)
