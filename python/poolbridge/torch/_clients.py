"""Connects each process of a program to the service, and makes the pools of programs that name none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from poolbridge._client.connect import connect
from poolbridge._client.paths import default_path
from poolbridge.errors import AlreadyExistsError, DeviceMemoryError

if TYPE_CHECKING:
    from poolbridge._client.client import Client
    from poolbridge._client.entries import PoolInfo
    from poolbridge._sys.literals import Kind

# By process id, because a forked child needs a client of its own, and by the path of the service's socket.
CLIENTS: Final[dict[tuple[int, str], Client]] = {}


def client_at(path: str | None) -> Client:
    """Return this process's client of the service at a path. None: the default path, where a service is started."""
    key = os.getpid(), path or default_path()
    client = CLIENTS.get(key)
    if client is None or client.closed:
        own = connect(path, start=path is None)
        client = CLIENTS.setdefault(key, own)
        if client.closed:
            client = CLIENTS[key] = own
        elif client is not own:  # another thread was faster
            own.close()
    return client


def own_pool(
    client: Client, name: str, kind: Kind = "host", device: str | None = None, nbytes: int | None = None
) -> PoolInfo:
    """Make or open a pool that only this user may use, of at most `nbytes` bytes: fewer if the service has not so many.

    None: of three quarters of the machine's memory.

    Raises
    ------
    AlreadyExistsError
        The pool of that name is of another kind or for other users.
    """
    if nbytes is None:
        nbytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 * 3
    while True:
        try:
            # An existing pool must be for this user only. Another user could make one of this name, for both.
            return client.create_pool(name, kind=kind, device=device, max_bytes=nbytes, exist_ok=True)
        except (AlreadyExistsError, DeviceMemoryError):
            # A control group of the service has less memory than the machine, or the pool was made smaller for that.
            if nbytes < 2**20:
                raise
            nbytes //= 2
