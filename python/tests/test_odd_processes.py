"""Tests unusual processes: without standard streams, with two event loops, with signal handlers that raise errors."""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from realservice import POOLSVC, RealService

import poolbridge
from poolbridge._memory import dlpack as _dlpack
from poolbridge._sys.error_texts import shown


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = RealService(str(tmp_path_factory.mktemp("processes") / "r.sock"))
    yield running
    running.close()


SERVE = """
import os, sys
for fd in {closed}:
    os.close(fd)
import numpy as np, poolbridge
{how}
with client:
    client.create_pool("p", max_bytes=4096)
    assert client.put(np.arange(3), "x").to_numpy().tolist() == [0, 1, 2]
    assert all(not os.path.lexists(f"/proc/self/fd/{{fd}}") or "socket" not in os.readlink(f"/proc/self/fd/{{fd}}")
               for fd in range(3))
os._exit(77)
"""
HOW = {
    "serve": "service = poolbridge.serve().start(); client = service.connect()",
    "start": "client = poolbridge.connect(os.environ['PLACE'] + '/s.sock', start=True)",
}


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("how", HOW)
def test_a_service_starts_from_a_process_without_standard_descriptors(tmp_path, how, closed):
    program = SERVE.format(closed=closed, how=HOW[how])
    environment = {**os.environ, "PLACE": str(tmp_path), "POOLBRIDGE_POOLSVC": POOLSVC}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 77


def test_a_second_event_loop_is_told_to_connect_itself(service):
    clients = []

    async def first():
        client = await poolbridge.connect_async(service.path, timeout=60)
        clients.append(client)
        await client.create_pool("p", max_bytes=1 << 16, exist_ok=True)
        return client

    async def second():
        (client,) = clients
        for call in (client.stats, lambda: client.allocate(4), lambda: client.get("x", timeout=None)):
            with pytest.raises(poolbridge.InvalidArgumentError, match="another event loop.*connect_async"):
                await call()
        await client.close()
        assert client.closed

    asyncio.run(first())
    asyncio.run(second())


def test_a_client_is_not_closed_under_an_event_loop_that_runs(service):
    async def main():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            with pytest.raises(poolbridge.InvalidArgumentError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, client.close())
            assert (await client.stats()).sessions

    asyncio.run(main())


class FromHandler(Exception):
    """The error that the handler raises."""


class Interrupting:
    """An object whose repr lets a signal handler raise an error."""

    def __repr__(self):
        signal.raise_signal(signal.SIGUSR1)
        return "unreached"

    def __bool__(self):
        repr(self)
        return True

    __str__ = __repr__


@pytest.fixture(params=["named", "star"])
def handler(request):
    def named(_number, frame):
        raise FromHandler

    def star(*_arguments):
        raise FromHandler

    before = signal.signal(signal.SIGUSR1, {"named": named, "star": star}[request.param])
    yield
    signal.signal(signal.SIGUSR1, before)


def test_the_error_of_a_signal_handler_is_not_the_argument_s(service, handler):
    with poolbridge.connect(service.path, timeout=60) as client:
        client.create_pool("p", max_bytes=1 << 16, exist_ok=True)
        odd: Any = Interrupting()
        with client.allocate(4) as lease:
            promise = lease.promise()
            for call in (
                lambda: client.allocate(4, odd),
                lambda: client.allocate(odd),
                lambda: client.get("x", write=odd),
                lambda: client.create_channel(odd),
                lambda: shown(odd),
            ):
                with pytest.raises(FromHandler):
                    call()
            promise.complete()


def test_a_process_that_gevent_has_patched_is_told_so(service, monkeypatch):
    monkeypatch.delattr(select, "epoll")
    with pytest.raises(poolbridge.UnsupportedError, match="gevent"):
        poolbridge.connect(service.path)


def test_a_relative_path_is_resolved_when_the_client_connects(service, monkeypatch, tmp_path):
    monkeypatch.chdir(os.path.dirname(service.path))
    with poolbridge.connect(os.path.basename(service.path), timeout=60) as client:
        monkeypatch.chdir(tmp_path)
        assert client.path == service.path
        with pickle.loads(pickle.dumps(client)) as again:
            assert again.epoch == client.epoch


def test_a_relative_path_in_a_folder_that_is_gone_is_refused(monkeypatch, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(poolbridge.InvalidArgumentError, match="folder is gone"):
        poolbridge.connect("s.sock")
    os.chdir(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_root_locks_no_user_out_of_his_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("POOLBRIDGE_POOLSVC", POOLSVC)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    os.chown(runtime, 4242, 4242)
    with pytest.raises(poolbridge.SocketFolderError, match="belongs to user 4242"):
        poolbridge.connect(runtime / "poolbridge" / "s.sock", start=True)
    with pytest.raises(poolbridge.SocketFolderError, match="belongs to user 4242"):
        poolbridge.serve(path=runtime / "poolbridge" / "s.sock").start()
    assert not list(runtime.iterdir())


LOCKED_OUT = """
import os, sys, poolbridge
os.setresgid(4242, 4242, 4242)
os.setresuid(4242, 4242, 4242)
try:
    poolbridge.connect(sys.argv[1])
except poolbridge.AccessDeniedError as error:
    assert "sudo rm -r" in str(error) and "--mode" not in str(error), error
    os._exit(77)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_user_who_is_locked_out_hears_what_to_remove():
    with tempfile.TemporaryDirectory() as outer:
        os.chmod(outer, 0o711)
        runtime = Path(outer, "runtime")
        runtime.mkdir(mode=0o700)
        os.chown(runtime, 4242, 4242)
        (runtime / "poolbridge").mkdir(mode=0o700)
        place = str(runtime / "poolbridge" / "s.sock")
        done = subprocess.run([sys.executable, "-c", LOCKED_OUT, place], capture_output=True, text=True, check=False)
        assert done.returncode == 77, done.stderr


class Exporter:
    """An array that gives out a capsule that somebody has used."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **_options):
        return self._capsule


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_used_capsule_is_not_read(version):
    capsule = np.arange(3).__dlpack__(max_version=version)
    assert _dlpack.read_tensor(capsule).shape == (3,)
    np.from_dlpack(Exporter(capsule))
    with pytest.raises(poolbridge.InvalidArgumentError, match="used"):
        _dlpack.read_tensor(capsule)
    with pytest.raises(poolbridge.InvalidArgumentError, match="no DLPack capsule"):
        _dlpack.read_tensor(object())
