"""`poolbridge.ray` with Ray itself: actors on two nodes, each with its own service, and processes that end."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import ray_actors
from realservice import POOLSVC, until

import poolbridge
import poolbridge.ray
from poolbridge.ray import _cluster

ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")

pytestmark = [
    pytest.mark.long,  # clusters of many processes
    pytest.mark.filterwarnings("ignore"),  # Ray's own warnings
    pytest.mark.skipif(not os.access(POOLSVC, os.X_OK), reason="poolsvc is not built: make build"),
]

EXAMPLES = Path(__file__).parents[2] / "examples" / "ray"
POOL = {"ray": {"kind": "host", "max_bytes": "96MiB"}}


@pytest.fixture(autouse=True)
def no_leaks():
    """Replace the usual check for leaks: Ray opens descriptors at any time. `nothing_left` finds lost leases."""


def actors(transport, falling):
    """Return the class of the actors. Ray pickles the class by value, because the class is defined inside a function.

    A class of the module itself would not work, because Ray's processes cannot import this module.
    """

    class Actor:
        def __init__(self):
            self.array = np.empty(0)

        @ray.method(tensor_transport=transport)
        def pooled(self, count, value):
            array = poolbridge.ray.empty(count)
            array[:] = value
            return array

        @ray.method(tensor_transport=transport)
        def plain(self, count, value):
            return np.full(count, value, "float32")

        @ray.method(tensor_transport=transport)
        def several(self):
            return {"a": np.arange(6).reshape(2, 3), "b": [np.ones((), "bool"), "text"]}

        @ray.method(tensor_transport=transport)
        def objects(self):
            return np.array([object()])

        @ray.method(tensor_transport=falling)
        def strings(self):
            return np.array(["a", "bc"])

        @ray.method(tensor_transport=transport)
        def again(self, array):
            return array

        def sum(self, array):
            return float(array.sum())

        def total(self, several):
            return int(several["a"].sum()), several["b"][0].item(), several["b"][1]

        def joined(self, array):
            return "".join(array.tolist())

        def hold(self, array):
            self.array = array

        def held(self):
            return float(self.array.sum())

        def let_go(self):
            self.array = np.empty(0)

        def stats(self):
            return poolbridge.ray.stats()

        def pid(self):
            return os.getpid()

    return ray.remote(num_cpus=0, max_concurrency=2, enable_tensor_transport=True)(Actor)


def ray_processes(folder):
    """Return the ids of processes whose environment or command line contains the path `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and folder.encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            pass
    return [pid for pid in found if pid != os.getpid()]


class Nodes:
    """A cluster of two nodes on this machine."""

    def __init__(self, folder):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        for name in ("near", "far"):
            self.add(folder, name)
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="error")
        self.transport = poolbridge.ray.register(nixl=False)  # test_ray_nodes.py tests NIXL
        self.falling = poolbridge.ray.register(name="falling", fallback=True)
        self.kind = actors(self.transport, self.falling)
        self.ids = {
            name: node["NodeID"] for node in ray.nodes() for name in ("near", "far") if name in node["Resources"]
        }

    def add(self, folder, name, attempts=4):
        """Add a node. Try up to `attempts` times, because Ray ends a try after 30 s, which can be too short."""
        for left in reversed(range(attempts)):
            try:
                self.cluster.add_node(
                    num_cpus=1,
                    temp_dir=f"{folder}/ray",
                    object_store_memory=128 << 20,
                    include_dashboard=False,
                    resources={name: 1000},
                    env_vars={"POOLBRIDGE_SOCKET": f"{folder}/{name}/s"},
                )
            except Exception as error:  # Ray has no class for this error
                if not left or "timed out" not in str(error):
                    raise
            else:
                return

    def actor(self, node="near"):
        return self.kind.options(resources={node: 1}).remote()


@pytest.fixture(scope="module")
def nodes():
    folder = tempfile.mkdtemp(prefix="pbray")
    before = {name: os.environ.get(name) for name in ("POOLBRIDGE_SOCKET", "POOLBRIDGE_POOLSVC", "RAY_TMPDIR")}
    # This process is Ray's driver, on the first node. Ray stores the address of the cluster in a file below RAY_TMPDIR.
    os.environ |= {"POOLBRIDGE_SOCKET": f"{folder}/near/s", "POOLBRIDGE_POOLSVC": POOLSVC, "RAY_TMPDIR": folder}
    made = None
    try:
        made = Nodes(folder)
        yield made
    finally:
        poolbridge.ray.close()
        ray.shutdown()
        if made is not None:
            made.cluster.shutdown()
        for pid in ray_processes(folder):  # processes of a node that failed to start
            kill(pid)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
        shutil.rmtree(folder)
    until(lambda: not ray_processes(folder), 60)


@pytest.fixture(scope="module")
def services(nodes):
    with poolbridge.ray.start(pools=POOL) as started:
        yield started


@pytest.fixture(scope="module")
def pair(nodes, services):
    made = nodes.actor(), nodes.actor()
    ray.get([actor.pid.remote() for actor in made])
    return made


@pytest.fixture(scope="module")
def far(nodes, services):
    return nodes.actor("far")


def left(nodes, services, node="near"):
    with poolbridge.connect(services.paths[nodes.ids[node]], timeout=60) as client:
        stats = client.stats()
        return stats.leases, stats.buffers, stats.names


def remaining(client):
    """Wait up to a minute until a service has no leases, buffers or names; return those that are left."""
    deadline = time.monotonic() + 60
    while any(found := (client.leases(), client.buffers(), client.names())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.fixture
def nothing_left(nodes, services):
    """Check that a test leaves no lease, buffer or name on either node."""
    yield
    gc.collect()
    for node in ("near", "far"):
        with poolbridge.connect(services.paths[nodes.ids[node]], timeout=60) as client:
            assert remaining(client) == ([], [], [])


def grew(actor, before):
    after = ray.get(actor.stats.remote())
    return {
        name: more
        for name in (
            "sent_in_place",
            "sent_copied",
            "sent_by_ray",
            "received_in_place",
            "received_moved",
            "received_by_ray",
        )
        if (more := getattr(after, name).arrays - getattr(before, name).arrays)
    }


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def mover_pid(nodes, node):
    """Return the process id of a node's mover, the process that sends the node's arrays to other nodes."""
    mover = _cluster.mover(nodes.ids[node])
    return ray.get(mover.__ray_call__.remote(lambda self: __import__("os").getpid()))


# One node


def test_actors_of_a_node_hand_on_arrays_in_place(pair, nothing_left):
    a, b = pair
    sent, received = ray.get([a.stats.remote(), b.stats.remote()])
    assert ray.get(b.sum.remote(a.pooled.remote(1000, 3))) == 3000
    assert grew(a, sent) == {"sent_in_place": 1}
    assert grew(b, received) == {"received_in_place": 1}
    assert ray.get(b.sum.remote(a.plain.remote(1000, 4))) == 4000
    assert grew(a, sent) == {"sent_in_place": 1, "sent_copied": 1}
    assert ray.get(b.total.remote(a.several.remote())) == (15, True, "text")
    assert grew(b, received) == {"received_in_place": 4}


def test_readers_share_one_buffer(nodes, services, pair, nothing_left):
    a, b = pair
    reference = a.pooled.remote(1000, 2)
    ray.get(b.hold.remote(reference))
    array = ray.get(reference)
    assert array.sum() == 2000
    assert not array.flags.writeable
    (buffer,) = poolbridge.ray.client().buffers()
    assert buffer.reads == 3
    del reference
    until(lambda: left(nodes, services)[2] == 0)
    assert ray.get(b.held.remote()) == 2000
    ray.get(b.let_go.remote())


def test_an_array_that_came_is_passed_on_in_place(pair, nothing_left):
    a, b = pair
    before = ray.get(b.stats.remote())
    assert ray.get(a.sum.remote(b.again.remote(a.plain.remote(10, 1)))) == 10
    assert grew(b, before) == {"received_in_place": 1, "sent_in_place": 1}


def test_the_driver_puts_and_gets(nodes, pair, nothing_left):
    reference = ray.put(np.arange(10), _tensor_transport=nodes.transport)
    assert ray.get(pair[0].sum.remote(reference)) == 45
    del reference


def test_a_thousand_objects_leave_nothing(pair, nothing_left):
    a, b = pair
    for first in range(0, 1000, 100):
        sums = [b.sum.remote((a.pooled if n % 2 else a.plain).remote(16, n)) for n in range(first, first + 100)]
        assert ray.get(sums) == [16.0 * n for n in range(first, first + 100)]


def test_an_actor_has_rays_manager_of_transports_before_an_array_comes(nodes, pair, nothing_left):
    receiver = nodes.actor()
    ray.get(receiver.pid.remote())
    # This task is in the same concurrency group as Ray's task that registers the transports. Ray's task is the first in
    # the group, so this task runs after it.
    ask = receiver.__ray_call__.options(concurrency_group="_ray_system")
    assert ray.get(ask.remote(lambda _: ray._private.worker.global_worker._rdt_manager is not None))


# Two nodes


def test_another_node_gets_the_bytes_by_a_mover(pair, far, nothing_left):
    a, _ = pair
    before = ray.get(far.stats.remote())
    assert ray.get(far.sum.remote(a.pooled.remote(1 << 20, 2))) == 1 << 21
    assert grew(far, before) == {"received_moved": 1}
    assert ray.get(far.stats.remote()).reasons[
        "the sender is on another node; the transport was registered with nixl=False"
    ]
    assert ray.get(far.total.remote(a.several.remote())) == (15, True, "text")


def test_a_mover_that_died_is_made_again(nodes, pair, far, nothing_left):
    reference = pair[0].pooled.remote(100, 2)
    assert ray.get(far.sum.remote(reference)) == 200
    kill(mover_pid(nodes, "near"))
    assert ray.get(far.sum.remote(reference)) == 200
    del reference


def test_a_mover_that_dies_in_a_transfer_is_made_again(nodes, pair, far, nothing_left):
    pid = mover_pid(nodes, "near")
    os.kill(pid, signal.SIGSTOP)
    total = far.sum.remote(pair[0].pooled.remote(100, 2))
    kill(pid)
    assert ray.get(total) == 200


@pytest.fixture
def stopped_mover(nodes):
    """Stop the process that sends arrays of the first node to other nodes, so that transfers hang; give its id."""
    pid = mover_pid(nodes, "near")
    os.kill(pid, signal.SIGSTOP)
    yield pid
    os.kill(pid, signal.SIGCONT)


def receiving(actor):
    """Start a task that counts the transfers for which an actor waits, even while the actor runs another task."""

    def transfers(actor):
        from ray.experimental.rdt.util import get_tensor_transport_manager

        return len(get_tensor_transport_manager("POOLBRIDGE")._receiving)

    return actor.__ray_call__.options(concurrency_group="_ray_system_error").remote(transfers)


def test_a_transfer_can_be_aborted_and_its_actors_go_on(nodes, pair, far, stopped_mover, nothing_left):
    from ray.experimental.rdt.rdt_store import __ray_abort_transport__

    reference = pair[0].pooled.remote(100, 2)
    total = far.sum.remote(reference)
    until(lambda: ray.get(receiving(far)) == 1)
    ask = far.__ray_call__.options(concurrency_group="_ray_system_error")
    ray.get(ask.remote(__ray_abort_transport__, reference.hex(), None, nodes.transport))
    with pytest.raises(poolbridge.RequestCancelledError, match="aborted"):
        ray.get(total)
    os.kill(stopped_mover, signal.SIGCONT)
    assert ray.get(receiving(far)) == 0
    assert ray.get(far.sum.remote(reference)) == 200
    del reference, total


def test_a_receiver_that_dies_in_a_transfer_loses_only_its_own(nodes, pair, far, stopped_mover, nothing_left):
    receiver = nodes.actor("far")
    pid = ray.get(receiver.pid.remote())
    reference = pair[0].pooled.remote(100, 2)
    total = receiver.sum.remote(reference)
    until(lambda: ray.get(receiving(receiver)) == 1)
    kill(pid)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(total)
    os.kill(stopped_mover, signal.SIGCONT)
    assert ray.get(far.sum.remote(reference)) == 200
    del reference, total


def test_a_sender_that_dies_in_a_transfer_is_an_error_of_the_receiver(
    nodes, services, far, stopped_mover, nothing_left
):
    sender = nodes.actor()
    pid = ray.get(sender.pid.remote())
    total = far.sum.remote(sender.pooled.remote(100, 2))
    until(lambda: ray.get(receiving(far)) == 1)
    kill(pid)
    until(lambda: left(nodes, services) == (0, 0, 0))
    os.kill(stopped_mover, signal.SIGCONT)
    with pytest.raises((poolbridge.PoolbridgeError, ray.exceptions.ActorDiedError)):
        ray.get(total)
    until(lambda: ray.get(receiving(far)) == 0)
    del total, sender


def test_a_service_that_dies_in_a_transfer_is_an_error_of_the_receiver(
    nodes, services, pair, far, stopped_mover, nothing_left
):
    keeper = ray.get_actor(_cluster.keeper_name(nodes.ids["near"]), namespace=_cluster.NAMESPACE)
    service = ray.get(keeper.service_pid.remote())
    total = far.sum.remote(pair[0].pooled.remote(100, 2))
    until(lambda: ray.get(receiving(far)) == 1)
    kill(service)
    until(lambda: not Path(f"/proc/{service}").exists() or " Z" in Path(f"/proc/{service}/stat").read_text())
    ray.get(keeper.path.remote())
    os.kill(stopped_mover, signal.SIGCONT)
    with pytest.raises((poolbridge.UnavailableError, poolbridge.StaleError, poolbridge.ClosedError)):
        ray.get(total)
    assert ray.get(far.sum.remote(pair[0].pooled.remote(100, 3))) == 300
    del total


# Ends


def test_a_receiver_that_died_before_the_hand_off_is_an_error_of_its_task(nodes, pair, nothing_left):
    receiver = nodes.actor()
    kill(ray.get(receiver.pid.remote()))
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(receiver.sum.remote(pair[0].pooled.remote(100, 2)))
    assert ray.get(pair[1].sum.remote(pair[0].pooled.remote(100, 2))) == 200


def test_a_sender_that_died_before_the_hand_off_is_an_error_of_the_receiver(nodes, pair, nothing_left):
    sender = nodes.actor()
    kill(ray.get(sender.pid.remote()))
    with pytest.raises((poolbridge.PoolbridgeError, ray.exceptions.RayError)):
        ray.get(pair[1].sum.remote(sender.pooled.remote(100, 2)))
    assert ray.get(pair[1].sum.remote(pair[0].pooled.remote(100, 2))) == 200


def test_a_service_that_died_before_the_hand_off_is_an_error_that_names_the_array(
    nodes, services, pair, far, nothing_left
):
    a, b = pair
    lost, kept = a.pooled.remote(100, 2), a.strings.remote()
    ray.wait([lost, kept], num_returns=2)
    keeper = ray.get_actor(_cluster.keeper_name(nodes.ids["near"]), namespace=_cluster.NAMESPACE)
    service = ray.get(keeper.service_pid.remote())
    kill(service)
    until(lambda: not Path(f"/proc/{service}").exists() or " Z" in Path(f"/proc/{service}/stat").read_text())
    for receiver in (b, nodes.actor(), far):
        with pytest.raises(poolbridge.StaleError, match=r"buffer \d+ \(float32\[100\] in pool 'ray'\) is lost"):
            ray.get(receiver.sum.remote(lost))
    before = ray.get(b.stats.remote())
    assert ray.get([b.joined.remote(kept), far.joined.remote(kept)]) == ["abc", "abc"]
    assert grew(b, before) == {"received_by_ray": 1}
    assert ray.get(b.sum.remote(a.pooled.remote(100, 3))) == 300
    del lost, kept


def test_a_dead_receiver_loses_only_its_own(nodes, services, pair, nothing_left):
    a, b = pair
    receiver = nodes.actor()
    reference = a.pooled.remote(100, 2)
    ray.get(receiver.hold.remote(reference))
    kill(ray.get(receiver.pid.remote()))
    until(lambda: left(nodes, services)[0] == 1)
    assert ray.get(b.sum.remote(reference)) == 200
    del reference, receiver


def test_a_dead_sender_takes_nothing_from_those_who_have_it(nodes, services, pair, far, nothing_left):
    _, b = pair
    sender = nodes.actor()
    reference = sender.pooled.remote(100, 2)
    ray.get(b.hold.remote(reference))
    kill(ray.get(sender.pid.remote()))
    until(lambda: left(nodes, services)[0] == 1)
    assert ray.get(b.held.remote()) == 200
    ray.get(b.let_go.remote())
    until(lambda: left(nodes, services) == (0, 0, 0))
    for receiver in (b, far):
        with pytest.raises((poolbridge.StaleError, poolbridge.NotFoundError, ray.exceptions.ActorDiedError)):
            ray.get(receiver.sum.remote(reference))
    del reference, sender


def test_a_dead_service_is_started_again_and_arrays_stay(nodes, services, pair, nothing_left):
    a, b = pair
    reference = a.pooled.remote(100, 2)
    ray.get(b.hold.remote(reference))
    keeper = ray.get_actor(_cluster.keeper_name(nodes.ids["near"]), namespace=_cluster.NAMESPACE)
    kill(ray.get(keeper.service_pid.remote()))
    assert ray.get(b.held.remote()) == 200
    assert ray.get(b.sum.remote(a.pooled.remote(100, 3))) == 300
    with pytest.raises((poolbridge.UnavailableError, poolbridge.StaleError, poolbridge.NotFoundError)):
        ray.get(b.sum.remote(reference))
    ray.get(b.let_go.remote())
    del reference


def test_a_dead_keeper_comes_back_with_its_service(nodes, services, pair, nothing_left):
    a, b = pair
    keeper = ray.get_actor(_cluster.keeper_name(nodes.ids["near"]), namespace=_cluster.NAMESPACE)
    service = ray.get(keeper.service_pid.remote())
    kill(ray.get(keeper.__ray_call__.remote(lambda self: __import__("os").getpid())))
    until(lambda: not Path(f"/proc/{service}").exists() or " Z" in Path(f"/proc/{service}/stat").read_text())
    assert ray.get(b.sum.remote(a.pooled.remote(100, 3))) == 300


def test_the_benchmark_runs(nodes, services, nothing_left, capfd):
    ray_actors.measure(ray, nodes.transport, mib=[1], moves=1, readers=1, big=1)
    assert "poolbridge, by a mover" in capfd.readouterr().out
    assert [len(seconds) for seconds in ray_actors.compare(ray, nodes.transport, 4096, 2)] == [2, 2]


# What goes wrong


def test_what_cannot_be_shared_is_an_error_of_the_task(pair, nothing_left):
    a, b = pair
    with pytest.raises(poolbridge.InvalidArgumentError, match="object"):
        ray.get(b.sum.remote(a.objects.remote()))
    with pytest.raises(poolbridge.PoolLimitError):
        ray.get(b.sum.remote(a.plain.remote(32 << 20, 1)))
    assert ray.get(b.sum.remote(a.pooled.remote(10, 1))) == 10


def test_a_fallback_that_was_asked_for_is_counted_with_its_reason(pair, far, nothing_left):
    a, b = pair
    sent, received = ray.get([a.stats.remote(), b.stats.remote()])
    reference = a.strings.remote()
    assert ray.get([b.joined.remote(reference), far.joined.remote(reference)]) == ["abc", "abc"]
    assert grew(a, sent) == {"sent_by_ray": 1}
    assert grew(b, received) == {"received_by_ray": 1}
    assert any("InvalidArgumentError" in reason for reason in ray.get(b.stats.remote()).reasons)
    del reference


def test_registering_again_with_other_options_is_an_error(nodes):
    assert poolbridge.ray.register(nixl=False) == nodes.transport
    with pytest.raises(poolbridge.AlreadyExistsError, match="name="):
        poolbridge.ray.register(pool="other")
    with pytest.raises(poolbridge.InvalidArgumentError, match="library"):
        poolbridge.ray.register("tensorflow")  # type: ignore[arg-type]


def test_pools_with_other_limits_are_an_error(nodes, services):
    with pytest.raises(poolbridge.AlreadyExistsError, match="ray"):
        poolbridge.ray.start(pools={"ray": {"kind": "host", "max_bytes": "1MiB"}})


def test_start_checks_its_nodes(nodes, services):
    with pytest.raises(poolbridge.NotFoundError, match="no node 'nowhere'"):
        poolbridge.ray.start(nodes={"nowhere": {}})
    with pytest.raises(poolbridge.InvalidArgumentError, match="colour"):
        poolbridge.ray.start(nodes={nodes.ids["near"]: {"colour": "red"}})


def output_of(example, folder):
    """Run an example in its own cluster, and return its output."""
    environment = {
        "RAY_ADDRESS": "local",
        "POOLBRIDGE_SOCKET": str(folder / "r" / "s"),
        "POOLBRIDGE_POOLSVC": POOLSVC,
    }
    done = subprocess.run(
        [sys.executable, EXAMPLES / example], env=os.environ | environment, capture_output=True, text=True, timeout=1000
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_runs(tmp_path):
    assert "('right', [9, 9, 9])\ncopies on one node: 0\n" in output_of("model.py", tmp_path)


def test_stages_of_ray_data_hand_on_names_of_frames_in_the_pool(tmp_path):
    for package in ("pandas", "pyarrow", "fsspec"):
        pytest.importorskip(package, reason=f"Ray Data needs {package}: pip install 'ray[data]'")
    lines = output_of("data.py", tmp_path).splitlines()
    assert sorted(line for line in lines if line.startswith("frame ")) == sorted(
        f"frame {number}: mean {number}, in place: True" for number in range(16)
    )
    assert "frames left in the pool: 0" in lines


def test_stop_ends_what_start_has_started(nodes, services, pair):
    paths = list(services.paths.values())
    services.stop()
    for path in paths:
        with pytest.raises(poolbridge.ServiceNotRunningError):
            poolbridge.connect(path)
    a, b = pair
    with pytest.raises(poolbridge.ServiceNotRunningError):
        ray.get(b.sum.remote(a.plain.remote(10, 1)))
