"""Runs the command line of ``python -m poolbridge.bench``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from poolbridge._bench.streams import CONSUMERS, measure_streams
from poolbridge._bench.worker import work


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure streams between Python processes, or run as a worker of ``poolsvc bench``."""
    parser = argparse.ArgumentParser(
        prog="python -m poolbridge.bench",
        description="Does what `poolsvc bench` needs in Python: streams between Python processes, as lines of JSON.",
    )
    parser.add_argument("--socket", required=True, help="the service's socket")
    parser.add_argument("--kind", default="host", choices=("host", "device"), help="kind of memory (host)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time of each measurement (1)")
    parser.add_argument(
        "--consumers",
        action="append",
        type=int,
        help=f"number of consumers; may be given several times (default: {CONSUMERS})",
    )
    parser.add_argument("--worker", metavar="FD", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker is not None:
        return work(given.socket, given.worker)

    def show(line: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def skip(kind: str, system: str, reason: str) -> None:
        show({"skipped": {"kind": kind, "system": system, "reason": reason}})

    consumers = given.consumers or CONSUMERS
    for result in measure_streams(given.socket, skip, seconds=given.seconds, consumers=consumers, kind=given.kind):
        show(result.to_json())
    return 0
