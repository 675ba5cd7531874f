"""Make clusters of Dask for tests: each worker runs in its own process, and uses the socket of a service."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from realservice import POOLSVC, RealService, until

import poolbridge

distributed = pytest.importorskip("distributed", reason="distributed is not installed: pip install 'poolbridge[dask]'")

import cloudpickle  # noqa: E402 - a dependency of distributed

import poolbridge.dask  # noqa: E402


def ship(module):
    """Make Dask pickle the functions of a module by value, because workers cannot import the tests."""
    cloudpickle.register_pickle_by_value(module)


ship(sys.modules[__name__])

MARKS = [
    pytest.mark.skipif(not os.access(POOLSVC, os.X_OK), reason="poolsvc is not built: make build"),
    pytest.mark.filterwarnings("default"),  # Dask's own warnings, for example about sockets that are still open
]

POOL = "name=frames,kind=host,max=64MiB"
SECONDS = 200.0


@pytest.fixture(autouse=True)
def no_leaks():
    """Replace the check of `conftest` by none: Dask's scheduler, in this process, may close connections late."""


@pytest.fixture(scope="module", autouse=True)
def built():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POOLBRIDGE_POOLSVC", POOLSVC)
        for what in ("CONNECT", "TCP"):  # on a busy machine, a correct worker may be slow
            patch.setenv(f"DASK_DISTRIBUTED__COMM__TIMEOUTS__{what}", f"{SECONDS:g}s")
        yield


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "s.sock"), "--pool", POOL)
    yield running
    running.close()


class Process(distributed.Nanny):  # type: ignore[name-defined, misc]
    """Runs a worker in its own process, and does not start a new worker if the worker was killed."""

    started = False

    async def instantiate(self):
        if self.started:
            return self.status
        self.started = True
        return await super().instantiate()


@contextmanager
def cluster(*sockets):
    """Run a cluster with one worker for each socket; the workers are "a", "b" and so on. Yield Dask's client."""
    workers = {
        name: {
            "cls": Process,
            "options": {"nthreads": 1, "memory_limit": 0, "env": {"POOLBRIDGE_SOCKET": socket}},
        }
        for name, socket in zip("abcde", sockets, strict=False)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False, "dashboard_address": ":0", "port": 0}}
    with (
        distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=False) as running,
        distributed.Client(running, timeout=SECONDS) as client,
    ):
        client.wait_for_workers(len(workers), timeout=SECONDS)
        yield client


def on(client, name):
    """Return the address of the worker with this name."""
    (address,) = [address for address, of in workers(client).items() if of["name"] == name]
    return address


def workers(client):
    """Ask the scheduler for its workers: the client's `scheduler_info` may be out of date and lack workers."""
    return client.sync(client.scheduler.identity, n_workers=-1)["workers"]


def counted(client, name):
    return poolbridge.dask.stats(client)[on(client, name)]


def nothing_left(path):
    """Wait until the service has no lease, no buffer and no name."""
    gc.collect()
    with poolbridge.connect(path, timeout=60) as client:
        until(lambda: (of := client.stats()).leases == of.buffers == of.names == of.pools[0].leased == 0, 60)


def result(future):
    return future.result(timeout=SECONDS)


# Tasks


def numbers(count, start=0):
    made = poolbridge.dask.empty(count, "int64")
    made[...] = np.arange(start, start + count)
    return made


def ordinary(count):
    return np.arange(count)


def total(array):
    return int(array.sum())


def mapping(array):
    """Return the permissions and the file of the mapping in which an array lies, from ``/proc/self/maps``."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if first <= address < last:
                return " ".join(line.split()[1:2] + line.split()[5:])
    return ""


def keep(array, dask_worker=None):
    distributed.get_worker().kept = array
    return array
