"""Tests the worker of `poolsvc verify`, which runs as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poolbridge
from poolbridge._session.membership import NATIVE

SOURCE = str(Path(poolbridge.__file__).parents[1])


class Process:
    def __init__(self, *arguments: str, path: Path | str = "") -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "poolbridge.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{path}:{SOURCE}" if path else SOURCE},
        )

    def do(self, **task: Any) -> dict[str, Any]:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(json.dumps(task) + "\n")
        self.popen.stdin.flush()
        answer: dict[str, Any] = json.loads(self.popen.stdout.readline())
        return answer

    def stop(self) -> int:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        status = self.popen.wait(60)
        self.popen.stdout.close()
        return status


@pytest.fixture
def worker(service):
    process = Process("--socket", service.path)
    yield process
    if process.popen.poll() is None:
        process.stop()
    for pipe in (process.popen.stdin, process.popen.stdout):
        if pipe is not None:
            pipe.close()


def test_checks_a_pattern_and_writes_another(client, worker):
    lease = client.allocate((100, 50), "float32")
    np.asarray(lease).reshape(-1)[:] = np.arange(5000) + 100
    lease.publish("x")
    lease.release()
    answer = worker.do(
        task="check",
        name="x",
        pattern={"kind": "affine", "scale": 1, "offset": 100},
        then={"scale": -1, "offset": 0},
        consumer="numpy",
        timeout=60,
    )
    assert answer["ok"], answer
    assert (answer["elements"], answer["mismatches"], answer["first"]) == (5000, 0, [])
    assert answer["mapped"]
    assert answer["written"]
    assert np.array_equal(np.asarray(client.get("x")).reshape(-1), -np.arange(5000, dtype=np.float32))
    assert worker.stop() == 0


def test_says_which_elements_differ(client, worker):
    lease = client.allocate(10, "float32")
    array = np.asarray(lease)
    array[:] = np.arange(10)
    array[3] = 8.5
    lease.publish("x")
    answer = worker.do(task="check", name="x", pattern={"scale": 1, "offset": 0}, then={"scale": 2, "offset": 0})
    assert not answer["ok"]
    assert answer["error"]["type"] == "BusyError"
    answer = worker.do(task="check", name="x", pattern={"scale": 1, "offset": 0})
    assert (answer["mismatches"], answer["written"]) == (1, False)
    assert answer["first"] == ["element 3: expected 3.0, got 8.5"]


def test_probe_says_what_is_there():
    process = Process()
    answer = process.do(task="probe")
    assert answer["ok"]
    assert answer["packages"]["numpy"] == np.__version__
    assert answer["native"] is (NATIVE is not None)
    assert "numpy" in answer["consumers"]["host"]
    assert bool(answer["devices"]) == bool(answer["consumers"]["device"])
    assert answer["devices"] or "device" in answer["missing"]
    assert process.stop() == 0


def test_probe_says_that_there_is_no_native_module(tmp_path):
    # Python imports `sitecustomize` when it starts. After that, each import of the native module fails.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['poolbridge._native'] = None\n")
    process = Process(path=tmp_path)
    assert process.do(task="probe")["native"] is False
    assert process.stop() == 0


def test_a_worker_killed_while_it_holds_a_lease_loses_it(service, client, worker):
    client.allocate(4).publish("x", keep=True)
    assert worker.do(task="hold", name="x")["held"] == 1
    before = service.leases
    worker.popen.kill()
    service.wait(lambda: service.leases == before - 1)


def test_hold_and_release(client, worker):
    client.allocate(4).publish("x", keep=True)
    assert worker.do(task="hold", name="x")["mapped"]
    assert worker.do(task="release") == {"ok": True, "task": "release", "released": 1}


@pytest.mark.parametrize("line", ["[]", "nonsense", '{"task": "close"}', '{"task": "check"}', "{}"])
def test_bad_tasks_are_answered(worker, line):
    worker.popen.stdin.write(line + "\n")
    worker.popen.stdin.flush()
    assert json.loads(worker.popen.stdout.readline())["ok"] is False


def test_prepare_imports_what_a_consumer_needs():
    process = Process()
    assert process.do(task="prepare", consumer="numpy") == {"ok": True, "task": "prepare", "version": np.__version__}
    answer = process.do(task="prepare", consumer="abacus")
    assert answer["error"]["type"] == "UnavailableError"
    assert process.stop() == 0


def test_a_fork_without_exec_gets_errors_and_no_memory(client, worker):
    lease = client.allocate(1000, "uint32")
    np.asarray(lease)[:] = 7
    lease.publish("x", keep=True)
    lease.release()
    pattern = {"kind": "masked", "scale": 0, "offset": 7}
    answer = worker.do(task="fork", name="x", consumer="numpy", pattern=pattern)
    assert answer["raised"] == {"client": "ForkError", "lease": "ForkError"}
    assert answer["signal"] == signal.SIGSEGV
    assert answer["mismatches"] == 0
    assert worker.do(task="check", name="x", consumer="numpy", pattern=pattern)["mismatches"] == 0
