"""Holds what `Client` and `AsyncClient` share: their common base class and the first request of a session."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from poolbridge._client.entries import PoolInfo
from poolbridge._client.operations import check_device
from poolbridge._client.session_stats import SessionStats, session_stats
from poolbridge._cuda import cuda as _cuda
from poolbridge._order import event as _event
from poolbridge._session.membership import NATIVE
from poolbridge._sys.error_texts import USE_ONE_VERSION, shown
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
    from poolbridge._order.event import Event
    from poolbridge._session.session import Session
    from poolbridge._wire import messages as _messages

FEATURES = ("timelines", *(("channels",) if NATIVE is not None else ()))
DEFAULT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 1.0


class ClientState:
    """The attributes and methods that `Client` and `AsyncClient` share.

    Attributes
    ----------
    path
        Path of the service's socket.
    timeout
        How many seconds the service may take to answer a request. If the program allows the request to wait at the
        service, the client adds the time that the program allows.
    """

    def __init__(self, session: Session, path: str, timeout: float) -> None:
        self._session = session
        self._default_pool: PoolInfo | None = None
        self._pools: dict[str, PoolInfo] = {}
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
        return _event.make(_cuda.ordinal_of(check_device(device)))

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"session {self._session.core.session_id}"
        return f"<poolbridge.{type(self).__name__} {self.path}, {state}>"

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

    def _find_pool(self, pool: Any, *, default: bool = True) -> PoolInfo | str:
        """Return the pool that `pool` means. If the client has not opened this pool yet, return the pool's name."""
        if isinstance(pool, PoolInfo):
            return pool
        if pool is not None:
            if not isinstance(pool, str):
                raise InvalidArgumentError(f"pool {shown(pool)} is no pool: expected a PoolInfo or the name of a pool")
            return self._pools.get(pool, pool)
        if not default:
            raise InvalidArgumentError("None is no pool: name the pool")
        if self._default_pool is None:
            raise InvalidArgumentError("there is no default pool: create or open one first, or pass pool=")
        return self._default_pool

    def _channel_pool(self, info: _messages.ChannelIdentity) -> str:
        """Return the name of the pool whose buffers a channel carries; empty if the client does not know the pool."""
        known = self._session.pool_info(info.pool)
        return known.name if known is not None else ""

    def _warn_unclosed(self) -> None:
        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=3)


def session_of(client: ClientState) -> Session:
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
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    return name.encode(errors="replace")[:255].decode(errors="ignore")
