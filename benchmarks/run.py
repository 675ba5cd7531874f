"""Measures poolbridge and, beside it, what programs use without it: ``python benchmarks/run.py``.

The program runs ``poolsvc bench``. Then it measures other systems: queues, shared memory and sockets between two Python
processes, each used in its fastest way, and iceoryx2, in turn with the same streams of poolbridge. With ``--engines``,
it also measures arrays between actors of Ray and between workers of Dask, with poolbridge and without.

Ratios say how many times better poolbridge is. A stream that is slower than single transfers of the same system is
doubtful: the machine was busy, or the stream is not measured as it is used. It is compared with nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import alternatives
import engines
from fan_iceoryx2 import IceoryxFan
from sample import Result
from streams import measure_streams

import poolbridge

OURS: Final = "poolbridge"
SINGLE, STREAM = "transfer", "stream/go-python/1 consumer"
_CONSUMERS: Final = (1, 2, 4, 8)
_SIZES: Final = (4 << 10, 1 << 20, 64 << 20)
_UNITS: Final = {"KiB": 10, "MiB": 20, "GiB": 30}
_DEPTH: Final = 64  # arrays of a stream that are under way: as many as a channel of `poolsvc bench` has
Row = dict[str, Any]


def say(line: str) -> None:
    """Print a line for people."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def row(result: Row) -> str:
    """Return a result as a line for people."""
    values = (result.get(key) for key in ("p50_us", "p99_us", "p999_us"))
    times = "".join(f"{value:12.1f}" if value is not None else " " * 12 for value in values)
    return (
        f"{result['workload']:36} {result['kind']:7} {result['bytes']:>11} {times} {result['per_second']:12.0f}  "
        f"{result['system']}"
    )


def doubtful(results: list[Row]) -> list[Row]:
    """Return the streams that are slower than single transfers of the same system, one after the other."""
    single = {key(one): one["per_second"] for one in results if one["workload"] == SINGLE}
    streams = [one for one in results if one["workload"] == STREAM]
    return [one for one in streams if one["per_second"] < single.get((SINGLE, *key(one)[1:]), 0)]


def key(result: Row) -> tuple[str, str, int, str]:
    """Return what was measured: the workload, the kind of memory, the bytes and the system."""
    return result["workload"], result["kind"], result["bytes"], result["system"]


def ratios(results: list[Row]) -> Iterator[Row]:
    """Compare each result of another system with the result of poolbridge for the same work."""
    doubts = [key(one) for one in doubtful(results)]
    ours = {key(one)[:3]: one for one in results if one["system"] == OURS and key(one) not in doubts}
    for theirs in results:
        mine = ours.get(key(theirs)[:3])
        if theirs["system"] == OURS or mine is None or key(theirs) in doubts:
            continue
        rates = theirs["workload"].startswith("stream/")
        if not rates and mine["p50_us"] and theirs["p50_us"]:
            ratio = theirs["p50_us"] / mine["p50_us"]
        else:
            ratio = mine["per_second"] / theirs["per_second"]
        workload, kind, nbytes, system = key(theirs)
        yield {"workload": workload, "kind": kind, "bytes": nbytes, "against": system, "ratio": ratio}


def bytes_of(text: str) -> int:
    """Read a size such as 64KiB."""
    unit = text[-3:]
    if unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: expected a number and one of {', '.join(_UNITS)}")
    return int(text[:-3]) << _UNITS[unit]


def others(given: argparse.Namespace, skipped: list[Row]) -> Iterator[Result]:
    """Measure the systems without poolbridge, and the streams of Python processes of poolbridge and iceoryx2."""

    def skip(kind: str, system: str, reason: str) -> None:
        skipped.append({"kind": kind, "system": system, "reason": reason})
        say(f"skipped {kind} {system}: {reason}")

    sizes = [bytes_of(size) for size in given.size] if given.size else list(_SIZES)
    workloads = [SINGLE, "stream"]
    yield from alternatives.measure(given.kind, sizes, workloads, skip, seconds=given.seconds, depth=_DEPTH)
    with poolbridge.serve() as service:
        for kind in given.kind:
            yield from measure_streams(
                service.path, skip, seconds=given.seconds, consumers=_CONSUMERS, kind=kind, others=(IceoryxFan,)
            )
    if given.engines:
        yield from engines.measure_engines(skip, engines.SIZES, seconds=given.seconds)


def measured(given: argparse.Namespace) -> Row:
    """Run ``poolsvc bench``, without the streams that `others` measures, and return its report."""
    command = [given.poolsvc, "bench", "--json", "--python", sys.executable, "--time", f"{given.seconds}s"]
    command += ["--kind", ",".join(given.kind), "--only", "transfer,stream,copy,allocate,growth,start-up", *given.more]
    for size in given.size or ():
        command += ["--size", size]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    report: Row = json.loads(done.stdout)
    return report


def main() -> int:
    """Measure, print the ratios, and write the report."""
    root = Path(__file__).parents[1]
    parser = argparse.ArgumentParser(prog="python benchmarks/run.py", description=__doc__)
    parser.add_argument("--poolsvc", default=str(root / "bin" / "poolsvc"), help="the program (default: bin/poolsvc)")
    parser.add_argument("--kind", nargs="+", default=["host", "device"], choices=("host", "device"))
    parser.add_argument("--size", nargs="+", help="sizes of single arrays, such as 64KiB")
    parser.add_argument("--seconds", type=float, default=1.0, help="about the time of each measurement (1)")
    parser.add_argument("--engines", action="store_true", help="measure Ray and Dask, too")
    parser.add_argument("--out", help="file for the report; without it, standard output")
    parser.add_argument("more", nargs="*", help="after --, more arguments for `poolsvc bench`")
    given = parser.parse_args()
    given.poolsvc = str(Path(given.poolsvc).resolve())
    os.environ["POOLBRIDGE_POOLSVC"] = given.poolsvc  # the program that `poolbridge.serve` and the engines start
    report = measured(given)
    for result in others(given, report["skipped"]):
        report["results"].append(result.to_json())
        say(row(report["results"][-1]))
    report["doubts"] = doubtful(report["results"])
    report["ratios"] = list(ratios(report["results"]))
    for one in report["doubts"]:
        say(f"DOUBTFUL: slower than single transfers: {row(one)}")
    for one in report["ratios"]:
        say(f"{one['workload']:36} {one['kind']:7} {one['bytes']:>11} {one['ratio']:9.2f} x against {one['against']}")
    text = json.dumps(report, indent=2) + "\n"
    if given.out:
        Path(given.out).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
