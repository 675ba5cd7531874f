"""Tests that the benchmark program measures what it should; no test checks how fast anything is."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import socket
import subprocess
import sys
from itertools import count
from multiprocessing import resource_tracker
from pathlib import Path
from typing import ClassVar

import alternatives as _bench_alternatives
import engines as _bench_engines
import pytest
import streams as _bench_streams
from alternatives import LINKS
from fan_iceoryx2 import IceoryxFan
from fan_poolbridge import ChannelFan, QueueFan
from link import Link
from run import doubtful, ratios
from sample import percentile, summarize

import poolbridge
from poolbridge._sys.native import NATIVE

BENCHMARKS = Path(_bench_alternatives.__file__).parent
SPAWN = multiprocessing.get_context("spawn")
POOLSVC = os.environ.get("POOLBRIDGE_TEST_POOLSVC", str(Path(__file__).resolve().parents[2] / "bin" / "poolsvc"))
SIMULATION = Path(__file__).resolve().parents[2] / "build" / "simcuda"


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7], 0.5, 7),
        ([7], 0.999, 7),
        ([1, 2], 0.5, 1),
        ([1, 2, 3], 0.5, 2),
        (list(range(1, 101)), 0.99, 99),
        ([1, 9], 0.99, 9),
    ],
)
def test_percentile_is_the_nearest_rank(values, share, expected):
    assert percentile(values, share) == expected


def test_result_of_few_measurements_has_no_p999():
    result = summarize("transfer", "host", 4, "x", samples=[3000, 1000, 2000], elapsed_ns=10**6)
    assert (result.p50_us, result.p99_us, result.p999_us) == (2.0, 3.0, None)
    assert result.per_second == 3000
    assert result.to_json() == {
        "workload": "transfer",
        "kind": "host",
        "bytes": 4,
        "system": "x",
        "p50_us": 2.0,
        "p99_us": 3.0,
        "per_second": 3000.0,
        "samples": 3,
    }


def test_result_without_latencies_says_so():
    line = summarize("stream", "host", 4, "x", samples=[], elapsed_ns=10**9, count=5).to_json()
    assert line["p50_us"] is None
    assert line["per_second"] == 5


class Recorder(Link):
    """A link that records the calls of its methods, and returns numbers."""

    name = "a recorder"
    kind = "host"
    happened: ClassVar[list[str]] = []

    def open_to_send(self):
        self.happened.append("open")

    def send(self, number):
        self.happened.append(f"send {number}")

    def finish(self):
        self.happened.append("finish")

    def close(self):
        self.happened.append("close")

    def receive(self):
        self.happened.append("receive")
        number = self.happened.count("receive") - 1
        return (number, None) if number < self.nbytes else None


class NoConsumer:
    def __init__(self, context, link, warm_up=None):
        Recorder.happened.append(f"consumer {warm_up}")

    def wait(self):
        Recorder.happened.append("wait")

    def join(self):
        Recorder.happened.append("join")


def test_the_clock_of_a_stream_starts_when_the_consumer_has_had_every_place_twice(monkeypatch):
    now = count(step=10**6)

    def clock():
        Recorder.happened.append("clock")
        return next(now)

    monkeypatch.setattr(Recorder, "happened", [])
    monkeypatch.setattr(_bench_alternatives, "Consumer", NoConsumer)
    monkeypatch.setattr("time.perf_counter_ns", clock)
    result = _bench_alternatives.stream(SPAWN, Recorder, 8, 3, 0.01)
    assert Recorder.happened[:12] == ["open", "consumer 8", *(f"send {number}" for number in range(8)), "wait", "clock"]
    sent = [what for what in Recorder.happened[12:] if what.startswith("send")]
    assert Recorder.happened[-5:] == ["finish", "wait", "clock", "join", "close"]
    assert sent[0] == "send 8"
    assert result.samples == len(sent)


@pytest.mark.parametrize(("warm_up", "acknowledged"), [(None, 1 + 5), (2, 1 + 2), (6, 1 + 1)])
def test_a_consumer_acknowledges_each_array_or_the_warm_up_and_the_end(monkeypatch, warm_up, acknowledged):
    monkeypatch.setattr(Recorder, "happened", [])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        _bench_alternatives.consume(Recorder(SPAWN, 5, 1), theirs, warm_up)
        assert len(ours.recv(64)) == acknowledged


MEASURE = """
import json, multiprocessing, sys
import alternatives

def show(line):
    print(json.dumps(line))

if __name__ == "__main__":
    skip = lambda kind, system, reason: show({"skipped": {"kind": kind, "system": system, "reason": reason}})
    for result in alternatives.measure([sys.argv[1]], [4096], ["transfer", "stream"], skip, seconds=0.01, depth=4):
        show(result.to_json())
"""


def measured_alternatives(folder, kind, **environment):
    """Measure each alternative to poolbridge for a kind of memory, as briefly as possible; return the results."""
    script = folder / "measure.py"
    script.write_text(MEASURE)
    done = subprocess.run(
        [sys.executable, str(script), kind],
        check=False,
        capture_output=True,
        text=True,
        timeout=1000,
        env={**os.environ, "PYTHONPATH": f"{BENCHMARKS}:{Path(poolbridge.__file__).parents[1]}", **environment},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_alternatives(kind, lines):
    seen = set()
    for line in lines:
        if "skipped" in line:
            assert line["skipped"]["reason"]
            seen.add(line["skipped"]["system"])
            continue
        assert line["per_second"] > 0
        assert line["samples"] >= 5
        seen.add((line["system"], line["workload"], line["bytes"]))
    for name in (link.name for link in LINKS if link.kind == kind):
        wanted = {(name, "transfer", 4096), (name, "transfer", 65536), (name, "stream/go-python/1 consumer", 65536)}
        assert name in seen or wanted <= seen, f"{name} was neither measured nor skipped"


@pytest.mark.long
def test_every_alternative_on_host_memory_runs_one_by_one_and_as_a_stream(tmp_path):
    check_alternatives("host", measured_alternatives(tmp_path, "host"))


@pytest.mark.long
def test_every_alternative_on_device_memory_runs_one_by_one_and_as_a_stream(tmp_path):
    if importlib.util.find_spec("cuda") is None:
        pytest.skip("the packages of poolbridge[cuda] are not installed")
    if not (SIMULATION / "libcuda.so.1").exists():
        pytest.skip("the simulated driver is not built: make simcuda")
    environment = {"LD_LIBRARY_PATH": str(SIMULATION), "SIMCUDA_MACHINE": f"bench-{os.getpid()}"}
    lines = measured_alternatives(tmp_path, "device", **environment)
    check_alternatives("device", lines)
    assert any(line.get("system", "").startswith("cuda.core") for line in lines), lines


@pytest.fixture(scope="module", autouse=True)
def tracker():
    """Start multiprocessing's resource tracker before the tests: its pipe stays open, but is not a leak of a test."""
    resource_tracker.ensure_running()


@pytest.fixture
def poolsvc(tmp_path):
    """Run a service in another process, and give the path of its socket."""
    if not os.access(POOLSVC, os.X_OK):
        pytest.skip("poolsvc is not built: make build")
    path = str(tmp_path / "run" / "s.sock")
    (tmp_path / "run").mkdir(mode=0o700)
    with subprocess.Popen([POOLSVC, "serve", "--socket", path]) as process:
        yield path
        process.terminate()


def test_python_streams_are_measured_of_every_system_that_is_here(poolsvc, monkeypatch):
    monkeypatch.setattr(_bench_streams, "ROUNDS", 2)
    monkeypatch.setattr(_bench_streams, "_PACED", 20)
    skipped = []
    results = list(
        _bench_streams.measure_streams(
            poolsvc, lambda *what: skipped.append(what[1]), seconds=0.01, consumers=(1,), others=(IceoryxFan,)
        )
    )
    every = {ChannelFan.name, "iceoryx2"}
    systems = every - set(skipped)
    assert ("iceoryx2" in skipped) == bool(IceoryxFan.missing())
    assert (ChannelFan.name in skipped) == (NATIVE is None)
    workloads = {result.workload for result in results}
    assert "stream/python-python/1 consumer" in workloads
    assert ("stream/python-leases/1 consumer" in workloads) == (NATIVE is not None)
    for workload in workloads:
        could = {ChannelFan.name} if "leases" in workload else every
        assert {result.system for result in results if result.workload == workload} == systems & could
    for result in results:
        assert result.per_second > 0
        assert result.p50_us
        assert result.cpu_us
        assert (result.service_share is None) == (result.system == "iceoryx2")
        assert result.rounds == 2
        least, most = result.per_second_range or (0, 0)
        assert 0 < least <= result.per_second + 1 <= most + 2
        least, most = result.p50_us_range or (0, 0)
        assert 0 < least <= most


@pytest.mark.skipif(NATIVE is None, reason="poolbridge is installed without its native module")
def test_the_consumers_of_a_measured_queue_take_every_frame_together(poolsvc):
    run = _bench_streams._Run(SPAWN, QueueFan(4096, 8, 3, "queue", waiting="python", path=poolsvc))
    try:
        run.fast(0.01)
        run.fast(0.01)
        result = run.result()
    finally:
        run.end()
    assert result.workload == "stream/python-queue/3 consumers"
    assert result.per_second > 0
    assert result.p50_us is None
    assert result.p50_us_range is None


@pytest.mark.skipif(NATIVE is None, reason="poolbridge is installed without its native module")
def test_the_service_does_nothing_for_a_frame(poolsvc):
    skipped = []
    streams = _bench_streams.measure_streams(poolsvc, lambda *what: skipped.append(what), seconds=0.2, consumers=(1,))
    assert (next(streams).service_share or 0.0) < 0.1
    streams.close()
    assert not skipped


def test_engines_are_measured_in_both_ways_and_one_that_is_missing_is_skipped_with_the_reason(monkeypatch):
    def ray(sizes, count):
        raise poolbridge.UnavailableError("Ray is not installed")

    def dask(sizes, count):
        for nbytes in sizes:
            yield nbytes, ([0.003] * count, [0.001] * count)

    monkeypatch.setattr(_bench_engines, "_ray", ray)
    monkeypatch.setattr(_bench_engines, "_dask", dask)
    skipped = []
    results = list(_bench_engines.measure_engines(lambda *words: skipped.append(words), [8, 16], seconds=0.2))
    assert skipped == [("host", "Ray", "Ray is not installed")]
    assert [(one.workload, one.bytes, one.system, one.p50_us, one.samples) for one in results] == [
        ("engines/dask", nbytes, system, us, 6)
        for nbytes in (8, 16)
        for system, us in (("Dask alone", 3000.0), ("poolbridge", 1000.0))
    ]


def row(workload, system, per_second, p50=None, nbytes=65536):
    return {
        "workload": workload,
        "kind": "host",
        "bytes": nbytes,
        "system": system,
        "per_second": per_second,
        "p50_us": p50,
    }


def test_ratios_compare_the_medians_of_transfers_and_the_rates_of_streams():
    results = [
        row("transfer", "poolbridge", 1e5, 10.0),
        row("transfer", "multiprocessing.Queue", 3e3, 300.0),
        row("stream/go-python/1 consumer", "poolbridge", 8e5, 25.0),
        row("stream/go-python/1 consumer", "multiprocessing.Queue", 2e4),
        row("stream/go-python/1 consumer", "a byte through a socket", 2e5, nbytes=1),
    ]
    found = {(one["workload"], one["against"]): one["ratio"] for one in ratios(results)}
    assert found == {
        ("transfer", "multiprocessing.Queue"): 30.0,
        ("stream/go-python/1 consumer", "multiprocessing.Queue"): 40.0,
    }


def test_a_stream_that_is_slower_than_one_after_the_other_is_doubted_and_compared_with_nothing():
    slow = row("stream/go-python/1 consumer", "torch", 12.0)
    results = [row("transfer", "torch", 1200.0, 800.0), slow, row("stream/go-python/1 consumer", "poolbridge", 8e5)]
    assert doubtful(results) == [slow]
    assert list(ratios(results)) == []
