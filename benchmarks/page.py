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
KINDS = "device", "host"  # memory of the GPU, and of the CPU
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
    lines = ["|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in (head, *body)]
    return "\n".join((lines[0], "|" + "---|" * len(head), *lines[1:]))


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


def named(system: str) -> str:
    """Return the name of a system in the page."""
    return system.replace("multiprocessing.Queue", "Queue").replace("multiprocessing.shared_memory", "shared_memory")


def transfers(report: Report, kind: str, *sizes: str) -> str:
    """Show how long a transfer takes, and how many frames a second a system carries to one Python consumer."""
    found: dict[str, dict[int, str]] = {}
    for row in rows(report, kind, "transfer.*"):
        system = row["system"] + row["workload"].removeprefix("transfer").replace("/", ", ")
        found.setdefault(system, {})[row["bytes"]] = times(row)
    wanted = [int(size[:-3]) << UNITS[size[-3:]] for size in sizes]
    streams = {
        row["system"]: rate(row["per_second"])
        for row in rows(report, kind, "stream/go-python/1 consumer")
        if row["bytes"] > 1
    }
    lines = [[system, *(cells.get(size, "") for size in wanted)] for system, cells in found.items()]
    lines = [[named(line[0]), *line[1:], streams.get(line[0], "")] for line in lines if any(line[1:])]
    return table(["µs: p50 (p99)", *sizes, "frames a second"], lines)


WAYS = {
    "go-go": "Go → Go",
    "go-python": "Go → Python",
    "go-python leases": "Go → Python, leases",
    "go-spinning python": "Go → Python, spinning",
    "python-go": "Python → Go",
}
BETWEEN_PYTHON = {"python": "", "spinning": ", spinning", "queue": ", queue", "leases": ", a lease each"}


def streams(report: Report, *numbers: str) -> str:
    """Show the streams that begin or end in Go to these numbers of consumers, on memory of the GPU and of the CPU."""
    found: dict[str, dict[str, list[str]]] = {}
    for kind in KINDS:
        for row in rows(report, kind, "stream/.*"):
            _, way, consumers = row["workload"].split("/")
            number = consumers.split()[0]
            if row["system"] == OURS and way in WAYS and number in numbers:
                found.setdefault(f"{WAYS[way]}, {number}", {})[kind] = [rate(row["per_second"]), latency(row)]
    lines = [[name, *(cell for kind in KINDS for cell in cells.get(kind, ["", ""]))] for name, cells in found.items()]
    return table(["consumers", "GPU: frames a second", "p50, p99 µs", "CPU: frames a second", "p50, p99 µs"], lines)


def python(report: Report, *numbers: str) -> str:
    """Show streams between Python processes, beside those of iceoryx2, to these numbers of consumers."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for kind in reversed(KINDS):
        for row in rows(report, kind, "stream/python-(python|spinning|queue|leases)/.*"):
            _, way, consumers = row["workload"].split("/")
            number = consumers.split()[0]
            if number in numbers:
                name = number + BETWEEN_PYTHON[way.removeprefix("python-")]
                found.setdefault(name, {})[kind, row["system"]] = row
    lines = []
    for name, cells in found.items():
        shown = [cells.get(one, {}) for one in (("device", OURS), ("host", OURS), ("host", THEIRS))]
        ours, theirs = shown[1:]
        ratio = f"{ours['per_second'] / theirs['per_second']:.1f}" if theirs else ""
        lines.append([name, *(text for row in shown for text in (rate(row.get("per_second")), latency(row))), ratio])
    columns = [text for name in ("GPU", "CPU", THEIRS) for text in (f"{name}: frames a second", "p50, p99 µs")]
    return table(["consumers", *columns, "times as many"], lines)


def growth(report: Report, *numbers: str) -> str:
    """Show a transfer and the service's memory with these numbers of buffers, and with numbers of sessions."""
    own = {
        (one["kind"], one["buffers"], one["sessions"]): f"{one['own_bytes'] / (1 << 20):.0f} MiB"
        for one in report["service"]
        if one["state"] == "busy"
    }
    found: dict[tuple[int, int], list[str]] = {}
    for kind in KINDS:
        for row in rows(report, kind, "growth/.*"):
            buffers, sessions = (int(number) for number in re.findall(r"(\d+) ", row["workload"]))
            if str(buffers) in numbers:
                found.setdefault((buffers, sessions), []).extend([times(row), own[kind, buffers, sessions]])
    lines = [[f"{buffers:,}, {sessions}", *cells] for (buffers, sessions), cells in found.items()]
    columns = [text for name in ("GPU", "CPU") for text in (f"{name}: transfer, µs", "memory")]
    return table(["buffers, sessions", *columns], lines)


def others(report: Report) -> str:
    """Show how long allocations and the start take."""
    found: dict[str, dict[str, list[str]]] = {}
    for kind in KINDS:
        for row in rows(report, kind, "(allocate|start-up)/.*"):
            name = row["workload"].replace("/", ", ") + ("" if row["system"] == OURS else f": {row['system']}")
            found.setdefault(name, {})[kind] = [times(row), rate(row["per_second"])]
    lines = [[name, *(cell for kind in KINDS for cell in cells.get(kind, ["", ""]))] for name, cells in found.items()]
    return table(["µs: p50 (p99)", "GPU", "a second", "CPU", "a second"], lines)


TABLES: dict[str, Callable[..., str]] = {
    "machine": machine,
    "transfers": transfers,
    "streams": streams,
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
