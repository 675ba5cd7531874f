"""Holds what `Client` and `AsyncClient` share: their common base class and the first request of a session."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from poolbridge._client import channel_operations as _channel_operations, operations as _operations
from poolbridge._client.arena import array, begin, collect, own
from poolbridge._client.copies import describe_buffer, put
from poolbridge._client.entries import PoolInfo
from poolbridge._client.load import load
from poolbridge._client.own_copy import get_copy
from poolbridge._client.session_stats import SessionStats, session_stats
from poolbridge._client.shown import html_of
from poolbridge._client.tracing import Operation, bytes_of, traced
from poolbridge._cuda import cuda as _cuda
from poolbridge._order import event as _event
from poolbridge._sys.error_texts import USE_ONE_VERSION, shown
from poolbridge._sys.native import NATIVE
from poolbridge._sys.version import version
from poolbridge._wire.limits import VERSION
from poolbridge._wire.messages import Hello
from poolbridge.errors import (
    ConnectionLostError,
    InvalidArgumentError,
    ServiceStalledError,
    VersionError,
)

if TYPE_CHECKING:
    import numpy as np

    from poolbridge._order.event import Event
    from poolbridge._session.division import Division
    from poolbridge._session.flow import Flow
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session
    from poolbridge._sys.literals import ChannelMode, FullPolicy
    from poolbridge._wire import messages as _messages

FEATURES = ("timelines", *(("channels",) if NATIVE is not None else ()), "ranges")
DEFAULT_TIMEOUT = 10.0
# How many services that die before they answer hello a client leaves for the next one, which a guard starts.
DYING = 4


def _allocates(client: BaseClient, *_of: Any, pool: PoolInfo | str | None, **_options: Any) -> Operation:
    chosen = client._default_pool if pool is None else pool  # noqa: SLF001
    return Operation("allocate", pool=chosen.name if isinstance(chosen, PoolInfo) else chosen)


def _gets(_client: BaseClient, name: str, **_options: Any) -> Operation:
    return Operation("get", buffer=name)


def _leases(*_of: Any, **_options: Any) -> Operation:
    return Operation("lease")


def _puts(client: BaseClient, array: Any, name: str, *, pool: PoolInfo | str | None, **_options: Any) -> Operation:
    return replace(_allocates(client, pool=pool), name="publish", buffer=name, nbytes=bytes_of(array))


def _leased(operation: Operation, result: LeaseState, **_owner: Any) -> None:
    operation.pool, operation.buffer, operation.nbytes = result.pool.name, result.name, result.description.nbytes


class BaseClient:
    """The attributes and methods that `Client` and `AsyncClient` share.

    Attributes
    ----------
    path
        Path of the service's socket.
    timeout
        How many seconds the service may take to answer a request. If the program allows the request to wait at the
        service, the client adds the time that the program allows.
    """

    _channel_type: ClassVar[Any]
    _arena_type: ClassVar[Any]
    _close_timeout = 1.0  # how many seconds `close` waits for the service
    _run: Any

    def __init__(self, session: Session, path: str, timeout: float) -> None:
        self._session = session
        self._default_pool: PoolInfo | None = None
        self._pools: dict[str, PoolInfo] = {}
        self._arenas: dict[int, Division] = {}  # for `empty` and its kin, by pool id
        self.path = path
        self.timeout = timeout
        session.patience = timeout

    @property
    def closed(self) -> bool:
        """Whether the client was closed, or its connection was lost."""
        return self._session.closed

    @property
    def epoch(self) -> str:
        """The id of this run of the service, in hexadecimal. A service that is started again has another id."""
        return self._session.core.epoch.hex()

    @property
    def service_pid(self) -> int:
        """The process id that the service reports for itself. Use this number for display only."""
        return self._session.core.service_pid

    def session_stats(self) -> SessionStats:
        """Return counts of what this client has done so far. This method sends no request and is no coroutine.

        `stats` asks the service for the counts of all clients. `sessions` lists the clients that the service knows.

        Returns
        -------
        SessionStats
            The counts at the time of the call. The program can also call this method after the client was closed.
        """
        return session_stats(self._session)

    def event(self, device: int | str | None = None) -> Event:
        """Make an interprocess event. Record the event after the work on a buffer, and pass the event to ``publish``.

        Parameters
        ----------
        device
            A GPU's ordinal or name in this process's numbering (``0`` or ``"cuda:0"``), or the GPU's UUID; None: the
            first GPU.

        Returns
        -------
        Event
            The event.

        Raises
        ------
        EventUnavailableError
            The GPU has no interprocess events.
        UnavailableError
            There is no GPU or driver, or this process cannot see the GPU.
        """
        self._session.check_usable()
        return _event.make(_cuda.ordinal_of(_operations.check_device(device)))

    def __repr__(self) -> str:
        return f"<poolbridge.{type(self).__name__} {self.path}, {self._state()}>"

    def _repr_html_(self) -> str:
        default = self._default_pool.name if self._default_pool is not None else "none"
        return html_of([("service", self.path), ("client", self._state()), ("default pool", default)])

    def _state(self) -> str:
        return "closed" if self.closed else f"session {self._session.core.session_id}"

    def _remember(self, pool: PoolInfo) -> PoolInfo:
        self._pools[pool.name] = pool
        if self._default_pool is None:
            self._default_pool = pool
        return pool

    def _forget(self, pool: PoolInfo) -> None:
        if self._pools.get(pool.name) == pool:
            del self._pools[pool.name]
        if self._default_pool == pool:
            self._default_pool = None

    def _open_pool(self, name: str, timeout: float | None) -> Flow[PoolInfo]:
        return self._remember((yield from _operations.open_pool(name, timeout=timeout)))

    def _pool(self, pool: PoolInfo | str | None) -> Flow[PoolInfo]:
        """Return the pool that `pool` means. If the client has not opened this pool yet, open it.

        None means the default pool. If there is none, and the program may use one pool only, this pool becomes it.
        """
        if type(pool) is PoolInfo and self._pools.get(pool.name) is pool:  # also without a comparison of their fields
            return pool
        if pool is None:
            if self._default_pool is not None:
                return self._default_pool
            names = [one.pool.name for one in (yield from _operations.stats()).pools]
            if not names:
                raise InvalidArgumentError("there is no pool: create one (create_pool)")
            if len(names) > 1:
                which = shown(names).strip("[]")
                raise InvalidArgumentError(f"there is no default pool: open one of {which}, or pass pool=")
            pool = names[0]
        name = pool.name if isinstance(pool, PoolInfo) else pool
        if not isinstance(name, str):
            raise InvalidArgumentError(f"pool {shown(pool)} is no pool: expected a PoolInfo or the name of a pool")
        given = isinstance(pool, PoolInfo)
        found = self._pools.get(name)
        if found is None or (given and found != pool):
            found = yield from self._open_pool(name, 0.0)
        if given and found != pool:
            raise InvalidArgumentError(
                f"{shown(pool)} is of another service, or destroyed: this service's pool of that name is {shown(found)}"
            )
        return found

    def _trim(self, pool: PoolInfo | str | None, keep_bytes: int | str) -> Flow[int]:
        chosen = yield from self._pool(pool)
        if (own_arena := self._arenas.get(chosen.id)) is not None:
            yield from collect(own_arena)
            own_arena.let_go(close=False)
        return (yield from _operations.trim(chosen, keep_bytes=keep_bytes))

    def _arena(self, nbytes: int | str, pool: PoolInfo | str | None, timeout: float | None) -> Flow[Any]:
        chosen = yield from self._pool(pool)
        division = yield from begin(self._session, chosen, nbytes, timeout=timeout, arena=self._arena_type)
        return self._arena_type(self._run, division, chosen.name)

    def _array(
        self, shape: Any, dtype: Any, pool: PoolInfo | str | None, timeout: float | None, *fill: Any
    ) -> Flow[np.ndarray[Any, Any]]:
        chosen = yield from self._pool(pool)
        division = self._arenas.get(chosen.id) or self._arenas.setdefault(chosen.id, own(self._session, chosen))
        return (yield from array(division, shape, dtype, timeout, *fill))

    @traced(_allocates, _leased)
    def _allocate(
        self, shape: Any, dtype: Any, *, pool: PoolInfo | str | None, metadata: Any, timeout: float | None
    ) -> Flow[LeaseState]:
        description = describe_buffer(shape, dtype, metadata)
        chosen = yield from self._pool(pool)
        return (yield from _operations.allocate(self._session, description, chosen.id, timeout=timeout))

    @traced(_gets, _leased)
    def _get(
        self, name: str, *, write: bool, known: tuple[int, int] = (0, 0), expect: Any = None, timeout: float | None
    ) -> Flow[LeaseState]:
        return _operations.get(self._session, name, write=write, known=known, expect=expect, timeout=timeout)

    @traced(_gets, _leased)
    def _get_copy(
        self, name: str, *, pool: PoolInfo | str | None, stream: Any, timeout: float | None
    ) -> Flow[LeaseState]:
        chosen = None if pool is None else (yield from self._pool(pool)).id
        return (yield from get_copy(self._session, name, chosen, stream=stream, timeout=timeout))

    @traced(_allocates, _leased)
    def _load(
        self, path: str | os.PathLike[str], *, pool: PoolInfo | str | None, timeout: float | None
    ) -> Flow[LeaseState]:
        chosen = yield from self._pool(pool)
        return (yield from load(self._session, self.path, path, chosen, timeout=timeout))

    @traced(_leases, _leased)
    def _lease(self, buffer_id: int, generation: int, *, write: bool, timeout: float | None) -> Flow[LeaseState]:
        return _operations.lease(self._session, buffer_id, generation, write=write, timeout=timeout)

    @traced(_puts, _leased)
    def _put(self, array: Any, name: str, *, pool: PoolInfo | str | None, **options: Any) -> Flow[LeaseState]:
        chosen = yield from self._pool(pool)
        return (yield from put(self._session, array, name, chosen.id, **options))

    def _create_channel(
        self,
        name: str,
        *,
        pool: PoolInfo | str | None,
        mode: ChannelMode,
        capacity: int,
        full: FullPolicy,
        max_deliveries: int | None,
    ) -> Flow[Any]:
        chosen = yield from self._pool(pool)
        info = yield from _channel_operations.create_channel(
            self._session,
            name,
            pool=chosen.id,
            mode=mode,
            capacity=capacity,
            full=full,
            max_deliveries=max_deliveries,
        )
        return self._channel(info)

    def _open_channel(self, name: str, timeout: float | None) -> Flow[Any]:
        return self._channel((yield from _channel_operations.open_channel(self._session, name, timeout=timeout)))

    def _joined_channel(self, info: _messages.ChannelIdentity) -> Flow[Any]:
        yield from _channel_operations.open_pool(self._session, info)
        return self._channel(info)

    def _channel(self, info: _messages.ChannelIdentity) -> Any:
        known = self._session.pool_info(info.pool)
        return self._channel_type(self._session, self._run, info, known.name if known is not None else "")

    def _warn_unclosed(self) -> None:
        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=3)


def session_of(client: BaseClient) -> Session:
    """Return the session of a client, for modules of this package only."""
    return client._session  # noqa: SLF001


def hello() -> Hello:
    """Make the first request of a session."""
    return Hello(versions=(VERSION,), name=_program_name(), features=FEATURES)


@contextmanager
def explained(path: str) -> Iterator[None]:
    """If the first request to the service at `path` fails in the ``with`` block, raise an error that explains why."""
    try:
        yield
    except VersionError as error:
        raise VersionError(
            f"{error}; this client is of poolbridge {version()} and speaks version {VERSION}: {USE_ONE_VERSION}"
        ) from error
    except ServiceStalledError as error:
        raise ServiceStalledError(f"the service at {path} accepted the connection and does not answer") from error
    except ConnectionLostError as error:
        raise ConnectionLostError(f"the service at {path} closed the connection at once: {error}") from error


def _program_name() -> str:
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    if name in {"", "-", "-c"}:  # no file: the interpreter's prompt, its input, or its argument
        name = f"python {name}".strip()
    return name.encode(errors="replace")[:255].decode(errors="ignore")
