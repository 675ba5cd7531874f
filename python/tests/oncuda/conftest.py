"""What the tests of device memory have at hand; they need a driver, real or simulated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import poolbridge


@pytest.fixture
def device_service(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "d.sock")
    script = str(Path(__file__).with_name("deviceservice.py"))
    with subprocess.Popen(
        [sys.executable, script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield path
        process.communicate(timeout=10)


@pytest.fixture
def client(device_service: str) -> Iterator[poolbridge.Client]:
    with poolbridge.connect(device_service, timeout=10) as connected:
        connected.create_pool("gpu", kind="device", max_bytes=64 << 20)
        yield connected
