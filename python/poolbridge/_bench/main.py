"""Runs the command line of ``python -m poolbridge.bench``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from poolbridge._bench import engines as _engines
from poolbridge._bench.alternatives import measure
from poolbridge._bench.sample import Result
from poolbridge._bench.streams import CONSUMERS, measure_streams
from poolbridge._bench.worker import work

_SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 1 << 30)
_PYTHON_STREAMS = "python-stream"
_ENGINES = "engines"
_WORKLOADS = ("transfer", "stream", _PYTHON_STREAMS)  # the workloads if the user names none


def _row(result: Result) -> str:
    values = (result.p50_us, result.p99_us, result.p999_us)
    times = "".join(f"{value:12.1f}" if value is not None else " " * 12 for value in values)
    row = f"{result.workload:18} {result.kind:8} {result.bytes:>11} {times} {result.per_second:12.0f}  {result.system}"
    if result.cpu_us is not None:
        row += f", {result.cpu_us:.1f} µs of the CPU for each frame"
    if result.service_share is not None:
        row += f", the service {result.service_share:.1%} of one"
    if result.per_second_range is not None:
        least, most = result.per_second_range
        row += f"; {result.rounds} rounds, {least:.0f} to {most:.0f} a second"
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure ways of sending arrays between Python processes, or run as a worker of ``poolsvc bench``."""
    parser = argparse.ArgumentParser(
        prog="python -m poolbridge.bench",
        description="Measure what users have without poolbridge: queues, shared memory and sockets between two Python "
        "processes. `poolsvc bench` runs this, and poolbridge beside it.",
    )
    parser.add_argument("--kind", action="append", choices=("host", "device"), help="kind of memory (default: both)")
    parser.add_argument("--bytes", action="append", type=int, help="bytes of an array (default: 4 KiB to 1 GiB)")
    parser.add_argument(
        "--only", action="append", choices=(*_WORKLOADS, _ENGINES), help=f"workload (default: all but {_ENGINES})"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="time of each measurement (default: 1)")
    parser.add_argument("--depth", type=int, default=64, help="arrays of a stream that are under way (default: 64)")
    parser.add_argument("--json", action="store_true", help="print a JSON object a line")
    parser.add_argument("--worker", metavar="FD", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--socket", help="socket of a service of poolbridge, which Python streams then are measured with too"
    )
    parser.add_argument(
        "--consumers",
        action="append",
        type=int,
        help=f"number of consumers of a Python stream; may be given several times (default: {CONSUMERS})",
    )
    parser.add_argument(
        "--sleeping", action="store_true", help="of Python streams also measure consumers that only sleep"
    )
    parser.add_argument("--alone", action="store_true", help="of Python streams measure poolbridge alone")
    given = parser.parse_args(arguments)
    if given.worker is not None:
        return work(given.socket, given.worker)

    def show(line: dict[str, Any] | str) -> None:
        sys.stdout.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
        sys.stdout.flush()

    def skip(kind: str, system: str, reason: str) -> None:
        if given.json:
            show({"skipped": {"kind": kind, "system": system, "reason": reason}})
        else:
            show(f"skipped {kind} {system}: {reason}")

    def line(result: Result) -> None:
        show(result.to_json() if given.json else _row(result))

    if not given.json:
        heads = "".join(f"{head:>12}" for head in ("p50 µs", "p99 µs", "p99.9 µs"))
        show(f"{'workload':18} {'kind':8} {'bytes':>11} {heads} {'a second':>12}  system")
    kinds, sizes, workloads = given.kind or ["host", "device"], given.bytes or _SIZES, given.only or _WORKLOADS
    wanted = list(kinds), list(sizes), list(workloads)
    if not set(workloads) <= {_PYTHON_STREAMS, _ENGINES}:
        for result in measure(*wanted, skip, seconds=given.seconds, depth=given.depth):
            line(result)
    for kind in kinds if _PYTHON_STREAMS in workloads else ():
        for result in measure_streams(
            given.socket,
            skip,
            seconds=given.seconds,
            consumers=given.consumers or CONSUMERS,
            kind=kind,
            others=not given.alone,
            sleeping=given.sleeping,
        ):
            line(result)
    if _ENGINES in workloads:
        for result in _engines.measure_engines(skip, given.bytes or _engines.SIZES, seconds=given.seconds):
            line(result)
    return 0
