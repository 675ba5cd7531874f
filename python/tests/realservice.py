"""Runs the real service in another process, for tests for which the small service in Python is not enough."""

from __future__ import annotations

import gc
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poolbridge

POOLSVC = os.environ.get("POOLBRIDGE_TEST_POOLSVC", str(Path(__file__).parents[2] / "bin" / "poolsvc"))


class RealService:
    """A process ``poolsvc serve`` that listens on a socket at a path."""

    def __init__(self, path: str, *options: str) -> None:
        if not os.access(POOLSVC, os.X_OK):
            pytest.skip("poolsvc is not built: make build")
        self.path = path
        self.log = Path(f"{path}.log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([POOLSVC, "serve", "--guard=false", "--socket", path, *options], stderr=log)
        try:
            with poolbridge.connect(path, wait=60, timeout=60):
                pass
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
        assert b"the client describes lease" not in self.log.read_bytes()


def publish(client: poolbridge.Client, channel: poolbridge.Channel, value: int, **options: Any) -> int:
    """Publish a frame of four numbers, each equal to `value`, in memory of the channel's pool."""
    lease = client.allocate(4, "int32", pool=channel.pool, timeout=60)
    np.asarray(lease)[:] = value
    return channel.publish(lease, meta={"value": str(value)}, **options)


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def check_arrays_in_hand(frames: poolbridge.Subscription) -> None:
    """Receive 300 frames of one growing number each, and check that nobody writes the arrays of the newest five."""
    kept: list[tuple[int, np.ndarray[Any, Any]]] = [(-1, np.empty(0))]
    for _ in range(300):
        array = np.asarray(frames.receive(60))
        number = int(array[0])
        assert number > kept[-1][0]
        kept.append((number, array))
        for seen, one in kept:
            assert (one == seen).all()
        del kept[:-5]


@contextmanager
def no_collector() -> Iterator[None]:
    """Let the garbage collector free nothing."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def leases(client: poolbridge.Client) -> int:
    """Return how many leases the service has."""
    return client.stats().leases
