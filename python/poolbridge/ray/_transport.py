"""Has the class whose methods Ray calls to pass arrays from process to process. This module does not import Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

import poolbridge
from poolbridge._array import sources as _sources
from poolbridge._array.arrays import state_of
from poolbridge._client import makers as _makers
from poolbridge._memory.kinds import ON_CPU
from poolbridge._memory.tensor import ELEMENT_TYPES
from poolbridge._order import fences as _fences
from poolbridge._session.lease_state import LeaseState
from poolbridge._sys.log import LOG
from poolbridge.ray import _cluster, _nixl, _sharing
from poolbridge.ray._connection import CONNECTION, DEFAULT_POOL
from poolbridge.ray._counts import COUNTS
from poolbridge.ray._metadata import Kept, Metadata, Shared
from poolbridge.ray._sharing import again

# One of these errors is raised if a sender cannot share an array, or if a receiver cannot lease the array's buffer.
# Then with ``fallback=True``, Ray's object store carries the array.
_CANNOT: Final = (
    poolbridge.InvalidArgumentError,
    poolbridge.NotFoundError,
    poolbridge.PoolLimitError,
    poolbridge.DeviceMemoryError,
    poolbridge.AccessDeniedError,
    poolbridge.ClosedError,
    poolbridge.ServiceNotRunningError,
    poolbridge.UnavailableError,
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a transport; see `register`."""

    library: poolbridge.Library = "numpy"
    pool: str = DEFAULT_POOL
    fallback: bool = False
    timeout: float = 10.0
    nixl: bool | None = None


class Transport:
    """Passes arrays of one library between processes. Each process that uses the transport has one such object.

    The class has the methods of ``ray.experimental.TensorTransportManager``. Ray's documentation of that class says
    when Ray calls each method.
    """

    options: ClassVar[Options] = Options()

    def __init_subclass__(cls, **given: Any) -> None:
        """Make Ray's manager of transports in this process, before an array arrives.

        In each actor, Ray unpickles the subclass of `Transport` before an array arrives, and Python then calls this
        method.
        """
        super().__init_subclass__(**given)
        _cluster.make_manager()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # For each object that this process has sent, by the object's id: the object's metadata, and the functions that
        # `garbage_collect` calls. As long as these functions exist, they keep the object's leases.
        self._sent: dict[str, tuple[Metadata, list[Callable[[], None]]]] = {}
        # The transfers that this process is receiving, by the id of the object that they transfer.
        self._receiving: dict[str, list[_cluster.Transfer]] = {}

    # What Ray asks

    def tensor_transport_backend(self) -> str:
        """Return the name that Ray uses for the transport in its messages."""
        return "POOLBRIDGE"

    @staticmethod
    def is_one_sided() -> bool:
        """Return True: a receiver leases the sender's buffer without any action of the sender."""
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """Return True: Ray can abort a transfer by `abort_transport`, which ends every wait of the transfer."""
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:  # noqa: ARG002
        """Return True for every actor. An actor on a node without a service gets an error when it sends or receives."""
        return True

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Any:  # noqa: ARG002
        """Return None: there is no communicator."""
        return None

    # Sending

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: Sequence[Any]) -> Metadata:
        """Share the arrays of an object, and keep their buffers until Ray calls `garbage_collect`.

        Raises
        ------
        PoolbridgeError
            An array cannot be shared, and the transport has no ``fallback``.
        """
        with self._lock:
            if obj_id in self._sent:  # Ray repeats a task whose answer was lost
                return self._sent[obj_id][0]
        ends: list[Callable[[], None]] = []
        try:
            arrays = [self._offer(array, obj_id, index, ends) for index, array in enumerate(rdt_object)]
        except BaseException:
            _end(ends)
            raise
        meta = [(array.shape, array.dtype) for array in rdt_object]
        devices = {"cuda" if _sources.on_device(array) else "cpu" for array in rdt_object}
        if len(devices) > 1:
            _end(ends)
            raise poolbridge.InvalidArgumentError(
                "the object has arrays on the CPU and on a GPU: return them as two objects, each by a method of its own"
            )
        made = Metadata(meta, next(iter(devices), None), _cluster.node_id(), self.options.library, arrays)
        with self._lock:
            self._sent[obj_id] = made, ends
        return made

    def _offer(self, array: Any, obj_id: str, index: int, ends: list[Callable[[], None]]) -> Shared | Kept:
        try:
            return again(lambda: self._share(array, f"ray/{obj_id}/{index}", ends))
        except _CANNOT as error:
            if not self.options.fallback or _sources.on_device(array):
                raise
            reason = f"{type(error).__name__}: {error}"
        if isinstance(array, np.ndarray):
            host, dtype = array, array.dtype.name
        else:
            source = _sources.source_of(array)
            host, dtype = source.on_host().copy(), source.element.name
        _cluster.keep(obj_id, index, host)
        ends.append(partial(_cluster.drop, obj_id))
        COUNTS.add("sent_by_ray", host.nbytes, f"array {index} of {obj_id}", reason)
        return Kept(obj_id, index, dtype, reason)

    def _share(self, array: Any, name: str, ends: list[Callable[[], None]]) -> Shared:
        client, pool = CONNECTION.pool(self.options.pool)
        source = _sources.source_of(array)
        found = _sharing.find(client, source)
        if isinstance(found, str):
            if (pool.kind in ON_CPU) != (source.ordinal is None):
                where = "the CPU" if source.ordinal is None else f"GPU {source.ordinal}"
                raise poolbridge.InvalidArgumentError(
                    f"the array is in memory of {where}, and pool {pool.name!r} is of kind {pool.kind!r}: register a "
                    "transport with a pool of such memory, or move the array first"
                )
            client, lease = CONNECTION.allocate(source.shape, source.element.name, pool.name, self.options.timeout)
            state = state_of(lease)
            description = state.description
            try:
                lease.copy_from(array)
                lease.publish(name)
            except BaseException:
                lease.release(failed=True, force=True)
                raise
            ends.append(partial(_unpublish, client, name))
            COUNTS.add("sent_copied", description.nbytes, name, found)
        else:
            state, description = found
            if state.write:
                stream = _sharing.stream_of(array, self.options.library)
                if stream is not None:  # the method of the actor may have used others, so this does not name all
                    _fences.before_use(state, stream)
                poolbridge.Lease(client._run, state).publish(name)  # noqa: SLF001
                ends.append(partial(_unpublish, client, name))
            COUNTS.add("sent_in_place", description.nbytes, name)
        ends.append(partial(_let_go, state))
        return _sharing.describe(client, state, description)

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: Any) -> None:  # noqa: ARG002 - Ray's
        """Release the buffers of an object. The service frees a buffer when no receiver uses it any more."""
        with self._lock:
            _, ends = self._sent.pop(obj_id, (None, []))
        _end(ends)

    def send_multiple_tensors(
        self,
        tensors: Any,  # noqa: ARG002
        tensor_transport_metadata: Any,  # noqa: ARG002
        communicator_metadata: Any,  # noqa: ARG002
    ) -> None:
        """Raise `UnsupportedError`: each receiver leases the sender's buffer without any action of the sender."""
        raise poolbridge.UnsupportedError("a sender has nothing to do: receivers lease its buffers")

    # Receiving

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Metadata,
        communicator_metadata: Any,  # noqa: ARG002
        target_buffers: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Return the arrays of an object. They use the sender's memory if both processes have the same service.

        Raises
        ------
        StaleError, NotFoundError
            A buffer is gone: its sender or the service has ended. The message names the array.
        PoolbridgeError
            This process cannot receive an array, and the transport has no ``fallback``.
        """
        if target_buffers:
            raise poolbridge.UnsupportedError(
                "arrays are received in place, not into buffers of the receiver: leave out ray's set_target_for_ref, "
                "and copy the array"
            )
        transfer = _cluster.Transfer()
        with self._lock:
            self._receiving.setdefault(obj_id, []).append(transfer)
        try:
            return [self._receive(one, tensor_transport_metadata, transfer) for one in tensor_transport_metadata.arrays]
        finally:
            with self._lock:
                waiting = self._receiving[obj_id]
                waiting.remove(transfer)
                if not waiting:
                    del self._receiving[obj_id]

    def _receive(self, one: Shared | Kept, meta: Metadata, transfer: _cluster.Transfer) -> Any:
        library: Any = meta.library
        if isinstance(one, Kept):
            array = _cluster.fetch(meta.node, one, transfer)
            COUNTS.add("received_by_ray", array.nbytes, f"array {one.index} of {one.token}", one.reason)
            return _adopt(array, one.dtype, library)
        here = _cluster.node_id() == meta.node
        try:
            lease = again(lambda: self._lease(one, here=here))
            if not isinstance(lease, str):
                COUNTS.add("received_in_place", lease.nbytes, one)
                return _array(lease, library)
            reason = lease
            if here:
                raise poolbridge.UnavailableError(
                    f"{reason}, though both processes are on node {meta.node}: set one POOLBRIDGE_SOCKET for all "
                    "processes of a node, or use poolbridge.ray.start"
                )
        except _CANNOT as error:
            if here and not self.options.fallback:
                raise
            reason = f"{type(error).__name__}: {error}"
        if not here:
            reason = "the sender is on another node"
        if one.kind not in ON_CPU:
            raise poolbridge.UnsupportedError(
                f"{one} is memory of a GPU, and movers carry memory of the CPU only: keep sender and receiver on one "
                "node, or send a copy on the CPU"
            )
        if not here:
            read = self._read(one, meta, transfer)
            if not isinstance(read, str):
                COUNTS.add("received_by_nixl", read.nbytes, one, reason)
                return _array(read, library)
            reason = f"{reason}; {read}"
        bits = _cluster.fetch(meta.node, one, transfer)
        COUNTS.add("received_moved", bits.nbytes, one, reason, loud=here)
        return _adopt(bits, one.dtype, library)

    def _lease(self, one: Shared, *, here: bool) -> poolbridge.Lease | str:
        """Lease the buffer of an array. If it is a buffer of another service, return a text that says so."""
        try:
            client = CONNECTION.client()
        except poolbridge.ServiceNotRunningError as error:
            if here and _cluster.service_path() == one.path:
                raise _sharing.lost(one) from error
            raise
        if client.epoch == one.epoch:
            return _sharing.lease(client, one)
        if here:
            client.stats()  # raises if the service has ended, and then `again` connects to the next service
            if client.path == one.path:
                raise _sharing.lost(one)
        return f"the service at {client.path} is another one than the sender's at {one.path}"

    def _read(self, one: Shared, meta: Metadata, transfer: _cluster.Transfer) -> poolbridge.Lease | str:
        """Read an array of another node through NIXL; or return a text that says why the object store must carry it."""
        if self.options.nixl is False:
            return "the transport was registered with nixl=False"
        if one.kind != "host":
            reason = f"NIXL reads pools of kind 'host', and the sender's is of kind {one.kind!r}"
        else:
            reason = _nixl.missing() or self._no_pool()
        read = reason or _cluster.read_remote(meta.node, one, transfer, self._destination)
        if isinstance(read, str) and self.options.nixl:
            raise poolbridge.UnavailableError(f"{one} cannot be read with nixl=True: {read}")
        return read

    def _no_pool(self) -> str:
        """Return a text that says why NIXL cannot read into a pool of this node; an empty text if it can."""
        try:
            _, pool = again(lambda: CONNECTION.pool(self.options.pool))
        except (poolbridge.ServiceNotRunningError, poolbridge.NotFoundError) as error:
            return f"{type(error).__name__}: {error}"
        return "" if pool.kind == "host" else f"NIXL reads into pools of kind 'host', and {pool.name!r} is no such pool"

    def _destination(self, nbytes: int) -> poolbridge.Lease:
        _, lease = again(lambda: CONNECTION.allocate(nbytes, "uint8", self.options.pool, self.options.timeout))
        return lease

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:  # noqa: ARG002
        """Abort the transfers of an object in this process: each transfer raises `RequestCancelledError`."""
        with self._lock:
            transfers = list(self._receiving.get(obj_id, ()))
        for transfer in transfers:
            transfer.abort()


# What ends with an object


def _let_go(state: LeaseState) -> None:
    """Drop the reference that one of Ray's objects has to a lease. The lease ends when no array uses it any more."""
    del state


def _unpublish(client: poolbridge.Client, name: str) -> None:
    if not client.closed:  # if the client is closed, the name is gone
        client.unpublish(name)


def _end(ends: list[Callable[[], None]]) -> None:
    while ends:
        end = ends.pop()
        try:
            end()
        except poolbridge.PoolbridgeError as error:
            LOG.debug("ray: %s", error)


# Arrays


def _array(lease: poolbridge.Lease, library: poolbridge.Library) -> Any:
    if library != "numpy":
        return _makers.array_of(lease, library)
    array = np.asarray(lease)
    array.flags.writeable = False  # also if NIXL has written the array in this process
    return array


def _adopt(bits: np.ndarray[Any, Any], dtype: str, library: str) -> Any:
    """Make an array of `library` from `bits`, an array from Ray's object store.

    An array of NumPy uses the memory of the object store, without a copy. Of a type that NumPy lacks, `bits` has the
    bits.
    """
    beyond = dtype in ELEMENT_TYPES and not ELEMENT_TYPES[dtype].in_numpy
    if library == "numpy":
        return bits
    if library == "torch":
        import torch

        made = torch.from_numpy(bits.copy())
        return made.view(getattr(torch, dtype)) if beyond else made
    if library == "jax":
        import jax

        made = jax.numpy.asarray(bits)
        return made.view(getattr(jax.numpy, dtype.removesuffix("_x2"))) if beyond else made
    raise poolbridge.UnsupportedError(f"{library} has no arrays in memory of the CPU: send an array of NumPy")
