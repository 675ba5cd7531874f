"""Start a service with a pool on a GPU in another process; make clients of this service, and use their leases."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gates import Gate

import poolbridge
from poolbridge._sys.native import NATIVE

N = 4096
HERE = Path(__file__).parent
PACKAGE = Path(poolbridge.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{HERE.parent}"}
POOLSVC = os.environ.get("POOLBRIDGE_TEST_POOLSVC", str(HERE.parents[2] / "bin" / "poolsvc"))


def has_poolsvc() -> bool:
    return os.access(POOLSVC, os.X_OK)


CHANNELS = pytest.mark.skipif(
    not has_poolsvc() or NATIVE is None,
    reason="channels need poolsvc (make build) and poolbridge's native module; the small service has none",
)


def service_command(path: str, *options: str) -> list[str]:
    """Return the command of poolsvc, or of the small service if there are `options` or poolsvc is not built."""
    if not options and has_poolsvc():
        return [POOLSVC, "serve", "--socket", path]
    return [sys.executable, str(HERE / "deviceservice.py"), path, *options]


@pytest.fixture
def device_service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    path = str(tmp_path / "run" / "d.sock")
    Path(path).parent.mkdir(mode=0o700)
    with subprocess.Popen(
        service_command(path, *getattr(request, "param", ())), stdin=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        yield path
        process.terminate()


ONE_BLOCK = pytest.mark.parametrize("client", [N], indirect=True)
"""The pool of `client` has memory for one block, so each allocation gets it, even while streams still use it."""


@pytest.fixture
def client(device_service: str, request: pytest.FixtureRequest) -> Iterator[poolbridge.Client]:
    with poolbridge.connect(device_service, timeout=60, wait=60) as connected:
        connected.create_pool("gpu", kind="device", max_bytes=getattr(request, "param", 64 << 20))
        yield connected


@pytest.fixture
def other(device_service: str) -> Iterator[poolbridge.Client]:
    with poolbridge.connect(device_service, timeout=60) as connected:
        yield connected


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


def address(lease: poolbridge.BaseLease) -> int:
    return int(lease._evidence()["pointer"])


def use(lease: poolbridge.BaseLease, stream: int) -> int:
    """Make an array on a stream as a library does, drop the array, and return its address."""
    lease.view(device="cuda").__dlpack__(stream=stream, max_version=(1, 0))
    return address(lease)
