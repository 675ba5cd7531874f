"""Calls Ray to find out the node of this process and the node's service, and to move arrays between nodes.

Without Ray, or before ``ray.init``, this module treats the machine as the only node.
"""

from __future__ import annotations

import itertools
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import poolbridge
from poolbridge._array.arrays import state_of
from poolbridge._sys.log import LOG
from poolbridge.ray import _nixl, _sharing
from poolbridge.ray._metadata import Kept, Shared

NAMESPACE: Final = "poolbridge"
OLDEST: Final = (2, 59)

# A transfer may take at most `_MOST_SECONDS`. By default, Ray itself ends a transfer earlier: after a minute, it calls
# `abort_transport`.
_MOST_SECONDS: Final = 300.0
# A receiver tries at most `_ATTEMPTS` times to get an array, because a `Mover` may be gone, or NIXL may fail.
_ATTEMPTS: Final = 3
# A `Mover` ends when it has got no call for `_IDLE_SECONDS`, and keeps no reference and no lease for a receiver.
_IDLE_SECONDS: Final = 600.0


def import_ray() -> Any:
    """Import Ray and return it.

    Raises
    ------
    UnavailableError
        Ray is missing, or this version of Ray lacks the interface for transports.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise poolbridge.UnavailableError(
            "ray is not installed for this Python: pip install 'poolbridge[ray]'"
        ) from error
    check_version(ray.__version__)
    return ray


def check_version(version: str) -> None:
    """Check that the transports of a version of Ray lose no objects, and that a program can use them outside actors.

    Raises
    ------
    UnavailableError
        This version of Ray is too old.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) < OLDEST:
        raise poolbridge.UnavailableError(
            f"ray {version} is too old: expected {'.'.join(map(str, OLDEST))} or later, whose transports lose no "
            "objects: pip install --upgrade 'poolbridge[ray]'"
        )


def _running() -> Any:
    """Return the module ``ray`` if this process takes part in a cluster; else None."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def make_manager() -> None:
    """Make Ray create this process's manager of transports now.

    Ray makes the manager when a thread first asks for it, and takes no lock. In an actor, two threads ask: one
    receives an array, and the other waits for the array. If both ask at the same time, each gets its own manager, and
    the array is lost.
    """
    ray = _running()
    if ray is not None:
        _ = ray._private.worker.global_worker.rdt_manager  # noqa: SLF001 - Ray has no public name for it


def node_id() -> str:
    """Return the id of this process's node; without Ray, the name of the machine."""
    ray = _running()
    return str(ray.get_runtime_context().get_node_id()) if ray is not None else socket.gethostname()


# The service of a node


def keeper_name(node: str) -> str:
    """Return the name of the actor that `start` has made on a node."""
    return f"keeper-{node}"


def service_path() -> str:
    """Return the socket path of this node's service: the path that the node's `Keeper` has; else the default path."""
    ray = _running()
    if ray is not None:
        try:
            keeper = ray.get_actor(keeper_name(node_id()), namespace=NAMESPACE)
        except ValueError:
            return poolbridge.default_path()
        try:
            return str(call(keeper.path.remote()))
        except ray.exceptions.RayActorError:
            pass  # the keeper was stopped at this moment
    return poolbridge.default_path()


def call(reference: Any) -> Any:
    """Return the result of a call to an actor of this package, or raise the poolbridge error that the actor raised."""
    ray = import_ray()
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, poolbridge.PoolbridgeError):
            raise type(error.cause)(*error.cause.args) from error  # a new one: `error` refers to its cause
        raise


# Movers


class Mover:
    """An actor that reads buffers of its node for receivers on other nodes.

    It also keeps references to arrays in Ray's object store. The first process that needs a node's mover makes it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, poolbridge.Client] = {}
        self._kept: dict[str, dict[int, Any]] = {}
        self._offered: dict[str, threading.Timer] = {}
        self._used = time.monotonic()
        threading.Thread(target=self._end_unused, name="poolbridge-mover", daemon=True).start()

    def read(self, one: Shared) -> np.ndarray[Any, Any]:
        """Return the elements of an array. Ray's object store carries them to the receiver."""
        return np.ascontiguousarray(state_of(self._lease(one)).array())

    def offer(self, one: Shared) -> _nixl.Offer | str:
        """Lease the buffer of an array for a receiver that reads through NIXL, and return the offer.

        If this node has no NIXL, return a text that says why. The receiver ends the lease by `done`. If the receiver
        dies first, the lease ends after `_MOST_SECONDS`.
        """
        if reason := _nixl.missing():
            return reason
        lease = self._lease(one)
        ticket = uuid.uuid4().hex
        made = _nixl.AGENT.offer(state_of(lease), ticket, *_sharing.span(lease))
        timer = threading.Timer(_MOST_SECONDS, self.done, [ticket, lease])  # the timer keeps the lease
        timer.daemon = True
        with self._lock:
            self._offered[ticket] = timer
        timer.start()
        return made

    def done(self, ticket: str, lease: poolbridge.Lease | None = None) -> None:
        """End the lease of an offer."""
        del lease
        with self._lock:
            timer = self._offered.pop(ticket, None)
        if timer is not None:
            timer.cancel()
            timer.args[1].release(force=True)  # type: ignore[index]

    def _lease(self, one: Shared) -> poolbridge.Lease:
        self._used = time.monotonic()
        lease = _sharing.again(lambda: self._lease_now(one))
        lease.wait()  # the content may not be complete: streams or a promise of the sender may still write it
        return lease

    def _lease_now(self, one: Shared) -> poolbridge.Lease:
        try:
            client = self._client(one.path)
        except poolbridge.ServiceNotRunningError as error:
            raise _sharing.lost(one) from error
        if client.epoch != one.epoch:
            raise _sharing.lost(one)
        return _sharing.lease(client, one)

    def keep(self, token: str, index: int, references: list[Any]) -> None:
        """Keep the reference to an array that a sender has put into Ray's object store."""
        self._used = time.monotonic()
        with self._lock:
            self._kept.setdefault(token, {})[index] = references[0]

    def kept(self, token: str, index: int) -> list[Any]:
        """Return a list of one element: the reference that `keep` has stored for an array."""
        self._used = time.monotonic()
        with self._lock:
            try:
                return [self._kept[token][index]]
            except KeyError:
                raise poolbridge.StaleError(f"array {index} of object {token} is gone: its mover has died") from None

    def drop(self, token: str) -> None:
        """Forget the references of an object."""
        with self._lock:
            self._kept.pop(token, None)

    def _client(self, path: str) -> poolbridge.Client:
        with self._lock:
            client = self._clients.get(path)
            if client is None or client.closed:
                client = self._clients[path] = poolbridge.connect(path)
            return client

    def _end_unused(self) -> None:
        while (left := self._used + _IDLE_SECONDS - time.monotonic()) > 0 or self._kept or self._offered:
            time.sleep(max(left, 1.0))
        ray = import_ray()
        ray.kill(ray.get_runtime_context().current_actor)


def mover(node: str) -> Any:
    """Return the mover of a node. Make a mover if the node has none."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return (
        ray.remote(num_cpus=0, max_concurrency=4)(Mover)
        .options(
            name=f"mover-{node}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote()
    )


class Transfer:
    """One transfer that this process receives. `abort` ends its waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._aborted = False
        self._end = time.monotonic() + _MOST_SECONDS

    def abort(self) -> None:
        """End the waits of the transfer."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()

    def wait(self, reference: Any) -> Any:
        """Wait until the object of a reference is ready, and return the object.

        Raises
        ------
        RequestCancelledError
            The transfer was aborted.
        WaitTimeoutError
            The transfer has taken more than `_MOST_SECONDS`.
        """
        future = reference.future()
        future.add_done_callback(self._notify)
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or future.done(), self._end - time.monotonic())
            self._check()
        return call(reference)

    def pause(self, seconds: float) -> None:
        """Wait for at most `seconds`.

        Raises
        ------
        RequestCancelledError, WaitTimeoutError
            See `wait`.
        """
        with self._changed:
            self._changed.wait(seconds)
            self._check()

    def _check(self) -> None:
        if self._aborted:
            raise poolbridge.RequestCancelledError(
                "Ray has aborted the transfer: its sender or its node is gone, or slow"
            )
        if time.monotonic() > self._end:
            raise poolbridge.WaitTimeoutError(f"the array has not come within {_MOST_SECONDS:g} s")

    def _notify(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()


def fetch(node: str, one: Shared | Kept, transfer: Transfer) -> np.ndarray[Any, Any]:
    """Get an array from another node: by that node's `Mover` (`Shared`), or from Ray's object store (`Kept`).

    Raises
    ------
    UnavailableError
        The node `node` is gone, or this process has no Ray.
    StaleError, NotFoundError
        The array is gone.
    RequestCancelledError, WaitTimeoutError
        See `Transfer.wait`.
    """
    if _running() is None:
        raise poolbridge.UnavailableError(
            f"{one} is on node {node}, and this process is in no cluster: ray.init() first"
        )
    if isinstance(one, Kept):
        (reference,) = _ask(node, lambda on: on.kept.remote(one.token, one.index), transfer)
        return np.asarray(transfer.wait(reference))
    return np.asarray(_ask(node, lambda on: on.read.remote(one), transfer))


def read_remote(
    node: str, one: Shared, transfer: Transfer, allocate: Callable[[int], poolbridge.Lease]
) -> poolbridge.Lease | str:
    """Read another node's array through NIXL into a buffer from `allocate`, and return the buffer's lease.

    If the other node has no NIXL, return a text that says why.

    Raises
    ------
    UnavailableError
        The sender's node is gone, or NIXL could not read.
    StaleError, NotFoundError
        The array is gone.
    RequestCancelledError, WaitTimeoutError
        See `Transfer.wait`.
    """
    if _running() is None:
        raise poolbridge.UnavailableError(
            f"{one} is on node {node}, and this process is in no cluster: ray.init() first"
        )
    for attempt in itertools.count(1):
        offer = _ask(node, lambda on: on.offer.remote(one), transfer)
        if isinstance(offer, str):
            return f"the sender's node: {offer}"
        try:
            lease = allocate(offer.nbytes)
            if offer.nbytes:
                _nixl.AGENT.read(offer, state_of(lease), transfer)
            _sharing.place(lease, one, offer.offset)
        except poolbridge.UnavailableError as error:
            if attempt == _ATTEMPTS:
                raise
            LOG.warning("ray: %s; tried again", error)
        else:
            return lease
        finally:
            mover(node).done.remote(offer.ticket)
    raise AssertionError


def _ask(node: str, question: Callable[[Any], Any], transfer: Transfer) -> Any:
    """Make the call `question` to the `Mover` of a node. If the mover has died, make a new mover and call it."""
    gone = import_ray().exceptions.RayActorError
    for attempt in itertools.count(1):
        try:
            return transfer.wait(question(mover(node)))
        except gone as error:
            if attempt == _ATTEMPTS:
                raise poolbridge.UnavailableError(
                    f"the array cannot be moved: no mover lives on node {node}, whose end it may be: {error}"
                ) from error
            LOG.warning("ray: the mover of node %s is gone, and is made again", node)
    raise AssertionError


def keep(token: str, index: int, array: Any) -> None:
    """Put an array into Ray's object store, and give the reference to the `Mover` of this node.

    Raises
    ------
    UnavailableError
        This process has no Ray.
    """
    ray = _running()
    if ray is None:
        raise poolbridge.UnavailableError("fallback=True needs a cluster: ray.init() first")
    call(mover(node_id()).keep.remote(token, index, [ray.put(array)]))


def drop(token: str) -> None:
    """Tell the `Mover` of this node to forget the references that `keep` has stored for the object `token`."""
    if _running() is not None:
        mover(node_id()).drop.remote(token)
