"""Fixtures for pytest: a service for the tests, and a client of it. Every project that installs poolbridge has them.

It is a package of its own, so that a test run that needs no service does not import poolbridge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import poolbridge

_POOLS = "poolbridge_pools"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the setting with the pools that the service begins with."""
    parser.addini(
        _POOLS,
        "pools of the fixture poolbridge_service, one a line, as `poolbridge.serve(pools=…)` takes them",
        type="linelist",
        default=["tests:kind=host,max=64MiB"],
    )


@pytest.fixture(scope="session")
def poolbridge_service(request: pytest.FixtureRequest) -> Iterator[poolbridge.Service]:
    """Run a `poolbridge.Service` for this test run, with the pools of the setting ``poolbridge_pools``.

    Without that setting there is one of 64 MiB of memory of the CPU, ``tests``.
    """
    import poolbridge

    with poolbridge.serve(pools=request.config.getini(_POOLS)) as service:
        yield service


@pytest.fixture
def poolbridge_client(poolbridge_service: poolbridge.Service) -> Iterator[poolbridge.Client]:
    """Connect a `poolbridge.Client` to the service, for one test; it allocates from the service's first pool."""
    with poolbridge_service.connect() as client:
        for pool in client.pools()[:1]:
            client.open_pool(pool.name)
        yield client
