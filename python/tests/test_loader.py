"""Tests batches of PyTorch's DataLoader in a pool's memory. PyTorch is needed: `make test-torch`."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, resource_tracker
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import loaderdata  # noqa: E402
from loaderdata import Growing, Numbers, opened, pad  # noqa: E402
from realservice import POOLSVC, RealService, until  # noqa: E402
from torch.utils.data import DataLoader, default_convert  # noqa: E402

import poolbridge  # noqa: E402
from poolbridge import InvalidArgumentError, PoolLimitError, StaleError, UnsupportedError  # noqa: E402
from poolbridge.torch import ChannelDataset, Collate, _collate  # noqa: E402
from poolbridge.torch._clients import CLIENTS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

resource_tracker.ensure_running()  # both stay until this process ends
multiprocessing.get_context("forkserver").set_forkserver_preload(["loaderdata", "poolbridge.torch"])
forkserver.ensure_running()

LIMIT = 1 << 20


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    running = RealService(str(tmp_path_factory.mktemp("loader") / "r.sock"))
    yield running
    running.close()


@pytest.fixture
def service(running):
    """A service with a pool, and a client that looks at it. At the end of a test, no buffer is left."""
    with poolbridge.connect(running.path) as client:
        client.create_pool("train", max_bytes=LIMIT)
        yield SimpleNamespace(path=running.path, client=client)
        until(lambda: client.stats().buffers == 0)
        client.destroy_pool("train")
        assert not client.names()
    while CLIENTS:
        CLIENTS.popitem()[1].close()


@pytest.fixture
def collate(service):
    return Collate(pool="train", path=service.path)


@pytest.fixture
def sent(service, monkeypatch):
    """Return a function that does what a worker and then the trainer do with a list of samples."""
    info = torch.utils.data._utils.worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)
    monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_info", info)

    def send(samples, collate_fn=None, **options):
        made = Collate(collate_fn, **{"pool": "train", "path": service.path, **options})(samples)
        return pickle.loads(pickle.dumps(made))

    return send


def loader(dataset, collate, context="forkserver", **options):
    return DataLoader(
        dataset, **{"batch_size": 4, "num_workers": 2, **options}, collate_fn=collate, multiprocessing_context=context
    )


def check(got, expected):
    """Check that two batches have the same types and values."""
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert torch.equal(got, expected)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key, value in expected.items():
            check(got[key], value)
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for one, value in zip(got, expected, strict=True):
            check(one, value)
    else:
        assert got == expected


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_batches_are_those_of_default_collate_in_order(collate, context):
    expected = list(DataLoader(Numbers(), batch_size=4))
    batches = loader(Numbers(), collate, context)
    for got, wanted in zip(batches, expected, strict=True):
        check(got, wanted)
    del got


def test_workers_that_stay_send_each_epoch_also_after_one_that_was_left(collate):
    batches = loader(Numbers(), collate, persistent_workers=True)
    for _ in batches:
        break
    for _ in range(2):
        assert [int(batch["image"][0, 0, 0]) for batch in batches] == [0, 4, 8, 12, 16, 20]


def test_the_trainer_may_write_a_batch_and_its_memory_is_free_after_the_last_tensor(service, sent):
    batch = sent([Numbers()[i] for i in range(4)])
    assert batch["image"].untyped_storage().nbytes() == batch["image"].nbytes, "each has memory of its own"
    assert [tensor.data_ptr() % 64 for tensor in (batch["image"], batch["pair"][0])] == [0, 0]
    batch["image"] += 1
    batch["pair"][0].zero_()
    assert batch["image"][:, 0, 0].tolist() == [1, 2, 3, 4]
    assert (service.client.stats().buffers, service.client.names()) == (1, [])
    image = batch["image"][1:]
    del batch
    assert service.client.stats().buffers == 1
    assert image[0, 0, 0] == 2
    del image
    until(lambda: service.client.stats().buffers == 0)


def test_a_batch_of_one_tensor_and_a_batch_without_tensors_arrive(sent):
    assert sent([1.5, 2]).tolist() == [1.5, 2]
    assert sent(["a", "b"]) == ["a", "b"]
    assert sent([torch.zeros(0), torch.zeros(0)]).shape == (2, 0)


DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_tensors_of_every_type_arrive(sent):
    whole = {name: torch.arange(8).to(getattr(torch, name)) for name in DTYPES if hasattr(torch, name)}
    got = sent(whole, default_convert)
    for name, tensor in whole.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name].view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_what_a_collate_function_returns_arrives_as_it_is(sent):
    grid = torch.arange(12.0).reshape(3, 4)
    image = grid.as_subclass(loaderdata.Image)
    image.note = "x"
    made = {
        "same": [grid, grid],
        "turned": grid.T,
        "part": grid[1:, ::2],
        "scalar": torch.tensor(3),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "gradient": torch.ones(2, requires_grad=True),
        "sparse": torch.eye(3).to_sparse(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "subclass": image,
        "array": np.arange(6).reshape(2, 3).T,
        "texts": np.array(["a", "bc"]),
        "swapped": np.arange(3, dtype=">i4"),
        "dates": np.array(["2026-01-01"], "M8[D]"),
        "other": (None, {1, 2}, 2.5),
    }
    got = sent(made, loaderdata.as_it_is)
    assert got["same"][0] is got["same"][1]
    assert got["part"].tolist() == [[4, 6], [8, 10]]
    assert (got["subclass"].note, got["gradient"].requires_grad) == ("x", True)
    for name in ("turned", "scalar", "conjugate", "gradient", "parameter", "subclass"):
        assert type(got[name]) is type(made[name])
        assert torch.equal(got[name], made[name])
    assert torch.equal(got["sparse"].to_dense(), torch.eye(3))
    for name in ("array", "texts", "swapped", "dates"):
        assert got[name].dtype == made[name].dtype
        assert (got[name] == made[name]).all()
    assert got["other"] == made["other"]


def test_shapes_may_change_from_batch_to_batch(collate, service):
    expected = [pad(samples) for samples in DataLoader(Growing(), batch_size=4, collate_fn=list)]
    batches = loader(Growing(), Collate(pad, pool="train", path=service.path))
    for got, wanted in zip(batches, expected, strict=True):
        check(got, wanted)
    del got


def test_tensors_that_cannot_be_stacked_are_the_error_of_default_collate(collate):
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        next(iter(loader(Growing(), collate, num_workers=1)))


def test_a_batch_that_cannot_be_sent_is_an_error_in_the_trainer(service):
    collate = Collate(loaderdata.lambdas, pool="train", path=service.path)
    with pytest.raises(InvalidArgumentError, match=r"the batch, a dict, cannot be sent to the trainer: .*lambda"):
        next(iter(loader(Numbers(), collate, num_workers=1)))


def test_a_tensor_that_cannot_be_pickled_is_an_error_that_says_so(sent):
    with pytest.raises(InvalidArgumentError, match="the batch, a list, cannot be sent to the trainer: Cannot access s"):
        sent([torch.zeros(2).to_mkldnn()], default_convert)


def test_a_batch_waits_for_three_answers_of_the_service(sent):
    """The worker waits twice, for memory and for a name, and the trainer once."""
    sent([1.5, 2])
    (client,) = CLIENTS.values()
    before = client._session.core._number
    for _ in range(5):
        sent([1.5, 2])
    assert client._session.core._number == before + 15


def test_the_error_of_a_sample_reaches_the_trainer_after_the_batches_before(collate):
    batches = iter(loader(loaderdata.Failing(), collate))
    for first in (0, 4, 8):
        assert next(batches)["image"][0, 0, 0] == first
    with pytest.raises(KeyError, match="sample 13 is missing"):
        next(batches)


def test_a_killed_worker_is_the_error_of_pytorch_and_leaves_nothing(collate):
    with pytest.raises(RuntimeError, match="DataLoader worker .* (killed|exited)"):
        for _ in loader(loaderdata.Dying(), collate):
            pass


def test_a_worker_that_never_answers_is_the_error_of_pytorchs_time_limit_and_leaves_nothing(collate):
    came = 0
    with pytest.raises(RuntimeError, match="DataLoader timed out after 5 seconds"):
        for _ in loader(loaderdata.Waiting(), collate, timeout=5):
            came += 1
    assert came == 3, "the batches before"


CTRL_C = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
import torch
from poolbridge.torch import Collate
if __name__ == "__main__":
    data = [torch.zeros(100)] * 10**6
    batches = torch.utils.data.DataLoader(
        data, 4, num_workers=2, collate_fn=Collate(pool="train", path=sys.argv[1]), multiprocessing_context=sys.argv[2]
    )
    for number, _ in enumerate(batches):
        if number == 20:
            print("going on", flush=True)
"""


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_ctrl_c_ends_the_trainer_and_its_workers(service, tmp_path, context):
    before = [of.id for of in service.client.sessions()]
    (tmp_path / "train.py").write_text(CTRL_C)
    command = [sys.executable, str(tmp_path / "train.py"), service.path, context]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"going on\n"
        os.killpg(trainer.pid, signal.SIGINT)
        _, said = trainer.communicate()  # the workers have the other ends
    assert trainer.returncode == -signal.SIGINT
    assert b"KeyboardInterrupt" in said
    until(lambda: [of.id for of in service.client.sessions()] == before)


def test_a_worker_waits_for_memory_that_the_trainer_frees(service, collate):
    kept: list[Any] = []
    for batch in loader([torch.zeros(LIMIT // 8 - 4096, dtype=torch.uint8)] * 40, collate, batch_size=1):
        kept = [*kept, batch][-3:]
    del kept, batch


def test_a_pool_that_stays_full_is_an_error_that_says_how_much_a_loader_needs(service):
    collate = Collate(pool="train", path=service.path, timeout=0.1)
    batches = iter(loader([torch.zeros(LIMIT // 8 - 4096, dtype=torch.uint8)] * 40, collate, batch_size=1))
    kept: list[Any] = []
    with pytest.raises(PoolLimitError, match=r"(?s)train.*num_workers \* prefetch_factor \+ 1 batches"):
        while True:
            kept.append(next(batches))
    assert 0 < len(kept) <= 8
    del kept


def test_two_loaders_share_a_pool(collate):
    for one, other in zip(loader(Numbers(), collate), loader(Numbers(), collate, shuffle=True), strict=True):
        check(one["image"][:, 0, 0] * 2, one["scalars"]["float"].float() * 4)
        check(other["image"][:, 0, 0] * 2, other["scalars"]["float"].float() * 4)
    del one, other


def test_the_trainer_connects_again_if_its_client_was_closed(service, collate):
    kept: list[Any] = []
    batches = loader(Numbers(), collate)
    for batch in batches:
        kept.append(batch["image"])
        CLIENTS[os.getpid(), service.path].close()
    assert [int(image[0, 0, 0]) for image in kept] == [0, 4, 8, 12, 16, 20]
    del kept, batch


def test_descriptors_stay_as_they_are_and_nothing_is_in_dev_shm(collate):
    seen, here = [], []
    for number, batch in enumerate(loader(loaderdata.Opened(1200), collate)):
        if number >= 100:
            seen.append(batch.max(0).values.tolist())
            here.append(opened())
    assert len({count for count, _ in here}) == 1
    assert max(count for count, _ in seen) <= min(count for count, _ in seen) + 1  # a listing has one, too
    assert {shared for _, shared in [*seen, *here]} == {0}
    del batch


def test_without_workers_a_batch_is_what_the_function_returns(collate):
    (batch,) = loader([torch.ones(2)] * 4, collate, None, num_workers=0)
    assert torch.equal(batch, torch.ones(4, 2))
    assert not CLIENTS


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_loader_goes_on_from_its_saved_state(service, collate):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    options = {"batch_size": 4, "num_workers": 2, "collate_fn": collate, "multiprocessing_context": "forkserver"}
    first = stateful(Numbers(), shuffle=True, **options)
    torch.manual_seed(1)
    batches = iter(first)
    for _ in range(2):
        next(batches)
    state = first.state_dict()
    rest = [batch["image"].clone() for batch in batches]
    second = stateful(Numbers(), shuffle=True, **options)
    second.load_state_dict(state)
    again = [batch["image"].clone() for batch in second]
    assert len(rest) == 4
    check(again, rest)


def test_the_first_worker_starts_a_service_which_has_a_pool_for_loaders(tmp_path, monkeypatch):
    monkeypatch.setenv("POOLBRIDGE_SOCKET", str(tmp_path / "s.sock"))
    monkeypatch.setenv("POOLBRIDGE_POOLSVC", POOLSVC)
    for batch in loader(Numbers(), Collate(), "fork"):
        assert batch["image"].shape == (4, 3, 5)
    del batch
    with poolbridge.connect() as client:
        assert [(pool.name, pool.kind) for pool in client.pools()] == [(f"loader {os.geteuid()}", "host")]
    while CLIENTS:
        CLIENTS.popitem()[1].close()


def test_a_batch_whose_worker_has_ended_is_stale(service, sent):
    batch = Collate(pool="train", path=service.path)([1, 2])
    CLIENTS.popitem()[1].close()
    with pytest.raises(StaleError):
        pickle.loads(pickle.dumps(batch))


def test_memory_of_a_gpu_is_refused(sent, monkeypatch):
    monkeypatch.setattr(_collate, "_default_pool", lambda _: SimpleNamespace(name="fast", kind="device"))
    with pytest.raises(InvalidArgumentError, match=r"pool 'fast' is of kind 'device': .*, host or pinned"):
        sent([1], pool=None)


def test_a_forked_worker_refuses_pinned_memory_if_its_parent_uses_cuda(sent, monkeypatch):
    monkeypatch.setattr(_collate, "_default_pool", lambda _: SimpleNamespace(name="fast", kind="pinned"))
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(UnsupportedError, match='multiprocessing_context="forkserver"'):
        sent([1], pool=None)


@pytest.mark.parametrize(
    "wrong", [{"collate_fn": 3}, {"pool": 3}, {"pool": ""}, {"path": 3}, {"timeout": -1}, {"timeout": "x"}], ids=str
)
def test_a_wrong_argument_is_an_error_at_once(wrong):
    with pytest.raises(InvalidArgumentError):
        Collate(**wrong)


@pytest.fixture
def readonly():
    """Let the tensors of frames be read-only, which is what the warning says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", poolbridge.ReadOnlyWarning)
        yield


@pytest.mark.parametrize("mode", ["queue", "broadcast"])
def test_each_frame_of_a_channel_goes_to_one_worker(service, collate, readonly, mode):
    channel = service.client.create_channel("frames", pool="train", mode=mode)
    frames = pickle.loads(pickle.dumps(ChannelDataset("frames", path=service.path)))
    batches = iter(loader(frames, collate))
    channel.wait_for_consumers(2, timeout=60)

    def produce():
        for number in range(24):
            channel.publish({"x": np.full(3, number), "y": np.ones(1)}, timeout=60)
        channel.close()

    with ThreadPoolExecutor(1) as thread:
        produced = thread.submit(produce)
        got = torch.cat([batch["x"][:, 0] for batch in batches])
        produced.result()
    assert sorted(got.tolist()) == list(range(24))


def test_a_worker_that_waits_with_a_sample_in_hand_holds_up_no_other(service, readonly):
    channel = service.client.create_channel("frames", pool="train", mode="queue")
    for number in range(2):
        channel.publish(np.full(2, number))
    channel.close()
    samples = ChannelDataset("frames", path=service.path)
    waits = iter(samples)
    assert next(waits).tolist() == [0, 0]
    with ThreadPoolExecutor(1) as thread:
        others = thread.submit(list, samples)
        try:
            assert [sample.tolist() for sample in others.result(60)] == [[1, 1]]
        finally:
            assert list(waits) == []


def test_a_transform_makes_the_samples_of_frames(service, readonly):
    channel = service.client.create_channel("frames", pool="train", mode="queue")
    for number in range(4):
        channel.publish(np.full(2, number), meta={"label": f"label {number}"})
    channel.close()
    (batch,) = loader(ChannelDataset("frames", loaderdata.numbered, path=service.path), None, None, num_workers=0)
    assert batch == ["label 0", "label 1", "label 2", "label 3"]


@pytest.mark.parametrize("kind", [np.array, lambda value: {"x": np.array(value)}])
def test_a_batch_may_have_more_frames_than_a_subscription_holds(service, readonly, kind):
    channel = service.client.create_channel("frames", pool="train", mode="queue", capacity=600)
    for number in range(600):
        channel.publish(kind([number]))
    channel.close()
    (batch,) = loader(ChannelDataset("frames", path=service.path), None, None, num_workers=0, batch_size=600)
    assert (batch["x"] if isinstance(batch, dict) else batch).flatten().tolist() == list(range(600))


def test_the_samples_end_with_the_last_producer_if_asked(service, readonly):
    with poolbridge.connect(service.path) as producer:
        channel = producer.create_channel("frames", pool="train", mode="queue")
        channel.publish(np.arange(3))
    samples = ChannelDataset("frames", path=service.path, no_producers="end")
    assert [sample.tolist() for sample in samples] == [[0, 1, 2]]
    service.client.open_channel("frames").close()


@pytest.mark.parametrize(
    "wrong", [{"channel": ""}, {"transform": 3}, {"path": 3}, {"timeout": "x"}, {"no_producers": "x"}], ids=str
)
def test_a_wrong_argument_of_a_data_set_is_an_error_at_once(wrong):
    with pytest.raises(InvalidArgumentError):
        ChannelDataset(**{"channel": "frames", **wrong})
