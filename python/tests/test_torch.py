"""Tests the module for PyTorch. PyTorch is needed: `make test-torch`."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from realservice import POOLSVC  # noqa: E402
from test_load import save  # noqa: E402
from test_members import service as service  # noqa: E402, PLC0414 - a fixture

import poolbridge  # noqa: E402
from poolbridge import AlreadyExistsError, InvalidArgumentError  # noqa: E402
from poolbridge.torch import load_file  # noqa: E402
from poolbridge.torch._clients import CLIENTS  # noqa: E402

OTHER = """
import sys
import warnings
from poolbridge.torch import load_file  # noqa: E402
warnings.simplefilter("ignore")
print(load_file(sys.argv[1])["w"].tolist())
"""


@pytest.fixture
def model(service, tmp_path, monkeypatch):
    """A file, and a service that `load_file` finds."""
    monkeypatch.setenv("POOLBRIDGE_SOCKET", service.path)
    monkeypatch.setenv("POOLBRIDGE_POOLSVC", POOLSVC)
    yield save(tmp_path / "m.safetensors", w=[1, 2], b=[[3]])
    while CLIENTS:
        CLIENTS.popitem()[1].close()


@pytest.mark.filterwarnings("ignore::poolbridge.ReadOnlyWarning")
def test_all_processes_that_load_a_file_have_one_copy(model, service):
    first = load_file(model)
    assert {name: tensor.tolist() for name, tensor in first.items()} == {"w": [1, 2], "b": [[3]]}
    assert load_file(str(model), torch.device("cpu"), backend="pread")["w"].data_ptr() == first["w"].data_ptr()
    assert subprocess.check_output([sys.executable, "-c", OTHER, str(model)], text=True) == "[1.0, 2.0]\n"
    with poolbridge.connect(service.path) as client:
        assert (client.stats().buffers, [pool.kind for pool in client.pools()]) == (1, ["host"])


@pytest.mark.filterwarnings("ignore::poolbridge.ReadOnlyWarning")
def test_a_service_that_may_have_less_memory_than_the_machine_makes_a_smaller_pool(model, monkeypatch):
    sysconf = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: sysconf(name) * (64 if name == "SC_PHYS_PAGES" else 1))
    assert load_file(model)["w"].tolist() == [1, 2]


@pytest.mark.filterwarnings("ignore::poolbridge.ReadOnlyWarning")
def test_threads_and_a_forked_child_load_too(model):
    with ThreadPoolExecutor(8) as threads:
        loaded = list(threads.map(lambda _: load_file(model)["w"], range(16)))
    assert len({tensor.data_ptr() for tensor in loaded}) == 1
    child = os.fork()
    if not child:
        os._exit(load_file(model)["w"].tolist() != [1, 2])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore::poolbridge.ReadOnlyWarning")
def test_a_module_computes_with_the_shared_weights(model):
    layer = torch.nn.Linear(2, 1, bias=False)
    layer.load_state_dict({"weight": load_file(model)["w"][None]}, assign=True)
    assert layer(torch.ones(2)).tolist() == [3]


def test_no_pool_that_others_may_use_gets_the_models(model, service):
    with poolbridge.connect(service.path) as client:
        me = os.geteuid()
        client.create_pool(f"load_file {me} cpu", max_bytes="1MiB", uids=[me, me + 1])
    with pytest.raises(AlreadyExistsError, match="uids"):
        load_file(model)


def test_a_device_that_cannot_be_shared_is_named(model):
    with pytest.raises(InvalidArgumentError, match='device mps cannot be shared: expected "cpu" or a GPU'):
        load_file(model, "mps")
