"""Tests how every array library takes leases: each kind of memory, element type and layout, to read and to write.

Every machine has memory of the CPU. On a machine with a GPU, `poolsvc` provides the other kinds of memory.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import OUTCOMES
from fakeservice import Service
from libraries import COPY, GPU_KINDS, IN_PLACE, LAYOUTS, LIBRARIES, Layout, Library, NumPy
from msgspec import structs
from test_arrays import look
from test_device import has_driver

import poolbridge
from poolbridge._array import readonly_warning as _readonly
from poolbridge._memory.mappings import MAPPINGS
from poolbridge._memory.tensor import ELEMENT_TYPES, element_type
from poolbridge._session.flow import Ask, Flow
from poolbridge._wire import messages as m

POOLSVC = os.environ.get("POOLBRIDGE_TEST_POOLSVC", str(Path(__file__).parents[2] / "bin" / "poolsvc"))
BYTES = 1024
# poolbridge warns when a library takes read-only memory; three tests check this warning.
pytestmark = pytest.mark.filterwarnings("ignore::poolbridge.ReadOnlyWarning")


def missing(kind: str, library: Library | None = None) -> str:
    if library is not None and not library.installed:
        return f"{library.name} is not installed"
    if kind in GPU_KINDS and not has_driver():
        return "this process sees no GPU"
    if kind in GPU_KINDS and not os.access(POOLSVC, os.X_OK):
        return "poolsvc is not built"
    return ""


def case(*values: Any, why: str, name: str) -> Any:
    return pytest.param(*values, id=name, marks=pytest.mark.skip(reason=why) if why else ())


KINDS = [case(kind, why=missing(kind), name=kind) for kind in ("host", *GPU_KINDS)]
CASES = [
    case(library, kind, why=missing(kind, library), name=f"{library.name}-{kind}")
    for library in LIBRARIES
    for kind in library.kinds
]


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves mappings of poolbridge; libraries may leave their own mappings and descriptors."""
    mapped = len(MAPPINGS)
    yield
    assert until(lambda: len(MAPPINGS) == mapped)


def until(condition: Callable[[], bool]) -> bool:
    """Wait up to a minute for the condition: threads of poolbridge or of a library may release memory late."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        gc.collect()
        time.sleep(0.01)
    return True


@pytest.fixture(scope="module")
def gpu_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    path = str(folder / "p.sock")
    with subprocess.Popen([POOLSVC, "serve", "--socket", path]) as process:
        yield path
        process.terminate()


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> dict[tuple[str, ...], set[str]]:
    """Give the results by library, kind, element type and layout; `conftest` prints them at the end of the run."""
    return request.config.stash.setdefault(OUTCOMES, {})


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[str]:
    """Give the path of the socket of a service that has memory of the kind `kind`."""
    if kind != "host":
        yield request.getfixturevalue("gpu_service")
        return
    running = Service(str(tmp_path / "s.sock"))
    yield running.path
    running.close()


@pytest.fixture
def client(path: str, kind: poolbridge.Kind) -> Iterator[poolbridge.Client]:
    """Give a client with a pool ``p`` of the kind `kind`."""
    with poolbridge.connect(path, timeout=60, wait=60) as connected:
        try:
            # Some kinds have blocks of 2 MiB, and a test needs 30 blocks at a time.
            pool = connected.create_pool("p", kind=kind, max_bytes=1 << 27)
        except poolbridge.UnavailableError as error:
            pytest.skip(f"no memory of kind {kind}: {error}")
        yield connected
        connected.destroy_pool(pool)


def values(dtype: str) -> np.ndarray[Any, Any]:
    """Return the bytes of a buffer with test values of an element type."""
    element = element_type(dtype)
    numbers = np.arange(BYTES // element.itemsize) % 100
    found: np.ndarray[Any, Any]
    if dtype == "bfloat16":
        found = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif dtype.startswith(("float8", "float4")):
        found = (numbers + 1).astype(np.uint8)
    elif dtype == "bool":
        found = numbers % 3 == 0
    elif dtype.startswith("complex"):
        found = (numbers * (1 + 2j)).astype(dtype)
    else:
        found = numbers.astype(dtype)
    return found.view(np.uint8)


def seen_through(layout: Layout, dtype: str, data: np.ndarray[Any, Any]) -> bytes:
    """Return the elements that a layout selects from the bytes of a buffer, in C order."""
    element = element_type(dtype)
    array: np.ndarray[Any, Any] = np.ndarray(
        layout.shape,
        element.typestr,
        data.tobytes(),
        layout.offset * element.itemsize,
        tuple(step * element.itemsize for step in layout.strides) or None,
    )
    return array.tobytes()


def publish(client: poolbridge.Client, dtype: str, layout: Layout, name: str = "x") -> None:
    """Publish a buffer with test values in a layout."""
    lease = client.allocate(BYTES, "uint8", pool="p")
    lease.copy_from(values(dtype))
    tensor = m.Tensor(
        dtype=dtype,
        shape=layout.shape,
        strides=layout.strides,
        offset=layout.offset * element_type(dtype).itemsize,
    )
    state = lease._lease_state

    def flow() -> Flow[None]:
        yield Ask(m.Publish(lease=state.grant.id, name=name, tensor=tensor, replace=True), m.Reply)

    client._run(flow())
    # What the client says of the lease at its end:
    state.grant, state.write = structs.replace(state.grant, tensor=tensor), False
    lease.release()


def no_arrays(lease: poolbridge.Lease) -> bool:
    return not lease.array_count


def outcome(lease: poolbridge.Lease, library: Library, dtype: str, layout: Layout) -> str:
    """Take a lease with the library, check the elements, and return `IN_PLACE`, `COPY` or the error."""
    data = values(dtype)
    try:
        array = library.take(lease)
        content = library.read(array, dtype)
    except Exception as error:  # noqa: BLE001 - each library has its own
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return re.sub(r"-?\b\d+\b(, -?\d+)*,?", "…", text)  # shapes and strides are left out
    assert tuple(array.shape) == layout.shape
    assert content == seen_through(layout, dtype, data)
    in_place = not layout.size or library.pointer(array) == lease._evidence()["pointer"]
    # For memory of kind `pinned`, cuda.core's view keeps the view of the lease, too.
    counted = 2 if (library.name, lease.kind) == ("cuda.core", "pinned") else 1
    assert lease.array_count == counted or not in_place or not layout.size
    if not lease.readonly and library.can_write(dtype, layout, lease.kind):
        library.write_ones(array)
        assert (lease.to_numpy() == 1).all()
    elif lease.readonly and layout.size and isinstance(array, np.ndarray):
        assert not array.flags.writeable
    return IN_PLACE if in_place else COPY


# This test ignores the warnings of libraries about the versions of NumPy and of the driver.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
@pytest.mark.parametrize(("library", "kind"), CASES, indirect=["kind"])
def test_a_lease_is_taken_in_place_or_refused_with_a_reason(client, kind, library, dtype, outcomes):
    lacking = library.lacks(kind)
    if lacking:
        pytest.skip(lacking)
    gc.freeze()  # so that the garbage collector skips the objects of the libraries
    wrong = []
    for name, layout in LAYOUTS.items():
        for write in (False, True):
            publish(client, dtype, layout)
            lease = client.get("x", write=write, timeout=60)
            try:
                found = outcome(lease, library, dtype, layout)
            except AssertionError as error:
                found = f"wrong: {error}"
            outcomes.setdefault((library.name, kind, dtype, name), set()).add(found)
            if not re.match(library.expected(dtype, layout, kind), found):
                wrong.append(f"{name}, {'write' if write else 'read'}: {found}")
            if not until(partial(no_arrays, lease)):
                wrong.append(f"{name}: still {lease.array_count} arrays of the lease")
            lease.release(force=True)
    client.unpublish("x")
    assert not wrong, "\n".join(wrong)


# Tests of single libraries


def needs(name: str) -> Any:
    (library,) = (library for library in LIBRARIES if library.name == name)
    return pytest.mark.skipif(not library.installed, reason=f"{name} is not installed")


@needs("jax")
@pytest.mark.parametrize("kind", ["host"], indirect=True)
def test_jax_takes_what_is_read_only_if_its_capsules_can_say_so(client):
    import jax

    class Lease:
        def __init__(self, lease):
            self.lease = lease
            self.asked = {}

        def __dlpack_device__(self):
            return self.lease.__dlpack_device__()

        def __dlpack__(self, **asked):
            self.asked = asked
            return self.lease.__dlpack__(**asked)

    publish(client, "float32", LAYOUTS["matrix"])
    lease = Lease(client.get("x"))
    pointer = lease.lease._evidence()["pointer"]
    found: Any
    try:
        found = jax.dlpack.from_dlpack(lease).unsafe_buffer_pointer()
    except BufferError as error:
        found = str(error)
    if "max_version" in lease.asked:  # JAX 0.12 and later
        assert found == pointer
    else:
        assert re.search(r"lease is read-only.*view\(legacy=True\)", found)
    assert jax.dlpack.from_dlpack(lease.lease.view(legacy=True)).unsafe_buffer_pointer() == pointer
    assert lease.lease.array_count == 0


@needs("jax")
@pytest.mark.parametrize("kind", ["host"], indirect=True)
@pytest.mark.filterwarnings("ignore")
def test_4_bit_floats_of_jax_go_through_pairs_and_come_back(client):
    from jax import numpy as jnp

    given = jnp.array([[0, 0.5, 1, 1.5], [2, 3, 4, 6]], jnp.float4_e2m1fn)
    with client.put(given, "x", pool="p", replace=True) as lease:
        assert (lease.dtype_name, lease.shape) == ("float4_e2m1fn_x2", (2, 2))
        assert lease.memoryview().tolist() == [[0x10, 0x32], [0x54, 0x76]]
    found: Any = client.get_array("x", "jax")
    assert (found.dtype, found.tolist()) == (given.dtype, given.tolist())


@needs("jax")
@pytest.mark.parametrize("kind", ["host"], indirect=True)
@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_jax_copies_and_narrows_unless_64_bits_are_switched_on(client, dtype):
    import jax

    lease = client.allocate(4, dtype, pool="p")
    lease.copy_from(np.arange(1, 5, dtype=dtype))
    jax.config.update("jax_enable_x64", False)
    array = jax.dlpack.from_dlpack(lease)
    assert array.dtype.itemsize == lease.itemsize // 2
    assert np.asarray(array).tolist() == [1, 2, 3, 4]
    assert array.unsafe_buffer_pointer() != lease._evidence()["pointer"]


@needs("torch")
@pytest.mark.parametrize("kind", ["host"], indirect=True)
def test_torch_copies_where_it_is_asked_to(client):
    import torch

    lease = client.allocate(4, "int32", pool="p")
    lease.copy_from([1, 2, 3, 4])
    copy = torch.from_dlpack(lease, copy=True)
    here = torch.from_dlpack(lease, device="cpu", copy=False)
    assert copy.tolist() == here.tolist() == [1, 2, 3, 4]
    assert copy.data_ptr() != here.data_ptr() == lease._evidence()["pointer"]
    assert lease.array_count == 1


@needs("torch")
@pytest.mark.parametrize("kind", ["host"], indirect=True)
def test_what_is_reversed_is_copied_for_torch(client):
    import torch

    publish(client, "float32", LAYOUTS["backwards"])
    lease = client.get("x", timeout=60)
    for take in (lambda: lease, lease.view, partial(lease.view, legacy=True)):
        for copy in (None, True):
            with pytest.raises(BufferError, match=r"copy it by lease.to_numpy\(\)"):
                torch.from_dlpack(take(), copy=copy)
    assert torch.from_numpy(lease.to_numpy()).tolist() == [3.0, 2.0, 1.0, 0.0]
    assert until(lambda: not lease.array_count)
    lease.release()


@needs("torch")
@pytest.mark.parametrize("kind", ["host"], indirect=True)
def test_torch_takes_an_axis_of_one_whichever_way_it_goes(client):
    import torch

    for layout in (Layout((1, 4), (-4, 1), 4), Layout((0, 3), (-3, -1), 5)):
        publish(client, "float32", layout)
        lease = client.get("x")
        assert tuple(torch.from_dlpack(lease).shape) == layout.shape
        lease.release()


@needs("torch")
@pytest.mark.parametrize("kind", ["host"], indirect=True)
def test_what_torch_has_is_copied_into_a_lease(client):
    import torch

    for dtype in ("bfloat16", "float32", "int64", "bool"):
        lease = client.allocate((2, 3), dtype, pool="p")
        lease.copy_from(torch.arange(6).reshape(3, 2).T.to(getattr(torch, dtype)))
        assert lease.to_numpy().tolist() == np.arange(6).reshape(3, 2).T.astype(lease.to_numpy().dtype).tolist()


# According to their sources, libraries call `__dlpack__` of a lease with the arguments in `ASKED`.

STREAM = object()  # stands for the handle of a stream
ASKED: dict[str, dict[str, Any]] = {
    "numpy": {"dl_device": None, "copy": None, "max_version": (1, 0)},
    "numpy, device": {"dl_device": (1, 0), "copy": None, "max_version": (1, 0)},
    "numpy 1": {},
    "torch": {"max_version": (1, 0)},
    "torch, copy": {"max_version": (1, 0), "copy": True},
    "torch, no copy": {"max_version": (1, 0), "copy": False},
    "torch, default stream": {"max_version": (1, 0), "stream": 1},
    "torch, stream": {"max_version": (1, 0), "stream": STREAM},
    "torch 2.7": {"stream": 1},
    "torch 2.7, stream": {"stream": STREAM},
    "cupy": {"stream": 1, "max_version": (1, 0), "copy": None},
    "cupy, per thread": {"stream": 2, "max_version": (1, 0), "copy": None},
    "cupy, stream": {"stream": STREAM, "max_version": (1, 0), "copy": None},
    "cupy 13": {"stream": 1},
    "jax on the cpu": {"stream": None, "max_version": (1, 3)},
    "jax on the cpu before 0.12": {"stream": None},
    "jax": {"stream": STREAM, "max_version": (1, 3)},
    "jax before 0.12": {"stream": STREAM},
    "cuda.core": {"stream": None, "max_version": (1, 3)},
    "cuda.core, stream": {"stream": 1, "max_version": (1, 3)},
    "cuda.core, no order": {"stream": -1, "max_version": (1, 3)},
    "a library that knows DLPack 2": {"stream": None, "max_version": (2, 0)},
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_every_way_to_ask_is_answered(client, kind, asked, write):
    options = dict(ASKED[asked])
    on_host = kind == "host"
    if on_host and options.get("stream") is not None:
        options["stream"] = None
    elif options.get("stream") is STREAM:
        from poolbridge._cuda import cuda as _cuda

        options["stream"] = _cuda.own_stream(0)
    publish(client, "float32", LAYOUTS["every other"])
    lease = client.get("x", write=write, timeout=60)
    versioned = options.get("max_version", (0,)) >= (1, 0)
    device = None if kind != "pinned" or options.get("stream") is None else "cuda"  # who names a stream sees a GPU
    copied = bool(options.get("copy")) or (kind not in {"host", "pinned"} and options.get("dl_device") == (1, 0))
    if not write and not versioned:
        with pytest.raises(BufferError, match=r"view\(legacy=True\)"):
            lease.view(device=device).__dlpack__(**options)
        source: Any = lease.view(legacy=True, device=device)
    else:
        source = lease if device is None else lease.view(device=device)
    if asked == "numpy" and kind not in {"host", "pinned"}:
        with pytest.raises(BufferError, match=r'cuda:0 in place: copy it, by lease.to_numpy\(\) or .*device="cpu"'):
            source.__dlpack__(**options)
        options["copy"] = copied = True
    seen = look(source.__dlpack__(**options))
    assert (seen.shape, seen.strides, seen.dtype) == ([5], [2], (2, 32, 1))
    assert seen.version == ((1, 0) if versioned else None)
    assert seen.device == ((1, 0) if "dl_device" in options else source.__dlpack_device__())
    assert (seen.data == lease._evidence()["pointer"]) == (not copied)
    if versioned:
        assert seen.flags == (2 if copied else 0 if write else 1)
    del seen, source
    lease.release()


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", ["host"], indirect=True)
def test_only_numpy_gets_negative_strides_by_dlpack(client, kind, asked):
    options = {name: None if name == "stream" else value for name, value in ASKED[asked].items()}
    for name, layout in LAYOUTS.items():
        publish(client, "float32", layout)
        lease = client.get("x", write=True, timeout=60)
        if layout.reversed and asked != "numpy":
            with pytest.raises(BufferError, match="negative strides, which PyTorch and JAX lack"):
                lease.__dlpack__(**options)
        else:
            assert look(lease.__dlpack__(**options)).shape == list(layout.shape), name
        lease.release()


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("kind", [case(kind, why=missing(kind), name=kind) for kind in GPU_KINDS], indirect=True)
def test_numpy_takes_memory_of_a_gpu_in_place_where_the_cpu_reaches_it(client, kind, write):
    publish(client, "float32", LAYOUTS["matrix"])
    lease = client.get("x", write=write, timeout=60)
    for source in (lease, lease.view()):
        if kind != "pinned":
            with pytest.raises(BufferError, match="to_numpy"):
                np.from_dlpack(source)
            continue
        array = np.from_dlpack(source)
        assert array.ctypes.data == lease._evidence()["pointer"]
        assert array.flags.writeable == write
        del array
    del source
    copies = [np.from_dlpack(lease, copy=True), np.from_dlpack(lease, device="cpu", copy=True)]
    assert all(np.array_equal(copy, lease.to_numpy()) for copy in copies)
    lease.release()


FAULTS = {"host": "ends this process", "vmm": "breaks the CUDA context"}


@pytest.fixture
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process look new: poolbridge has given no warning, and NumPy is the only library that is loaded."""
    monkeypatch.setattr(_readonly, "_warned", False)
    for module in ("torch", "cupy", "numba"):
        monkeypatch.delitem(sys.modules, module, raising=False)


def warned_of(take: Callable[[], object]) -> list[str]:
    """Call `take` and return its warnings; check that each warning names this file."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        take()
    assert {(found.category, found.filename) for found in seen} <= {(poolbridge.ReadOnlyWarning, __file__)}
    return [str(found.message) for found in seen]


def load(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, ModuleType(module))


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_library_that_would_write_what_is_mapped_read_only_is_warned_of_once(client, kind, unwarned, monkeypatch):
    load(monkeypatch, "torch")
    publish(client, "float32", LAYOUTS["matrix"])
    with client.get("x", write=True) as lease:
        assert not warned_of(lambda: lease.__dlpack__(max_version=(1, 0)))
    with client.get("x") as lease:
        assert not warned_of(lambda: lease.__dlpack__(max_version=(1, 0), copy=True)), "its own copy"
        assert not warned_of(lambda: lease.view(legacy=True).__dlpack__()), "vouched for"
        if kind in NumPy.kinds:
            assert not warned_of(lambda: np.from_dlpack(lease)), "honours it"
        found = warned_of(lambda: lease.view().__dlpack__(max_version=(1, 0)))
        assert len(found) == (kind in FAULTS)
        if found:
            assert re.search(rf"PyTorch .*{FAULTS[kind]}.*clone\(\).*write=True", found[0])
        assert not warned_of(lambda: lease.__dlpack__(max_version=(1, 0))), "once"


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_library_that_would_write_is_known_by_being_loaded(client, kind, unwarned, monkeypatch):
    publish(client, "float32", LAYOUTS["matrix"])
    with client.get("x") as lease:
        asks: list[tuple[str, Callable[[], object]]] = [
            ("PyTorch and CuPy" if kind != "host" else "PyTorch", lambda: lease.__dlpack__(max_version=(1, 0)))
        ]
        if kind != "host":
            asks.append(("CuPy and Numba", lambda: lease.view(device="cuda").__cuda_array_interface__))
        for _, ask in asks:
            assert not warned_of(ask), "none is loaded"
        load(monkeypatch, "torch", "cupy", "numba")
        for names, ask in asks:
            monkeypatch.setattr(_readonly, "_warned", False)
            found = warned_of(ask)
            assert [f"and {names} does not" in text for text in found] == [True] * (kind in FAULTS)


@pytest.mark.parametrize("kind", ["host"], indirect=True)
def test_a_warning_that_is_an_error_refuses_each_time(client, kind, unwarned, monkeypatch):
    load(monkeypatch, "torch")
    publish(client, "float32", LAYOUTS["matrix"])
    with client.get("x") as lease, warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(poolbridge.ReadOnlyWarning):
                lease.__dlpack__(max_version=(1, 0))


@pytest.mark.parametrize("kind", [case(kind, why=missing(kind), name=kind) for kind in GPU_KINDS], indirect=True)
def test_the_cuda_array_interface_of_every_layout(client, kind):
    for layout in LAYOUTS.values():
        publish(client, "float32", layout)
        for write in (False, True):
            lease = client.get("x", write=write, timeout=60)
            interface = lease.view(device="cuda").__cuda_array_interface__
            assert (interface["version"], interface["shape"], interface["typestr"]) == (3, layout.shape, "<f4")
            assert interface["strides"] == (tuple(4 * step for step in layout.strides) or None)
            pointer = lease._evidence()["pointer"] if layout.size else 0
            assert interface["data"] == (pointer, not write)
            lease.release()
