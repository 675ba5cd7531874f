"""Connects a worker to its machine's service, describes buffers for other workers, and leases described buffers."""

from __future__ import annotations

import math
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal
from weakref import WeakSet, ref

import msgspec
import numpy as np

from poolbridge._array import owners as _owners, sources as _sources
from poolbridge._array.arrays import description_of, state_of
from poolbridge._client import makers as _makers
from poolbridge._client.base_client import session_of
from poolbridge._client.client import Client
from poolbridge._client.connect import connect
from poolbridge._client.lease import BaseLease, Lease
from poolbridge._memory import tensor as _tensor
from poolbridge._order import fences as _fences
from poolbridge._session.lease_state import LeaseState, Token
from poolbridge._sys.literals import Kind
from poolbridge._wire.messages import Tensor
from poolbridge.dask._counts import Counts, Path
from poolbridge.errors import InvalidArgumentError, NotFoundError, PoolbridgeError, ServiceStalledError

LEASE: Final = "lease"
"""The value of the key ``library`` in the description of a lease. For an array, this value is the library's name."""

ELSEWHERE: Final = "the receiver has another service"
WITHOUT: Final = "the receiver names no service"
NOT_LEASED: Final = "the array did not live in a pool"
SERVICE_LOST: Final = "the service is gone, or does not answer"
ELEMENTS: Final = "elements that cannot be described"
REFUSED: Final = "the receiver could not lease the buffer"
FOREIGN: Final = "in a write lease of another client, or a frame of a channel"

_REFUSED: Final = 64  # how many refused buffers a worker remembers: Dask asks for each of them again soon

Array = np.ndarray[Any, Any]


class TransferFailedError(ConnectionError):
    """The worker cannot lease a buffer that another worker described. Dask then fetches the bytes."""


@dataclass(frozen=True)
class Options:
    """The arguments of `PoolbridgePlugin`; see the docstring of that class."""

    pool: str
    path: str | None
    start: bool
    max_bytes: int | str | None
    kind: Kind
    copy_from: int | None
    timeout: float
    missing: Literal["error", "ignore"] = "error"


class Link:
    """The connection of one worker to its service. Thread-safe.

    Parameters
    ----------
    options
        The arguments of the plugin.
    counts
        The counts of this worker's arrays.
    changed
        `Link` calls this function, from any thread, when `says` has changed. The function must not wait.
    drop
        `take` calls this function, from any thread, if this worker could not use a description. The argument is the
        address of the worker that sent the description. That worker still waits for a confirmation, so the function
        must close the connection to that worker. The function must not wait.
    """

    def __init__(
        self, options: Options, counts: Counts, changed: Callable[[], object], drop: Callable[[str], object]
    ) -> None:
        self.options = options
        self.counts = counts
        self._changed = changed
        self.drop = drop
        self._lock = threading.RLock()  # hold this lock only for a short time: Dask's event loop waits for the lock
        self._connecting = threading.Lock()
        self._copies: dict[int, tuple[ref[Array], Array]] = {}
        self._refused: deque[tuple[int, int]] = deque(maxlen=_REFUSED)
        self._ended = False
        self._stalled = False  # whether the service did not answer a request
        self._client = self._connect()
        _LINKS.add(self)

    def _connect(self) -> Client:
        options = self.options
        client = connect(options.path, timeout=options.timeout, start=options.start)
        try:
            if options.max_bytes is None:
                try:
                    client.open_pool(options.pool)
                except NotFoundError as error:
                    raise NotFoundError(f"{error}: with max_bytes, PoolbridgePlugin makes it") from None
            else:
                client.create_pool(options.pool, kind=options.kind, max_bytes=options.max_bytes, exist_ok=True)
        except BaseException:
            client.close()
            raise
        return client

    @property
    def service(self) -> str | None:
        """The epoch of the service whose buffers this worker can lease; None: it is gone or does not answer."""
        return None if self._stalled or self._client.closed else self._client.epoch

    @property
    def says(self) -> dict[str, Any] | None:
        """What this worker tells sending workers: its service's epoch, and the buffers that it could not lease."""
        service = self.service
        return None if service is None else {"service": service, "refused": list(self._refused)}

    def client(self) -> Client:
        """Return the client. If the client's service is gone, first connect to the service that listens now."""
        if not self._lost():
            return self._client
        with self._connecting:
            if self._lost():
                client = self._connect()
                with self._lock:
                    self._copies.clear()
                    self._refused.clear()  # these ids are of the old service; a new service uses the ids again
                    self._client, self._stalled = client, False
                self._changed()
        return self._client

    def _lost(self) -> bool:
        return self._client.closed and not self._ended

    def renew(self) -> None:
        """Connect again if the service is gone. If the service did not answer an earlier request, send a request.

        `renew` may take a long time.

        Raises
        ------
        PoolbridgeError
            There is no service, or the service does not answer.
        """
        client = self.client()
        if self._stalled:
            client.stats()
            self._stalled = False
            self._changed()

    def close(self) -> None:
        """Close the connection."""
        _LINKS.discard(self)
        with self._connecting:
            self._ended = True
            self._copies.clear()
            self._client.close()

    # Sending

    def describe(self, given: Any, library: str, recipient: object) -> dict[str, Any] | str:
        """Describe an array or a lease for the worker that receives it.

        Parameters
        ----------
        given, library
            The array and the name of its library, which is NumPy, PyTorch, CuPy or JAX; or a lease and `LEASE`.
        recipient
            The receiver's `says`; None: the receiver has no service, or is no worker with the plugin.

        Returns
        -------
        dict or str
            The description; or a text that says why Dask must carry the bytes. In both cases, `describe` counts the
            array.
        """
        path: Path = "sent_by_dask"
        detail = reason = ""
        described: dict[str, Any] | str
        try:
            described, copied = self._described(given, library, recipient)
        except PoolbridgeError as error:
            described, detail = type(error).__name__, str(error)
        else:
            path, reason = ("sent_copied", NOT_LEASED) if copied else ("sent_in_place", "")
        if isinstance(described, str):
            path, reason = "sent_by_dask", described
        self.counts.add(
            path, given.nbytes, reason, detail, loud=path == "sent_by_dask" and reason not in {ELSEWHERE, WITHOUT}
        )
        return described

    def _described(self, given: Any, library: str, recipient: object) -> tuple[dict[str, Any] | str, bool]:
        """Return the description of `given`, or the reason why there is none; and whether `given` was copied for it."""
        service, copied = self.service, False
        if service is None:
            return SERVICE_LOST, copied
        if not isinstance(recipient, dict):
            return WITHOUT, copied
        if recipient["service"] != service:
            return ELSEWHERE, copied
        with self._lock:
            found = self._find(given, library)
            if found == NOT_LEASED and library == "numpy" and self._copies_of(given):
                given, copied = self._copy(given)
                found = self._find(given, library)
            if isinstance(found, str):
                return found, copied
            state, layout = found
            if state.session.closed or state.session.core.epoch.hex() != service:
                return SERVICE_LOST, copied
            if state.consumer is not None or (state.write and state.session is not session_of(self._client)):
                return FOREIGN, copied
            buffer = {"buffer": state.grant.buffer, "generation": state.grant.generation}
            if tuple(buffer.values()) in map(tuple, recipient["refused"]):
                return REFUSED, copied
            if state.write:
                self._complete(state)
            return layout | buffer | {"service": service, "library": library, "nbytes": given.nbytes}, copied

    def _find(self, given: Any, library: str) -> tuple[LeaseState, dict[str, Any]] | str:
        """Return the lease that `given` lives in, and the place of `given` in the buffer.

        If `given` cannot be described, return a text that says why.
        """
        if library == LEASE:
            state = state_of(given)
            state.check_usable()
            return state, _layout(state.description)
        if library == "numpy":
            if given.dtype.kind == "V" or given.dtype.hasobject:
                return ELEMENTS
            found = self._state(given)
            offset = None if found is None else _owners.offset_in(found, _address(given))
            if found is None or offset is None:
                return NOT_LEASED
            strides, dtype = given.strides, given.dtype.str
            return found, {"offset": offset, "shape": given.shape, "strides": strides, "dtype": dtype}
        try:
            source = _sources.source_of(given)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:  # e.g. a tensor that requires a gradient
            return f"{library} does not export the array: {error}"
        found = _owners.owner(session_of(self._client), source.array, source.address)
        offset = None if found is None or found.released else _owners.offset_in(found, source.address)
        if found is None or offset is None:
            return NOT_LEASED
        return found, _layout(_sources.describe(found, source, source.element, offset))

    def holds(self, array: Array) -> bool:
        """Whether an array lives in a lease of this worker's service."""
        with self._lock:
            state = self._state(array)
            return state is not None and not state.session.closed and state.session.core.epoch.hex() == self.service

    def _state(self, array: Array) -> LeaseState | None:
        """Return the lease that an array lives in; None if the array lives in no lease, or the lease has ended."""
        state = _owners.owner(session_of(self._client), array, _address(array))
        return None if state is None or state.released else state

    def _complete(self, state: LeaseState) -> None:
        """Turn a write lease into a read lease, so that other workers can lease the buffer, too."""
        name = f"dask-{uuid.uuid4().hex}"
        client = self._client
        Lease(client._run, state).publish(name)  # noqa: SLF001
        client.unpublish(name)
        state.name = None

    # Copies of arrays that are in no lease

    def _copies_of(self, array: Array) -> bool:
        wanted = self.options.copy_from
        return wanted is not None and array.nbytes >= wanted and 0 not in array.strides

    def _copy(self, array: Array) -> tuple[Array, bool]:
        """Return a copy of `array` in the pool, and whether this call made it. The copy lives as long as `array`."""
        known = self._copies.get(id(array))
        if known is not None and known[0]() is array:
            return known[1], False
        copy = self._empty(self._client, array.shape, array.dtype, fortran=array.flags.fnc, timeout=0.0)
        copy[...] = array
        key = id(array)
        self._copies[key] = (ref(array, partial(self._forget, key)), copy)
        return copy, True

    def _forget(self, key: int, gone: ref[Array]) -> None:
        known = self._copies.get(key)
        if known is not None and known[0] is gone:
            del self._copies[key]

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, timeout: float | None = 0.0) -> Array:
        """Make an array in a new buffer of the pool. The content of the array is undefined.

        Raises
        ------
        PoolbridgeError
            The pool has no free memory, or the service is gone and this worker cannot connect again.
        """
        return self._empty(self.client(), shape, dtype, fortran=False, timeout=timeout)

    def _empty(
        self, client: Client, shape: tuple[int, ...], dtype: np.dtype[Any], *, fortran: bool, timeout: float | None
    ) -> Array:
        pool = self.options.pool
        if not fortran and _is_element(dtype):
            return np.asarray(client.allocate(shape, dtype, pool=pool, timeout=timeout))
        nbytes = dtype.itemsize * math.prod(shape)
        block = np.asarray(client.allocate(nbytes, "uint8", pool=pool, timeout=timeout))
        return np.ndarray(shape, dtype, block, order="F" if fortran else "C")

    # Receiving

    def take(self, description: dict[str, Any]) -> Any:
        """Lease the buffer that another worker described, and return the array in it. The array keeps the lease.

        Raises
        ------
        TransferFailedError
            This worker cannot lease the buffer. From now on, `says` has the buffer, so other workers do not describe
            the buffer to this worker any more.
        """
        nbytes = description["nbytes"]
        try:
            lease = self._client.lease(description["buffer"], description["generation"])
            taken = _taken(lease, description)
        except Exception as error:  # after any error except a TransferFailedError, Dask waits for ever
            self._refused.append((description["buffer"], description["generation"]))
            self._stalled = self._stalled or isinstance(error, ServiceStalledError)
            self.counts.add("failed", nbytes, f"{type(error).__name__} when it was received", error, loud=True)
            self._changed()
            raise TransferFailedError(f"the buffer that another Dask worker sent cannot be leased: {error}") from error
        self.counts.add("received_in_place", nbytes)
        return taken

    def adopt(self, elements: Array, dtype: str, pool: str) -> Any:
        """Make a lease of `elements`, which Dask carried to this worker. At the sender, they were in a lease.

        Returns
        -------
        Lease or numpy.ndarray
            A read lease of a copy in the pool `pool`, or in the plugin's pool if there is no pool `pool`. `elements`
            itself if the pool has no free memory, or if there is another error of poolbridge.
        """
        client = self._client
        try:
            try:
                lease = client.allocate(elements.shape, dtype, pool=pool)
            except NotFoundError:
                lease = client.allocate(elements.shape, dtype, pool=self.options.pool)
            as_numbers(lease).copy_from(elements)
            self._complete(state_of(lease))
        except PoolbridgeError as error:
            self.counts.degraded(type(error).__name__, error)
            return elements
        return lease


def as_numbers(lease: BaseLease) -> Any:
    """Return the lease, or a view of its bytes if an element is several numbers, which no array of NumPy has."""
    return lease.view(dtype="uint8") if description_of(lease).element.packed else lease


_LINKS: WeakSet[Link] = WeakSet()


def take(description: dict[str, Any], sender: str) -> Any:
    """Return the array that another worker described.

    If a worker of this process has the service of the described buffer, this worker leases the buffer.

    Raises
    ------
    TransferFailedError
        See `Link.take`. Dask treats this error as a failure of the network, and asks for the data again.
    """
    links = list(_LINKS)
    try:
        for link in links:
            if link.service == description["service"]:
                return link.take(description)
        raise TransferFailedError("the buffer that another Dask worker sent is of a service that this process has left")
    except TransferFailedError:
        for link in links:
            link.drop(sender)
        raise


def adopt(elements: Array, dtype: str, pool: str) -> Any:
    """Make a lease of `elements`, which Dask carried from a lease of another worker; see `Link.adopt`.

    Returns
    -------
    Lease or numpy.ndarray
        The lease. If no worker in this process has a service: `elements` itself.
    """
    for link in list(_LINKS)[:1]:
        return link.adopt(elements, dtype, pool)
    return elements


def count_moved(nbytes: int, reason: str) -> None:
    """Count an array whose bytes Dask carried to this process from a worker with the plugin."""
    for link in list(_LINKS)[:1]:
        link.counts.add("received_by_dask", nbytes, reason)


def _is_element(dtype: np.dtype[Any]) -> bool:
    """Whether poolbridge has an element type for `dtype`. If not, `Link` puts the elements into a buffer of bytes."""
    try:
        _tensor.element_type(dtype)
    except InvalidArgumentError:
        return False
    return True


def _layout(description: _tensor.Description) -> dict[str, Any]:
    return {"tensor": msgspec.structs.asdict(description.to_wire())}


def _taken(lease: Lease, description: dict[str, Any]) -> Any:
    state = state_of(lease)
    if "tensor" in description:
        described = _tensor.from_wire(Tensor(**description["tensor"]), state.grant.nbytes)
        if not described.layout_bytes:  # otherwise the lease knows its arrays
            state.description = described
        library = description["library"]
        return lease if library == LEASE else _makers.array_of(lease, library)
    _fences.before_cpu(state)
    block, strides = _block(state), description["strides"]
    return np.ndarray(description["shape"], description["dtype"], block, description["offset"], strides)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _block(state: LeaseState) -> Array:
    """Make an array of all bytes of a buffer. The array keeps the lease."""
    token = Token(state)
    token.__array_interface__ = {
        "version": 3,
        "shape": (state.grant.nbytes,),
        "typestr": "|u1",
        "strides": None,
        "data": (state.memory.address(write=False), True),
    }
    return np.asarray(token)
