"""Calls every public function with odd arguments: each call works, or raises a typed error that says what to do."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import copy
import ctypes
import enum
import inspect
import linecache
import math
import pickle
import threading
import traceback
from collections.abc import AsyncIterator
from decimal import Decimal
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from realservice import RealService
from test_load import save

import poolbridge
from poolbridge._memory.dlpack import _Versioned, pointer


class Named(enum.StrEnum):
    """An enumeration whose members are texts."""

    X = "x"
    BLOCK = "block"


class Rude:
    """An object on which nearly everything raises an error."""

    def __repr__(self):
        raise ZeroDivisionError

    def __bool__(self):
        raise ZeroDivisionError

    def __eq__(self, other):
        raise ZeroDivisionError

    __hash__ = object.__hash__


class FakeDtype:
    """Looks like a dtype of PyTorch."""

    __module__ = "torch"

    def __init__(self, text):
        self._text = text

    def __repr__(self):
        return self._text


ODD = {
    "None": None,
    "True": True,
    "-1": -1,
    "3": 3,
    "2**70": 2**70,
    "10**400": 10**400,
    "0.5": 0.5,
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
    "float32(5)": np.float32(5),
    "float32(inf)": np.float32(math.inf),
    "int64(3)": np.int64(3),
    "str_": np.str_("x"),
    "an Enum": Named.X,
    "a text": "x",
    "an empty text": "",
    "a line break": "a\nb",
    "a null": "a\0b",
    "a surrogate": "\ud800",
    "a long text": "x" * 300,
    "bytes": b"12",
    "a bytearray": bytearray(b"12"),
    "an empty list": [],
    "[1]": [1],
    '["x"]': ["x"],
    '[("a", "b")]': [("a", "b")],
    "(1, 2)": (1, 2),
    "{}": {},
    '{"a": 1}': {"a": 1},
    '{1: "a"}': {1: "a"},
    "{2, 3}": {2, 3},
    "an object": object(),
    "a rude object": Rude(),
    "an array": np.zeros(2),
    "an array without axes": np.array(5),
    "an array of texts": np.array(["x"]),
    "a dtype": np.dtype("int16"),
    "a structured dtype": np.dtype("i4,f4"),
    "a function": len,
    "a class": int,
    "1j": 1j,
    "Decimal": Decimal("0.5"),
    "Fraction": Fraction(1, 2),
    "a path": Path("x"),
    "Ellipsis": ...,
}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = RealService(str(tmp_path_factory.mktemp("arguments") / "r.sock"))
    yield running
    running.close()


async def done(value):
    """Await a result of the asyncio client; return a result of the blocking client."""
    return await value if inspect.isawaitable(value) else value


class World:
    """A client, and what it made for one call."""

    def __init__(self, client, path):
        self.client = client
        self.path = path

    async def lease(self):
        return await done(self.client.allocate(4, "int32"))

    async def named(self, name="named"):
        await done((await done(self.client.put(np.arange(4), name, replace=True))).release())

    async def copied(self):
        await self.named()
        copy = await done(self.client.get_copy("named"))
        await self.named()
        return copy

    async def several(self):
        await done((await done(self.client.put({"a": np.arange(4)}, "several", replace=True))).release())

    async def arena(self):
        return await done(self.client.arena(4096))

    async def channel(self):
        return await done(self.client.create_channel("c", capacity=4))

    async def publisher(self, *, loan):
        publisher = (await self.channel()).publisher(4)
        if loan:
            await done(publisher.loan())
        return publisher

    async def subscription(self):
        channel = await self.channel()
        frames = self.client.subscribe("c", ack="manual")
        if isinstance(frames, poolbridge.AsyncSubscription):
            await frames.__aenter__()
        await done(channel.publish(np.arange(4)))
        return frames

    async def frame(self):
        return await done((await self.subscription()).receive(60))


def joined(subscribe):
    async def call(*args, **kwargs):
        frames = subscribe(*args, **kwargs)
        if isinstance(frames, poolbridge.AsyncSubscription):
            await frames.__aenter__()
        return frames

    return call


def first(watch):
    async def call(*args, **kwargs):
        found = watch(*args, **kwargs)
        return await anext(found) if isinstance(found, AsyncIterator) else next(found)

    return call


# For each public function of a client and of its objects: a coroutine function that returns the function to call, and
# arguments with which the call works.
async def on_client(world, name, *args):
    if name in {"get", "get_array", "get_copy", "watch", "unpublish"}:
        await world.named()
    if name == "get_dict":
        await world.several()
    if name in {"load", "load_dict"}:
        args = (save(Path(world.path).with_name("m.safetensors"), a=[1]),)
    if name in {"open_channel", "subscribe"}:
        await world.channel()
    call = getattr(world.client, name)
    return {"subscribe": joined, "watch": first}.get(name, lambda call: call)(call), args


CALLS = {
    "create_pool": ("new", {"max_bytes": 4096}),
    "open_pool": ("p",),
    "destroy_pool": ("p",),
    "trim": (),
    "allocate": (4,),
    "arena": (4096,),
    "empty": (4,),
    "zeros": (4,),
    "full": (4, 1),
    "Arena.empty": (4,),
    "Arena.zeros": (4,),
    "Arena.full": (4, 1),
    "get": ("named",),
    "get_copy": ("named",),
    "watch": ("named", {"timeout": 0}),
    "lease": (1, 1),
    "put": (np.arange(4), "other"),
    "get_array": ("named",),
    "get_dict": ("several",),
    "load": ("a file",),
    "load_dict": ("a file",),
    "unpublish": ("named",),
    "create_channel": ("new",),
    "open_channel": ("c",),
    "subscribe": ("c",),
    "event": (),
    "events": (),
    "end_session": (10**9,),
    "members": (1,),
    "Lease.publish": ("new",),
    "Lease.view": (),
    "Lease.used_on": (1,),
    "Lease.copy_from": (np.zeros(4, "int32"),),
    "Lease.refresh": (),
    "Lease.wait": (),
    "Lease.release": (),
    "Channel.publish": (np.arange(4),),
    "Channel.publisher": (4,),
    "Channel.wait_for_consumers": (1, 0),
    "Channel.latest": (0,),
    "Publisher.loan": (),
    "Publisher.publish": (),
    "Subscription.receive": (),
    "Subscription.arrays": (),
    "Frame.wait": (),
    "Frame.release": (),
    "Promise.fail": ("why",),
}
# Functions without arguments, and those that only arrays' libraries call.
OTHERS = {
    "stats", "pools", "close", "sessions", "channels", "names", "buffers", "leases", "session_stats", "Lease.promise",
    "Lease.check", "Lease.verify", "Lease.memoryview", "Lease.to_numpy", "Channel.close", "Publisher.close",
    "Subscription.close", "Frame.ack", "Frame.requeue", "Frame.used_on", "Frame.copy_from", "Frame.view", "Frame.check",
    "Frame.memoryview", "Frame.to_numpy", "Promise.complete", "Lease.keys", "Lease.items", "Frame.keys", "Frame.items",
    "Arena.close", "Arena.cupy_allocator", "Arena.torch_pool",
}  # fmt: skip
MAKERS = {
    "Arena": World.arena,
    "Lease": World.lease,
    "Channel": World.channel,
    "Subscription": World.subscription,
    "Frame": World.frame,
}


async def prepared(world, name):
    """Return the function `name` of a new object, its positional arguments and its named arguments."""
    args = CALLS[name]
    named = args[-1] if args and isinstance(args[-1], dict) else {}
    args = args[: len(args) - bool(named)]
    kind, dot, method = name.rpartition(".")
    if not dot:
        call, args = await on_client(world, name, *args)
        return call, getattr(world.client, name), args, named
    if kind == "Promise":
        of = await done((await world.lease()).promise())
    elif method == "refresh":
        of = await world.copied()
    elif kind == "Publisher":
        of = await world.publisher(loan=method == "publish")
    else:
        if method in {"latest", "wait_for_consumers"}:
            world.consumer = await world.subscription()  # so that the calls need not wait
        of = await MAKERS[kind](world)
    if method == "arrays":
        return lambda *args, **kwargs: of.arrays(*args, **kwargs), of.arrays, args, named
    return getattr(of, method), getattr(of, method), args, named


def public(kind):
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_every_public_function_is_called():
    found = public(poolbridge.Client)
    for kind in ("Arena", "Lease", "Channel", "Publisher", "Subscription", "Frame", "Promise"):
        found |= {f"{kind}.{name}" for name in public(getattr(poolbridge, kind))}
    assert found == set(CALLS) | OTHERS


def check(error, said):
    """Check that an error is of poolbridge, or that poolbridge has raised it with a text of its own."""
    if isinstance(error, poolbridge.PoolbridgeError) or str(error).startswith("Cannot cast "):
        return  # `Lease.copy_from` documents NumPy's error for values of another kind
    if isinstance(error, OSError) and said.startswith("load"):
        return  # the error of the file
    last = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(last.filename, last.lineno or 0).strip()
    own = "/poolbridge/" in last.filename and line.startswith("raise ")
    assert own, f"{said}: {type(error).__name__}: {error}, raised by {last.filename}:{last.lineno}: {line}"


async def attack(world, name, wrong):
    """Call a function once for each of its arguments and each odd value."""
    _, signature_of, args, named = await prepared(world, name)
    parameters = list(inspect.signature(signature_of).parameters.values())
    assert parameters, f"{name} has no arguments"
    del signature_of  # it keeps its object, such as a subscription, which would fill the channel
    for parameter in parameters:
        for odd, value in ODD.items():
            call, _, args, named = await prepared(world, name)
            given = {**dict(zip([one.name for one in parameters], args, strict=False)), **named, parameter.name: value}
            try:
                with np.errstate(all="ignore"):
                    result = call(**given)
                    result = await done(result)
                    del result
            except Exception as error:  # noqa: BLE001 - `check` looks at it
                try:
                    check(error, f"{name}({parameter.name}={odd})")
                except AssertionError as failure:
                    wrong.append(str(failure))
            for pool in await done(world.client.pools()):
                if pool.name != "p":
                    await done(world.client.destroy_pool(pool))
            if not await done(world.client.pools()):
                await done(world.client.create_pool("p", max_bytes=1 << 20))
            await done(world.client.stats())


@pytest.mark.parametrize(
    ("call", "name"),
    [
        *((poolbridge.connect, name) for name in ("path", "timeout", "wait", "device", "tracer")),
        *((poolbridge.connect_async, name) for name in ("path", "timeout", "wait", "device", "tracer")),
        *((poolbridge.serve, name) for name in ("pools", "path", "options", "log", "timeout")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_argument_of_a_connection_works_or_its_error_is_typed(service, call, name, monkeypatch):
    monkeypatch.setenv("POOLBRIDGE_SOCKET", service.path)

    async def made(**given):
        made = await done(call(**given))
        if not isinstance(made, poolbridge.Service):
            await done(made.close())

    for odd, value in ODD.items():
        try:
            asyncio.run(made(**{name: value}))
        except Exception as error:  # noqa: BLE001 - `check` looks at it
            check(error, f"{call.__name__}({name}={odd})")


@pytest.fixture
def client(service):
    with poolbridge.connect(service.path, timeout=60) as client:
        client.create_pool("p", max_bytes=1 << 20)
        yield client
        client.destroy_pool("p")


def test_texts_and_numbers_of_numpy_are_texts_and_numbers(client):
    with client.put(np.arange(3), np.str_("named"), timeout=math.inf) as lease:
        assert type(lease.name) is str
    channel = client.create_channel(np.str_("c"), mode=np.str_("broadcast"), capacity=np.int64(2), full=Named.BLOCK)
    frames = client.subscribe("c")
    assert channel.publish(np.arange(3), timeout=np.float32(5), meta={np.str_("k"): np.str_("v")}) == 1
    assert frames.receive(math.inf).meta == {"k": "v"}
    with channel.publisher(3) as publisher:
        publisher.loan(np.float32(5))
        assert publisher.publish(timeout=math.inf) == 2
    assert client.allocate(np.int64(3), timeout=np.float32(5)).shape == (3,)


def test_a_time_limit_that_no_call_of_the_system_takes_is_waited_for(client, service):
    late = threading.Timer(0.05, lambda: client.put(np.arange(3), "late").release())
    late.start()
    with poolbridge.connect(service.path, timeout=math.inf) as other:
        assert other.get("late", timeout=1e8).shape == (3,)
    late.join()


def test_dtypes_of_pytorch_are_dtypes(client):
    try:
        from torch import bfloat16, complex32, float32
    except ModuleNotFoundError:
        bfloat16, complex32, float32 = (FakeDtype(f"torch.{name}") for name in ("bfloat16", "complex32", "float32"))
    assert client.allocate(2, bfloat16).dtype_name == "bfloat16"
    assert client.allocate(2, float32).dtype_name == "float32"
    with pytest.raises(poolbridge.InvalidArgumentError, match="complex32"):
        client.allocate(2, complex32)


@pytest.mark.parametrize("shape", [b"12", bytearray(b"12"), {2, 3}, "12", memoryview(b"12"), count()])
def test_a_shape_has_an_order_and_is_made_of_numbers(client, shape):
    with pytest.raises(poolbridge.InvalidArgumentError, match="whole numbers|axes"):
        client.allocate(shape)


def test_what_would_be_guessed_is_refused(client):
    with pytest.raises(poolbridge.InvalidArgumentError, match="None is no dtype: leave it out"):
        client.allocate(4, None)
    with pytest.raises(poolbridge.InvalidArgumentError, match="None is no pool"):
        client.destroy_pool(None)
    with pytest.raises(poolbridge.InvalidArgumentError, match="no list of ids"):
        client.create_pool("q", max_bytes=4096, uids=b"12")
    with pytest.raises(poolbridge.InvalidArgumentError, match="expected values by key"):
        client.create_channel("c").publish(np.arange(3), meta=[("a", "b")])


class Endless:
    """One byte of memory as more elements than any memory has, by strides of 0."""

    SHAPE = 1 << 32, 1 << 32

    def __init__(self, byte, interface):
        self._byte = byte
        if interface:
            self.__array_interface__ = byte.__array_interface__ | {"shape": self.SHAPE, "strides": (0, 0)}
        else:
            self.__dlpack_device__ = byte.__dlpack_device__

    def __dlpack__(self, **options):
        capsule = self._byte.reshape(1, 1).__dlpack__(**options)
        tensor = _Versioned.from_address(pointer(capsule, b"dltensor_versioned")).tensor
        (ctypes.c_int64 * 2).from_address(tensor.shape)[:] = list(self.SHAPE)
        (ctypes.c_int64 * 2).from_address(tensor.strides)[:] = [0, 0]
        return capsule


@pytest.mark.parametrize("interface", [False, True], ids=["dlpack", "array-interface"])
@pytest.mark.parametrize("in_lease", [False, True], ids=["own", "leased"])
def test_an_array_of_more_elements_than_fit_is_refused(client, interface, in_lease):
    channel, lease = client.create_channel("c"), client.allocate(1, "uint8")
    byte = np.asarray(lease) if in_lease else np.zeros(1, np.uint8)
    for send in (channel.publish, lambda array: client.put(array, "x")):
        with pytest.raises(poolbridge.InvalidArgumentError, match=r"2\*\*63 - 1|too big"):
            send(Endless(byte, interface))
    channel.publish(lease)


def test_a_lease_compares_as_an_object_and_says_so(client):
    lease = client.allocate(4, "int32")
    np.asarray(lease)[:] = 3
    for other in (3, 1.5, np.float32(3), [3, 3, 3, 3]):
        with pytest.raises(TypeError, match=r"numpy.asarray\(lease\) == …"):
            lease == other  # noqa: B015 - it raises
    assert (lease == np.full(4, 3)).all()
    assert lease == lease
    assert lease != client.allocate(4)
    assert lease is not None
    assert lease in {lease, 4}


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_cannot_be_sent_says_what_to_send_instead(client, send):
    for made in (client.allocate(4), client.put(np.arange(3), "named")):
        with pytest.raises(TypeError, match=r"client.get\(name\)"):
            send(made)


@pytest.mark.parametrize("flavour", ["blocking", "asyncio"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::UserWarning")
def test_every_argument_works_or_its_error_is_typed(service, name, flavour):
    wrong: list[str] = []

    async def main():
        client: Any
        if flavour == "blocking":
            client = poolbridge.connect(service.path, timeout=60)
        else:
            client = await poolbridge.connect_async(service.path, timeout=60)
        for pool in await done(client.pools()):
            await done(client.destroy_pool(pool))
        await done(client.create_pool("p", max_bytes=1 << 20))
        await attack(World(client, service.path), name, wrong)
        await done(client.close())

    asyncio.run(main())
    assert not wrong, "\n" + "\n".join(wrong)
