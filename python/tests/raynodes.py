"""Runs two nodes of Ray on one machine. Each node has its own network, `/dev/shm`, processes and service.

A veth pair connects the two networks. ``python python/tests/raynodes.py`` passes arrays from one actor to another actor
of the first node, and to an actor of the second node. The program prints the results as JSON. With ``--mib 64``, the
program also measures how long it takes to pass arrays of 64 MiB. The program needs root. Each node ends when its
standard input closes, so a killed run leaves no processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from realservice import POOLSVC

NETWORK = "10.211.7"
PORT = 6379
ALONE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# This script is the first process of a node: when it ends, the kernel ends all other processes of the node.
NODE = """
set -e
mount -t tmpfs -o size=700m tmpfs /dev/shm
mount -t sysfs sysfs /sys  # UCX looks for the network's interfaces there
ip link set lo up
echo alone
read joined
ip address add "$1/24" dev poolbridge
ip link set poolbridge up
shift
"$@" >&2
echo up
read end
"""


def missing() -> str:
    """Return what this machine lacks to run two nodes, or an empty text if it lacks nothing."""
    programs = [name for name in ("ip", "unshare", "nsenter", "mount") if shutil.which(name) is None]
    if programs:
        return f"{', '.join(programs)} not found: install iproute2 and util-linux"
    tried = subprocess.run([*ALONE, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, text=True)
    if tried.returncode:
        return f"namespaces need root with CAP_SYS_ADMIN: run it with sudo ({tried.stderr.strip()})"
    return ""


class Node:
    """One node. Its processes can reach no network except the veth pair."""

    def __init__(self, folder: Path, number: int) -> None:
        self.address = f"{NETWORK}.{number}"
        self.folder = folder / str(number)
        self.folder.mkdir()
        self.environment = os.environ | {
            "POOLBRIDGE_SOCKET": str(self.folder / "s" / "s"),
            "POOLBRIDGE_POOLSVC": POOLSVC,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "UCX_TLS": "tcp,self",  # else UCX thinks that nodes with one kernel share /dev/shm
        }
        head = f"{NETWORK}.1:{PORT}"
        role = ["--head", f"--port={PORT}", "--include-dashboard=false"] if number == 1 else [f"--address={head}"]
        self.log = (self.folder / "log").open("w+b")
        self.process = subprocess.Popen(
            [
                *ALONE, "sh", "-c", NODE, "node", self.address,
                sys.executable, "-m", "ray.scripts.scripts", "start", *role,
                f"--node-ip-address={self.address}", f"--temp-dir={self.folder / 'ray'}", "--num-cpus=1",
                f"--object-store-memory={400 << 20}", f'--resources={{"{"near" if number == 1 else "far"}": 1000}}',
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=self.environment,
        )  # fmt: skip
        self.hear("alone")
        (self.pid,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()

    def hear(self, word: str) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != word:
            self.log.seek(0)
            raise RuntimeError(f"node {self.address} has ended:\n{self.log.read().decode()}")

    def start(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("joined\n")
        self.process.stdin.flush()
        self.hear("up")

    def run(self, *command: str, seconds: float) -> str:
        """Run a command in the node, and return its output."""
        done = subprocess.run(
            ["nsenter", "--target", self.pid, "--net", "--mount", "--pid", *command],
            env=self.environment, capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def end(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.log):
            assert stream is not None
            stream.close()
        self.process.wait(60)


def on_two_nodes(*arguments: str, seconds: float = 1000) -> str:
    """Start two nodes, run this program in the first node as Ray's driver, and return its output."""
    nodes: list[Node] = []
    with tempfile.TemporaryDirectory(prefix="pbray") as folder:
        try:
            nodes.extend(Node(Path(folder), number) for number in (1, 2))
            first, second = nodes
            subprocess.run(
                f"ip link add poolbridge netns {first.pid} type veth peer name poolbridge netns {second.pid}".split(),
                check=True,
            )
            for node in nodes:
                node.start()
            return first.run(sys.executable, __file__, "drive", *arguments, seconds=seconds)
        finally:
            for node in nodes:
                node.end()


# Code that runs in the first node


def actors(ray: Any, transport: str, moved: str) -> Any:
    """Return the class of the actors. Ray pickles the class by value, because it is defined inside a function."""

    class Actor:
        @ray.method(tensor_transport=transport)  # type: ignore[untyped-decorator]
        def pooled(self, count: int, value: float) -> Any:
            import poolbridge.ray

            array = poolbridge.ray.empty(count)
            array[:] = value
            return array

        @ray.method(tensor_transport=moved)  # type: ignore[untyped-decorator]
        def by_mover(self, count: int, value: float) -> Any:
            import poolbridge.ray

            array = poolbridge.ray.empty(count)
            array[:] = value
            return array

        @ray.method(tensor_transport=transport)  # type: ignore[untyped-decorator]
        def part(self) -> Any:
            import poolbridge.ray

            array = poolbridge.ray.empty((4, 6))
            array[:] = np.arange(24).reshape(4, 6)
            return array[1:3, ::-2]

        def stored(self, count: int, value: float) -> Any:
            return np.full(count, value, "float32")

        def ends(self, array: Any) -> tuple[float, float]:
            return float(array[0]), float(array[-1])

        def elements(self, array: Any) -> list[Any]:
            elements: list[Any] = array.tolist()
            return elements

        def counts(self) -> dict[str, Any]:
            import poolbridge.ray

            stats = poolbridge.ray.stats()
            found = {name: getattr(stats, name) for name in stats.__slots__ if name != "reasons"}
            return {name: count.arrays for name, count in found.items() if count.arrays} | {"reasons": stats.reasons}

        def left(self) -> list[int]:
            """Wait up to a minute until the node's service has no leases, buffers and names; return what is left."""
            import poolbridge.ray

            client, deadline = poolbridge.ray.client(), time.monotonic() + 60
            while any(found := [len(client.leases()), len(client.buffers()), len(client.names())]):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            return found

        def where(self) -> list[int]:
            return [os.stat(path).st_ino for path in ("/proc/self/ns/net", "/proc/self/ns/mnt")]

    return ray.remote(num_cpus=0, enable_tensor_transport=True)(Actor)


def measured(ray: Any, ways: dict[str, Callable[[], Any]], moves: int) -> dict[str, list[float]]:
    """Call the functions `ways` in turn; return the median, least and greatest time of each function in seconds."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(moves + 3):
        for name, way in ways.items():
            begin = time.perf_counter()
            ray.get(way())
            if turn >= 3:
                times[name].append(time.perf_counter() - begin)
    return {name: [statistics.median(of), min(of), max(of)] for name, of in times.items()}


def drive(mib: int, moves: int) -> None:
    """Pass arrays between actors, and print the results as JSON."""
    import ray

    import poolbridge.ray
    from poolbridge.ray import _cluster, _nixl

    ray.init(address=f"{NETWORK}.1:{PORT}", log_to_driver=False, logging_level="error")
    kind = actors(ray, poolbridge.ray.register(), poolbridge.ray.register(name="moved", nixl=False))
    with poolbridge.ray.start(pools={"ray": {"kind": "host", "max_bytes": "300MiB"}}):
        sender, near = (kind.options(resources={"near": 1}).remote() for _ in range(2))
        far = kind.options(resources={"far": 1}).remote()
        found: dict[str, Any] = {}
        for name, receiver in {"near": near, "far": far}.items():
            found[name] = {
                "ends": ray.get(receiver.ends.remote(sender.pooled.remote(1 << 18, 3))),
                "part": ray.get(receiver.elements.remote(sender.part.remote())),
                "nothing": ray.get(receiver.elements.remote(sender.pooled.remote(0, 0))),
                "moved": ray.get(receiver.ends.remote(sender.by_mover.remote(10, 4))),
                "counts": ray.get(receiver.counts.remote()),
                "where": ray.get(receiver.where.remote()),
            }
        reference = sender.pooled.remote(10, 5)
        found["before"] = ray.get(far.ends.remote(reference))
        ray.kill(_cluster.mover(ray.get_runtime_context().get_node_id()))
        found["after"] = ray.get(far.ends.remote(reference))
        del reference
        found["counts"] = ray.get(far.counts.remote())
        found["left"] = ray.get([near.left.remote(), far.left.remote()])
        found["sender"] = ray.get(sender.counts.remote())
        if mib:
            count = mib << 18
            stored = kind.options(resources={"near": 1}).remote()  # Ray pickles differently after use of a transport
            ways = {
                "object store": lambda: far.ends.remote(stored.stored.remote(count, 1)),
                "mover": lambda: far.ends.remote(sender.by_mover.remote(count, 1)),
            }
            if not _nixl.missing():
                ways["NIXL"] = lambda: far.ends.remote(sender.pooled.remote(count, 1))
            found["seconds"] = measured(ray, ways, moves)
        print(json.dumps(found))
    poolbridge.ray.close()
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", default="run", choices=["run", "drive"])
    parser.add_argument("--mib", type=int, default=0, help="size of the arrays to measure; 0: measure nothing")
    parser.add_argument("--moves", type=int, default=15)
    given = parser.parse_args()
    if given.role == "drive":
        drive(given.mib, given.moves)
    elif lacks := missing():
        raise SystemExit(lacks)
    else:
        print(on_two_nodes(f"--mib={given.mib}", f"--moves={given.moves}", seconds=580))


if __name__ == "__main__":
    main()
