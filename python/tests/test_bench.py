"""The harness of the benchmark: numbers, not speed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from poolbridge._bench_alternatives import LINKS
from poolbridge._bench_sample import percentile, summarize


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
    result = summarize("hand-over", "host", 4, "x", samples=[3000, 1000, 2000], elapsed_ns=10**6)
    assert (result.p50_us, result.p99_us, result.p999_us) == (2.0, 3.0, None)
    assert result.per_second == 3000
    assert result.to_json() == {
        "workload": "hand-over",
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


def test_every_alternative_on_host_memory_runs():
    command = [
        sys.executable,
        "-m",
        "poolbridge.bench",
        "--json",
        "--kind",
        "host",
        "--bytes",
        "4096",
        "--seconds",
        "0.01",
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    systems = {link.name for link in LINKS if link.kind == "host"}
    seen = {line["skipped"]["system"] if "skipped" in line else line["system"] for line in lines}
    assert seen == systems
    for line in lines:
        if "skipped" in line:
            assert line["skipped"]["reason"]
        else:
            assert line["per_second"] > 0
            assert line["samples"] >= 5
