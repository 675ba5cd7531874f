"""Tests the worker of `poolsvc verify`, which runs as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poolbridge
from poolbridge._sys.native import NATIVE

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

    def do(self, task: str, **arguments: Any) -> dict[str, Any]:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(json.dumps({"task": task, "with": arguments}) + "\n")
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
    process = Process("--socket", service.path, "--library", "numpy")
    yield process
    if process.popen.poll() is None:
        process.stop()
    for pipe in (process.popen.stdin, process.popen.stdout):
        if pipe is not None:
            pipe.close()


def affine(elements: int, scale: float, offset: float) -> dict[str, Any]:
    return {"kind": "affine", "elements": elements, "scale": scale, "offset": offset}


def test_compares_a_pattern_and_writes_another(client, worker):
    lease = client.allocate((100, 50), "float32")
    np.asarray(lease).reshape(-1)[:] = np.arange(5000) + 100
    lease.publish("x")
    lease.release()
    answer = worker.do("check", name="x", expect=affine(5000, 1, 100), then=affine(5000, -1, 0))
    assert answer == {"answer": None, "error": None}
    assert np.array_equal(np.asarray(client.get("x")).reshape(-1), -np.arange(5000, dtype=np.float32))
    assert worker.stop() == 0


def test_says_which_elements_differ(client, worker):
    lease = client.allocate(10, "float32")
    array = np.asarray(lease)
    array[:] = np.arange(10)
    array[3] = 8.5
    lease.publish("x")
    answer = worker.do("check", name="x", expect=affine(10, 1, 0), then=None)
    assert answer["error"]["message"] == "1 elements differ: element 3: expected 3.0, got 8.5"
    answer = worker.do("check", name="x", expect=affine(9, 1, 0), then=None)
    assert answer["error"]["message"] == "there are 10 elements, not 9"
    tolerant = {**affine(10, 1, 0), "tolerance": 6}
    assert worker.do("check", name="x", expect=tolerant, then=None)["error"] is None


def test_probe_says_what_is_there():
    process = Process()
    answer = process.do("probe")["answer"]
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
    assert process.do("probe")["answer"]["native"] is False
    assert process.stop() == 0


@pytest.mark.parametrize(
    "line", ["[]", "nonsense", '{"task": "close", "with": {}}', '{"task": "check", "with": {}}', "{}"]
)
def test_bad_tasks_are_answered(worker, line):
    worker.popen.stdin.write(line + "\n")
    worker.popen.stdin.flush()
    assert json.loads(worker.popen.stdout.readline())["error"]["type"]
