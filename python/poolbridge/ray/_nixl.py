"""Copies buffers from a host pool of another node into a host pool of this node, through the library NIXL.

The `Mover`, an actor on the sender's node, offers a buffer. The receiver starts the transfer and waits for its end.

`Agent` registers the memory of a pool with NIXL before it first uses a buffer of the pool. NIXL does not report the
end of a transfer, so `Agent.read` asks NIXL for the state of the transfer again and again.
"""

from __future__ import annotations

import importlib
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import poolbridge
from poolbridge._session.lease_state import LeaseState
from poolbridge._sys.log import LOG

if TYPE_CHECKING:
    from poolbridge._memory.kind_host import HostPool

# The package ``nixl`` chooses one of the other two packages. A user can also install one of these two without ``nixl``.
_MODULES: Final = ("nixl", "nixl_cu12", "nixl_cu13")
_LEAST_PAUSE: Final = 20e-6
_MOST_PAUSE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Offer:
    """What a receiver needs to read a buffer. The `Mover` that made the offer keeps a lease until it gets `ticket`.

    Attributes
    ----------
    ticket
        A text that names the offer. After the receiver has read the bytes, the receiver sends this text to the mover.
    agent, version, metadata
        The name of the mover's agent, the number of pools that this agent has registered, and NIXL's description of
        the agent.
    address, nbytes
        The address of the offered bytes in the mover's process, and their number.
    offset
        Bytes from `address` to the array's element [0, …, 0].
    """

    ticket: str
    agent: str
    version: int
    metadata: bytes
    address: int
    nbytes: int
    offset: int


class Pausing(Protocol):
    """A transfer that can be aborted."""

    def pause(self, seconds: float) -> None:
        """Wait; raise if the transfer was aborted."""


def missing() -> str:
    """Return a text that says why this process cannot import NIXL; an empty text if it can."""
    try:
        _api()
    except poolbridge.UnavailableError as error:
        return str(error)
    return ""


def _api() -> Any:
    causes = []
    for name in _MODULES:
        try:
            return importlib.import_module(f"{name}._api")
        except ImportError as error:
            causes.append(f"{error}")
    raise poolbridge.UnavailableError(
        f"this Python has no NIXL: it can import none of the packages {', '.join(_MODULES)} ({causes[0]})"
    )


class Agent:
    """The agent of NIXL in this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._agent: Any = None
        self._pools: list[HostPool] = []
        self._known: dict[str, int] = {}
        self._stuck: list[Any] = []

    def offer(self, state: LeaseState, ticket: str, low: int, high: int, offset: int) -> Offer:
        """Offer the bytes from `low` to `high` of a leased buffer to other nodes. `offset` is `Offer.offset`.

        The caller keeps the lease until a receiver has the bytes.
        """
        with self._lock:
            agent = self._registered(state)
            address = state.memory.address(write=True) + low
            metadata = agent.get_agent_metadata()
            return Offer(ticket, agent.name, len(self._pools), metadata, address, high - low, offset)

    def read(self, offer: Offer, state: LeaseState, transfer: Pausing) -> None:
        """Copy the offered bytes to the beginning of a leased buffer.

        Raises
        ------
        UnavailableError
            NIXL cannot read the bytes: the other process is gone, or the nodes cannot reach each other.
        RequestCancelledError, WaitTimeoutError
            The transfer was aborted, or took too long.
        """
        try:
            with self._lock:
                agent = self._registered(state)
                if self._known.get(offer.agent) != offer.version:
                    agent.add_remote_agent(offer.metadata)
                    self._known[offer.agent] = offer.version
                here = agent.get_xfer_descs([(state.memory.address(write=True), offer.nbytes, 0)], "DRAM")
                there = agent.get_xfer_descs([(offer.address, offer.nbytes, 0)], "DRAM")
                handle = agent.initialize_xfer("READ", here, there, offer.agent)
        except Exception as error:
            raise poolbridge.UnavailableError(f"NIXL cannot begin to read: {error}") from error
        try:
            with self._lock:
                said = agent.transfer(handle)
            pause = _LEAST_PAUSE
            while said == "PROC":
                transfer.pause(pause)
                pause = min(2 * pause, _MOST_PAUSE)
                with self._lock:
                    said = agent.check_xfer_state(handle)
        except poolbridge.PoolbridgeError:
            raise
        except Exception as error:
            raise poolbridge.UnavailableError(f"NIXL cannot read: {error}") from error
        finally:
            self._release(agent, handle, state)
        if said != "DONE":
            raise poolbridge.UnavailableError(f"NIXL cannot read: the transfer ended as {said}")

    def _release(self, agent: Any, handle: Any, state: LeaseState) -> None:
        try:
            with self._lock:
                agent.release_xfer_handle(handle)
        except Exception as error:  # noqa: BLE001
            # NIXL may still write to the buffer. So `_stuck` keeps the buffer's lease as long as this process lives.
            self._stuck.append((state, handle))
            LOG.warning("ray: NIXL does not end a transfer, and its buffer is kept: %s", error)

    def _registered(self, state: LeaseState) -> Any:
        """Register the memory of a buffer's pool with NIXL, if it is not registered yet, and return NIXL's agent."""
        pool = cast("HostPool", state.memory.pool)
        if any(pool is one for one in self._pools):
            return self._agent
        if self._agent is None or any(_overlap(pool, one) for one in self._pools):
            # If an agent exists, it has registered a pool that was mapped at addresses of this pool. That pool is not
            # mapped any more, and its pages are gone. So make a new agent.
            api = _api()
            config = api.nixl_agent_config(backends=["UCX"], sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT)
            self._agent = api.nixl_agent(f"poolbridge-{uuid.uuid4()}", config)
            self._pools, self._known = [], {}
        begin = time.perf_counter()
        self._agent.register_memory([(pool.writable, pool.size, 0, "")], "DRAM")
        self._pools.append(pool)
        LOG.info("ray: NIXL has registered %d bytes in %.3f s", pool.size, time.perf_counter() - begin)
        return self._agent


def _overlap(one: HostPool, other: HostPool) -> bool:
    return bool(one.writable < other.writable + other.size and other.writable < one.writable + one.size)


AGENT: Final = Agent()
