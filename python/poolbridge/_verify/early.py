"""Scenario ``early``: the consumer comes before the producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poolbridge._verify.worker import Worker


def wait(worker: Worker, what: str, name: str, timeout: float) -> None:
    """Wait until the service runs, or until a pool, a channel or a named buffer exists."""
    client = worker.client(timeout)
    match what:
        case "pool":
            client.open_pool(name, timeout=timeout)
        case "channel":
            client.open_channel(name, timeout=timeout)
        case "name":
            client.get(name, timeout=timeout).release()
    worker.settle()
