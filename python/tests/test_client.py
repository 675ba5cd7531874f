"""Tests the blocking client with a service that works without faults."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import re
import subprocess
import sys
import threading
from functools import partial
from typing import get_args, get_type_hints

import numpy as np
import pytest

import poolbridge
from poolbridge._memory.mappings import MAPPINGS
from poolbridge._wire import messages as _messages


def test_a_buffer_goes_from_hand_to_hand_without_a_copy(service, client):
    lease = client.allocate((3, 4), "float32")
    array = np.from_dlpack(lease)
    array[:] = np.arange(12, dtype=np.float32).reshape(3, 4)
    lease.publish("frame")
    assert lease.readonly
    with poolbridge.connect(service.path) as other:
        got = other.get("frame")
        seen = np.asarray(got)
        assert seen.tolist() == array.tolist()
        assert not seen.flags.writeable
        array[0, 0] = 7
        assert seen[0, 0] == 7
        assert got._evidence()["mapped"]
        del seen


def test_a_lease_says_what_it_is(client):
    lease = client.allocate((2, 3), "int16")
    assert (lease.shape, lease.ndim, lease.size, lease.itemsize, lease.nbytes) == ((2, 3), 2, 6, 2, 12)
    assert (lease.strides, lease.dtype, lease.dtype_name) == ((6, 2), np.dtype("int16"), "int16")
    assert (lease.device, lease.kind, lease.pool, lease.name) == ("cpu", "host", "frames", None)
    assert (lease.readonly, lease.released, lease.array_count) == (False, False, 0)
    assert repr(lease) == "<poolbridge.Lease int16[2, 3] on cpu, 12 bytes, pool 'frames', write>"
    assert "<th>device</th><td>cpu (host)</td>" in lease._repr_html_()
    lease.release()
    assert "released" in repr(lease)


def test_get_opens_the_pool_that_the_buffer_is_in(service, client):
    client.allocate(4).publish("a", keep=True)
    lease = client.get("a")
    with poolbridge.connect(service.path) as other:
        assert other.get("a").shape == (4,)
        assert [request.pool for request in service.seen(_messages.Open)] == [client._default_pool.id]
    lease.release()


def test_a_buffer_can_be_leased_by_its_id(client):
    first = client.allocate(8, "uint8")
    first.publish("bytes")
    again = client.lease(first.buffer_id, first.generation)
    assert again.buffer_id == first.buffer_id
    with pytest.raises(poolbridge.StaleError):
        client.lease(first.buffer_id, first.generation + 1)


def test_a_write_lease_excludes_others(client):
    lease = client.allocate(4)
    lease.publish("x")
    with pytest.raises(poolbridge.BusyError):
        client.get("x", write=True)
    lease.release()
    writer = client.get("x", write=True)
    assert not writer.readonly
    with pytest.raises(poolbridge.BusyError):
        client.get("x")


def test_pools_and_statistics(client):
    pool = client.create_pool("second", max_bytes=1 << 20, session_bytes=1 << 18, user_bytes=1 << 19)
    assert (pool.name, pool.kind, pool.max_bytes) == ("second", "host", 1 << 20)
    assert (pool.session_bytes, pool.user_bytes) == (1 << 18, 1 << 19)
    assert pool.device_ordinal is None
    with pytest.raises(poolbridge.AlreadyExistsError):
        client.create_pool("second", max_bytes=1)
    assert client.open_pool("second") == pool
    assert (
        client.create_pool("second", max_bytes=1 << 20, session_bytes=1 << 18, user_bytes=1 << 19, exist_ok=True)
        == pool
    )
    lease = client.allocate(10, pool="second")
    assert lease.pool == "second"
    stats = client.stats()
    assert (stats.sessions, stats.leases, stats.buffers) == (1, 1, 1)
    assert {entry.pool.name: entry.reserved for entry in stats.pools} == {"frames": 0, "second": 4096}
    lease.release()
    assert client.trim("second") == 4096
    client.destroy_pool("second")
    with pytest.raises(poolbridge.NotFoundError):
        client.open_pool("second")


def test_a_pool_is_destroyed_by_name_without_being_opened(service, client):
    with poolbridge.connect(service.path) as other:
        opened = len(service.seen(_messages.Open))
        other.destroy_pool("frames")
        assert len(service.seen(_messages.Open)) == opened
        with pytest.raises(poolbridge.NotFoundError, match="'frames' that this user may use or destroy"):
            other.destroy_pool("frames")


def test_names(client):
    lease = client.allocate(1)
    lease.publish("x")
    assert lease.name == "x"
    with pytest.raises(poolbridge.AlreadyExistsError):
        client.allocate(1).publish("x")
    client.allocate(2).publish("x", replace=True)
    assert client.get("x").shape == (2,)
    client.unpublish("x")
    with pytest.raises(poolbridge.NotFoundError):
        client.unpublish("x")
    with pytest.raises(poolbridge.WaitTimeoutError):
        client.get("x", timeout=0.01)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.allocate((-1,)),
        lambda client: client.allocate((2**40, 2**40)),
        lambda client: client.allocate((1,) * 33),
        lambda client: client.allocate((1.5,)),
        lambda client: client.allocate(1, "float8"),
        lambda client: client.allocate(1, ">f4"),
        lambda client: client.allocate(1, "U3"),
        lambda client: client.get(""),
        lambda client: client.get("x" * 256),
        lambda client: client.get("a\nb"),
        lambda client: client.get("x", timeout=-1),
        lambda client: client.get("x", timeout=float("nan")),
        lambda client: client.create_pool("p", max_bytes=0),
        lambda client: client.create_pool("p", max_bytes=-5),
        lambda client: client.create_pool("p", max_bytes=2**63),
        lambda client: client.create_pool("p", max_bytes=1, uids=[-1]),
        lambda client: client.lease(-1, 0),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_sent(service, client, call):
    sent = len(service.log)
    with pytest.raises(poolbridge.InvalidArgumentError) as caught:
        call(client)
    assert isinstance(caught.value, ValueError)
    assert len(service.log) == sent


def test_the_error_for_an_unknown_dtype_lists_those_that_are_known(client):
    with pytest.raises(
        poolbridge.InvalidArgumentError, match="'float23' is no dtype: expected one of bool, .*float4_e2m1fn_x2$"
    ):
        client.allocate(1, "float23")


def test_allocate_without_a_pool_says_so(service):
    with (
        poolbridge.connect(service.path) as client,
        pytest.raises(poolbridge.InvalidArgumentError, match="there is no pool: create one"),
    ):
        client.allocate(1)


def test_errors_can_be_caught_as_built_ins(client):
    with pytest.raises(MemoryError):
        client.allocate(1 << 30)
    with pytest.raises(LookupError):
        client.get("nothing")
    with pytest.raises(TimeoutError):
        client.get("nothing", timeout=0.001)


def test_one_import_per_process_however_many_clients(service, client):
    client.allocate(4).publish("x", keep=True)
    keep = client.get("x")
    before = dict(MAPPINGS.imports)
    clients = [poolbridge.connect(service.path) for _ in range(5)]
    leases = [other.get("x") for other in clients]
    assert MAPPINGS.imports == before
    arrays = [np.asarray(lease) for lease in leases]
    assert len({array.ctypes.data for array in arrays}) == 1
    del arrays, leases
    for other in clients:
        other.close()
    assert np.asarray(keep).shape == (4,)


def test_steady_work_reuses_block_and_mapping(client):
    before = MAPPINGS.imports["blocks"]
    for _ in range(50):
        client.allocate(100).release()
    assert MAPPINGS.imports["blocks"] == before + 1


def test_threads_share_a_client(client):
    client.allocate(16, "int64").publish("shared", keep=True)
    failures = []

    def work(number: int) -> None:
        try:
            for i in range(40):
                lease = client.allocate(16, "int64")
                np.asarray(lease)[:] = number * 1000 + i
                assert lease.to_numpy()[0] == number * 1000 + i
                lease.release()
                client.get("shared").release()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (65536, 65536),
        ("65536", 65536),
        ("64KiB", 65536),
        ("64 KiB", 65536),
        (" 1MiB ", 1 << 20),
        ("1GiB", 1 << 30),
        ("65536B", 65536),
        (np.int64(65536), 65536),
    ],
)
def test_bytes_of_a_pool_may_be_a_size(service, client, size, expected):
    pool = client.create_pool("sized", max_bytes=size, session_bytes=size)
    assert (pool.max_bytes, pool.session_bytes) == (expected, expected)
    client.trim(pool, keep_bytes=size)
    assert service.seen(_messages.Trim)[-1].keep == expected


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ("64MB", 'is no size: expected a whole number of bytes, KiB, MiB, GiB or TiB, such as "64MiB"'),
        ("64mib", "is no size"),
        ("1.5GiB", "is no size"),
        ("-1", "is no size"),
        ("", "is no size"),
        ("٣MiB", "is no size"),
        ("MiB", "is no size"),
        ("0", "is out of range: expected 1 to"),
        ("9000000TiB", "is out of range"),
        (1e6, "is no whole number"),
        (b"1MiB", "is no whole number"),
        (None, "is no whole number"),
        (True, "True is no whole number"),
    ],
)
def test_what_is_no_size_is_refused_with_what_one_is(client, size, why):
    with pytest.raises(poolbridge.InvalidArgumentError, match=f"^max_bytes .*{why}"):
        client.create_pool("sized", max_bytes=size)


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, yes: client.create_pool("p", kind="host", max_bytes=4096, session_bytes=yes),
        lambda client, yes: client.create_pool("p", kind="host", max_bytes=4096, uids=[yes]),
        lambda client, yes: client.create_pool("p", device=yes, max_bytes=4096),
        lambda client, yes: client.trim(keep_bytes=yes),
        lambda client, yes: client.allocate(yes),
        lambda client, yes: client.allocate((4, yes)),
        lambda client, yes: client.lease(yes, 1),
        lambda client, yes: client.create_channel("c", capacity=yes),
    ],
)
@pytest.mark.parametrize("yes", [True, False])
def test_a_bool_is_no_number(client, ask, yes):
    with pytest.raises(poolbridge.InvalidArgumentError, match=rf"{yes}.* whole number"):
        ask(client, yes)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m"])
def test_an_error_shows_a_control_character_of_a_name_escaped(client, name):
    create = partial(client.create_pool, max_bytes=4096)
    for ask in create, client.get, client.unpublish, client.create_channel, client.subscribe:
        with pytest.raises(poolbridge.InvalidArgumentError, match="name .*has a control character") as caught:
            ask(name)
        assert repr(name) in str(caught.value)
        assert name not in str(caught.value)


def test_an_error_shows_a_control_character_of_a_socket_escaped(tmp_path):
    path = f"{tmp_path}/a\nb"
    with pytest.raises(poolbridge.ServiceNotRunningError, match=r"looked at '.*a\\nb'") as caught:
        poolbridge.connect(path)
    assert path not in str(caught.value)


def test_help_names_every_word_that_an_argument_takes():
    for alias, documents in {
        poolbridge.Kind: (poolbridge.PoolInfo, poolbridge.Client.create_pool, poolbridge.Lease.kind),
        poolbridge.ChannelMode: (poolbridge.Client.create_channel, poolbridge.Channel.mode),
        poolbridge.FullPolicy: (poolbridge.Client.create_channel, poolbridge.Channel.full),
    }.items():
        for documented in documents:
            for word in get_args(alias):
                assert f'"{word}"' in str(documented.__doc__), (documented, word)


def test_an_argument_that_takes_a_word_says_so_by_its_type():
    for client in (poolbridge.Client, poolbridge.AsyncClient):
        assert get_type_hints(client.create_pool)["kind"] == poolbridge.Kind
        hints = get_type_hints(client.create_channel)
        assert (hints["mode"], hints["full"]) == (poolbridge.ChannelMode, poolbridge.FullPolicy)
        assert get_type_hints(client.subscribe)["full"] == poolbridge.FullPolicy | None


def test_close_is_idempotent_and_final(service):
    client = poolbridge.connect(service.path)
    lease_pool = client.create_pool("p", max_bytes=1 << 16)
    client.close()
    client.close()
    assert client.closed
    assert "closed" in repr(client)
    with pytest.raises(poolbridge.ClientClosedError):
        client.allocate(1, pool=lease_pool)


def test_close_returns_leases_and_blocks(service):
    client = poolbridge.connect(service.path)
    client.create_pool("p", max_bytes=1 << 16)
    lease = client.allocate(5)
    client.close()
    assert lease.released
    assert service.seen(_messages.Release)
    service.wait(lambda: not service.leases)
    assert [request.blocks for request in service.seen(_messages.Dropped) if request.blocks]


def public_names():
    """Return the public names of the package, except the names of modules."""
    return [
        name for name in vars(poolbridge) if not name.startswith("_") and not inspect.ismodule(vars(poolbridge)[name])
    ]


def test_errors_have_a_public_module():
    errors = {name for name, value in vars(poolbridge.errors).items() if inspect.isclass(value)}
    assert errors == {name for name in public_names() if name.endswith(("Error", "Warning"))}
    assert {getattr(poolbridge, name).__module__ for name in errors} == {"poolbridge.errors"}


def public_callables():
    """Yield the public functions, and the methods and properties of public classes, that `help` shows."""
    for name in public_names():
        value = getattr(poolbridge, name)
        if inspect.isfunction(value):
            yield name, value
        for member in dir(value) if inspect.isclass(value) else ():
            static = inspect.getattr_static(value, member)
            function = getattr(static, "fget", None) or getattr(static, "__func__", static)
            ours = str(getattr(function, "__module__", "")).startswith("poolbridge")
            if ours and not member.startswith("_"):
                yield f"{name}.{member}", function


def test_every_public_name_says_what_its_arguments_are():
    for name, function in public_callables():
        said = inspect.getdoc(function)
        assert said, name
        # Skip a docstring that refers to another docstring: it does not describe the parameters again.
        if not inspect.isfunction(function) or re.search(r"([Ss]ee|those of) `", said):
            continue
        arguments = set(inspect.signature(function).parameters) - {"self", "cls"}
        assert {argument for argument in arguments if not re.search(rf"\b{argument}\b", said)} == set(), name
        assert "timeout" not in arguments or "econds" in said, f"{name}: the unit of timeout"


def test_every_public_class_says_what_it_is():
    for name in public_names():
        value = getattr(poolbridge, name)
        if inspect.isclass(value):
            assert inspect.getdoc(value) != inspect.getdoc(value.__base__), name


def test_help_of_the_package_begins_with_a_screen_that_says_where_to_begin():
    said = str(poolbridge.__doc__)
    assert len(said.splitlines()) < 30
    for name in ("connect", "serve", "Client", "Lease", "Channel", "connect_async"):
        assert re.search(rf"\b{name}\b", said), name


def test_help_of_the_package_is_short_enough_to_read():
    said = pydoc.plain(pydoc.render_doc(poolbridge)).splitlines()
    assert len(said) < 80  # with an `__all__` in the package, pydoc would print every class


def test_errors_and_plain_data_can_be_pickled():
    error = pickle.loads(pickle.dumps(poolbridge.PoolLimitError("full")))
    assert type(error) is poolbridge.PoolLimitError
    assert str(error) == "full"
    pool = poolbridge.PoolInfo(1, "p", "host", None, "", 1 << 16, 0, 0)
    assert pickle.loads(pickle.dumps(pool)) == pool


def test_importing_it_loads_neither_cuda_nor_an_array_library_but_numpy():
    text = "import poolbridge, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True).stdout
    found = {name.split(".")[0] for name in loaded.split()}
    assert "numpy" in found
    assert not found & {"cuda", "cupy", "jax", "numba", "torch"}


def test_any_whole_number_will_do_as_a_gpu(service):
    poolbridge.connect(service.path, device=np.int64(0)).close()  # type: ignore[arg-type]
    with pytest.raises(poolbridge.InvalidArgumentError, match="whole number"):
        poolbridge.connect(service.path, device=1.5)  # type: ignore[arg-type]
