"""Writes the tables of docs/performance.md from results of `poolsvc bench`: `python benchmarks/page.py [--check]`.

A table stands between the comments `<!-- table NAME FILE ARGUMENTS -->` and `<!-- end -->`. FILE is a file in
`benchmarks/results`, which holds what `poolsvc bench --json` printed. With --check, the page is not written, and the
exit status is 1 if it is not up to date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "performance.md"
OURS, THEIRS = "poolbridge", "iceoryx2"
UNITS = {"KiB": 10, "MiB": 20, "GiB": 30}
Report = dict[str, Any]


def micros(value: float | None) -> str:
    """Return a time in microseconds with two or three digits."""
    if value is None:
        return ""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a number of frames a second with three digits."""
    if not value:
        return ""
    step = 10 ** max(0, len(str(int(value))) - 3)
    return f"{round(value / step) * step:,}"


def rows(report: Report, kind: str, workload: str) -> list[dict[str, Any]]:
    """Return the results for a kind of memory whose workload matches the pattern."""
    return [row for row in report["results"] if row["kind"] == kind and re.fullmatch(workload, row["workload"])]


def table(head: list[str], body: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = (head, ["---"] * len(head), *body)
    return "\n".join("|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in lines)


def times(row: dict[str, Any]) -> str:
    """Return the p50 and, in brackets, the p99 of a result in microseconds."""
    return "" if row["p50_us"] is None else f"{micros(row['p50_us'])} ({micros(row['p99_us'])})"


def latency(row: dict[str, Any]) -> str:
    """Return the p50 and the p99 of a stream in microseconds."""
    return f"{micros(row.get('p50_us'))}, {micros(row.get('p99_us'))}".strip(", ")


def machine(report: Report) -> str:
    """Say on which machine and with which versions the results were measured."""
    of = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in sorted(of["packages"].items()) if name != "cuda.core")
    gpus = "".join(f", {gpu['name']}, CUDA {of['cuda'] // 1000}.{of['cuda'] % 1000 // 10}" for gpu in of["devices"][:1])
    return f"{of['cpus']} CPUs{gpus}, Linux {of['kernel'].split('-')[0]}, Python {of['python']}; {packages}."


def transfers(report: Report, kind: str, *sizes: str) -> str:
    """Show how long a transfer takes: p50 and p99 for each size."""
    found: dict[str, dict[int, str]] = {}
    for row in rows(report, kind, "transfer.*"):
        system = row["system"] + row["workload"].removeprefix("transfer").replace("/", ", ")
        found.setdefault(system, {})[row["bytes"]] = times(row)
    wanted = [int(size[:-3]) << UNITS[size[-3:]] for size in sizes]
    lines = [[system, *(cells.get(size, "") for size in wanted)] for system, cells in found.items()]
    return table(["µs: p50 (p99)", *sizes], [line for line in lines if any(line[1:])])


WAYS = {
    "go-go": "Go → Go",
    "go-python": "Go → Python",
    "go-python leases": "Go → Python, leases",
    "go-spinning python": "Go → Python, spinning",
    "python-go": "Python → Go",
    "python-python": "Python → Python",
    "python-spinning": "Python → Python, spinning",
    "python-queue": "Python → Python, queue",
}


def streams(report: Report, kind: str) -> str:
    """Show the streams of poolbridge: frames a second to each consumer, and the time from publishing to the array."""
    lines = []
    for row in rows(report, kind, "stream/.*"):
        if row["system"] == OURS:
            _, way, consumers = row["workload"].split("/")
            lines.append([f"{WAYS[way]}, {consumers}", rate(row["per_second"]), latency(row)])
    return table(["", "frames a second to each", "p50, p99 µs"], lines)


def systems(report: Report, kind: str) -> str:
    """Compare a stream to one Python consumer with the streams of other systems."""
    found = [row for row in rows(report, kind, "stream/go-python/1 consumer") if row["bytes"] > 1]
    ours = next(row["per_second"] for row in found if row["system"] == OURS)
    lines = [[row["system"], rate(row["per_second"]), f"{ours / row['per_second']:.1f}"] for row in found]
    return table(["", "frames a second", "poolbridge carries so many times as many"], lines)


def python(report: Report, kind: str) -> str:
    """Compare streams between Python processes with those of iceoryx2."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows(report, kind, "stream/python-(python|spinning|queue)/.*"):
        _, way, consumers = row["workload"].split("/")
        name = consumers + WAYS[way].removeprefix("Python → Python")
        found.setdefault(name, {})[row["system"]] = row
    lines = []
    for name, cells in found.items():
        ours, theirs = cells[OURS], cells.get(THEIRS, {})
        ratio = f"{ours['per_second'] / theirs['per_second']:.1f}" if theirs else ""
        rates = [rate(row.get("per_second")) for row in (ours, theirs)]
        lines.append([name, rates[0], latency(ours), rates[1], latency(theirs), ratio])
    return table(["", "frames a second to each", "p50, p99 µs", THEIRS, "p50, p99 µs", "times as many"], lines)


def growth(report: Report, kind: str) -> str:
    """Show how a transfer and the service's memory grow with the numbers of buffers and sessions."""
    own = {
        (one["buffers"], one["sessions"], one["state"]): f"{one['own_bytes'] / (1 << 20):.0f} MiB"
        for one in report["service"]
        if one["kind"] == kind
    }
    lines = []
    for row in rows(report, kind, "growth/.*"):
        buffers, sessions = (int(number) for number in re.findall(r"(\d+) ", row["workload"]))
        memory = [own[buffers, sessions, state] for state in ("idle", "busy")]
        lines.append([f"{buffers:,}, {sessions}", times(row), *memory])
    return table(["buffers, sessions", "transfer, µs: p50 (p99)", "the service's own memory, idle", "busy"], lines)


def others(report: Report, kind: str) -> str:
    """Show how long allocations and the start take, and what copies reach."""
    found = rows(report, kind, "(allocate|start-up|copy)/.*")
    lines = [[f"{row['workload']}: {row['system']}", times(row), rate(row["per_second"])] for row in found]
    return table(["", "µs: p50 (p99)", "a second"], lines)


TABLES: dict[str, Callable[..., str]] = {
    "machine": machine,
    "transfers": transfers,
    "streams": streams,
    "systems": systems,
    "python": python,
    "growth": growth,
    "others": others,
}
MARK = re.compile(r"<!-- table (.*?) -->\n.*?<!-- end -->", re.DOTALL)


def written(page: str) -> str:
    """Return the page with every table made anew."""

    def one(found: re.Match[str]) -> str:
        name, file, *arguments = found[1].split()
        report = json.loads((FOLDER / "results" / file).read_text(encoding="utf-8"))
        return f"<!-- table {found[1]} -->\n{TABLES[name](report, *arguments)}\n<!-- end -->"

    return MARK.sub(one, page)


def main() -> int:
    """Write the page, or check it."""
    page = PAGE.read_text(encoding="utf-8")
    new = written(page)
    if "--check" in sys.argv[1:]:
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
