"""Provide fixtures for pytest: a service for the tests, and a client of this service. Any project can use them.

pytest loads the fixtures wherever poolbridge is installed. This module is outside of the package poolbridge, so that
pytest imports poolbridge only for a test that needs the service.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import poolbridge

_POOLS = "poolbridge_pools"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the setting ``poolbridge_pools``: the pools that the service makes at its start."""
    parser.addini(
        _POOLS,
        "pools of the fixture poolbridge_service, one a line, as `poolbridge.serve(pools=…)` takes them",
        type="linelist",
        default=["name=tests,kind=host,max=64MiB"],
    )


@pytest.fixture(scope="session")
def poolbridge_service(request: pytest.FixtureRequest) -> Iterator[poolbridge.Service]:
    """Run a `poolbridge.Service` for this test run, with the pools of the setting ``poolbridge_pools``.

    Without this setting, the service has one pool, named ``tests``, of 64 MiB of memory of the CPU.
    """
    import poolbridge

    with poolbridge.serve(pools=request.config.getini(_POOLS)) as service:
        yield service


@pytest.fixture
def poolbridge_client(poolbridge_service: poolbridge.Service) -> Iterator[poolbridge.Client]:
    """Connect a `poolbridge.Client` to the service, for one test. The client uses the service's first pool."""
    with poolbridge_service.connect() as client:
        for pool in client.pools()[:1]:
            client.open_pool(pool.name)
        yield client
