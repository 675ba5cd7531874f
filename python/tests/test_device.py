"""Tests device memory without a GPU.

The tests check that errors name what is missing. They also run `test_libraries`, `test_array_matrix` and the tests in
`oncuda` on the simulated driver.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import poolbridge
from poolbridge._cuda import cuda as _cuda, driver as _driver
from poolbridge._libraries import consumers as _consumers
from poolbridge._wire import messages as m

HERE = Path(__file__).parent
SIMULATION = HERE.parents[1] / "build" / "simcuda"


def has_driver() -> bool:
    try:
        return bool(_cuda.devices())
    except poolbridge.UnavailableError:
        return False


# The files whose tests start clusters or try many combinations.
LONG = (
    "test_gpu_capture.py",
    "test_gpu_copies.py",
    "test_gpu_dask.py",
    "test_gpu_ends.py",
    "test_gpu_order.py",
    "test_gpu_ray.py",
    "test_kinds.py",
    "test_peers.py",
    "test_libraries.py",
    "test_array_matrix.py",
)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.name, marks=pytest.mark.long if path.name in LONG else ())
        for path in (
            *sorted((HERE / "oncuda").glob("test_*.py")),
            HERE / "test_libraries.py",
            HERE / "test_array_matrix.py",
        )
    ],
)
def test_on_the_simulated_driver(tmp_path, path):
    """Run the tests in the file `path` in another process, because a process keeps the driver that it finds first."""
    if importlib.util.find_spec("cuda") is None:
        pytest.skip("the packages of poolbridge[cuda] are not installed")
    if not (SIMULATION / "libcuda.so.1").exists():
        pytest.skip("the simulated driver is not built: make simcuda")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"pythonpath={HERE}", str(path)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(poolbridge.__file__).parents[1]),
            "LD_LIBRARY_PATH": str(SIMULATION),
            "SIMCUDA_COUNTS": str(tmp_path),
            "SIMCUDA_MACHINE": path.name,
        },
        cwd=HERE.parents[1],
        check=False,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0


@pytest.mark.skipif(has_driver(), reason="there is a driver here")
def test_without_a_driver_a_typed_error_says_what_is_missing(service, client):
    info = m.PoolInfo(id=900, name="gpu", kind="device", device_uuid="GPU-1", max_bytes=1 << 16)
    service.tricks["open"] = lambda c, r: c.send(m.PoolReply(number=r.number, pool=info))
    grant = m.Grant(
        id=7, buffer=1, generation=1, write=True, pool=900, block=5, block_nbytes=4096, nbytes=4,
        tensor=m.Tensor(dtype="int32"), export=m.Export(bytes(64)),
    )  # fmt: skip
    service.tricks["alloc"] = lambda c, r: c.send(m.GrantReply(number=r.number, grant=grant))
    client.open_pool("gpu")
    with pytest.raises(poolbridge.UnavailableError, match="libcuda|the driver sees none"):
        client.allocate((), "int32", pool="gpu")
    client.stats()
    assert not client.closed


@pytest.mark.parametrize(
    ("error", "text"), [("SYSTEM_DRIVER_MISMATCH", "CUDA_ERROR_SYSTEM_"), ("NO_DEVICE", "sees none")]
)
def test_a_driver_that_does_not_start_says_why(error, text):
    if not (SIMULATION / "libcuda.so.1").exists():
        pytest.skip("the simulated driver is not built: make simcuda")
    done = subprocess.run(
        [sys.executable, "-c", "from poolbridge._cuda import cuda\ncuda.devices()"],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(poolbridge.__file__).parents[1]),
            "LD_LIBRARY_PATH": str(SIMULATION),
            "SIMCUDA_FAULTS": f"call=cuInit every=1 error={error}",
            "SIMCUDA_MACHINE": f"{error}-{os.getpid()}",
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "poolbridge.errors.UnavailableError" in done.stderr
    assert text in done.stderr


def test_the_driver_is_called_with_the_numbers_of_its_interface():
    known = pytest.importorskip("cuda.bindings.driver")
    assert {one: known.CUresult(one).name.removeprefix("CUDA_").removeprefix("ERROR_") for one in _driver.Result} == {
        one: one.name for one in _driver.Result
    }
    attribute, pointer = known.CUdevice_attribute, known.CUpointer_attribute
    assert _driver.HAS_64_BIT_WORDS == attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
    assert _driver.POINTER_TYPE == pointer.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert _driver.POINTER_ORDINAL == pointer.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    assert all(known.CUmemorytype(one).name == name for one, name in _driver.POINTER_TYPES.items())
    assert _driver.RELAXED == known.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    assert _driver.FD == known.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    assert _driver.LAZY_PEER_ACCESS == known.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    assert known.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE == _driver.ON_DEVICE
    assert known.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ == _driver.READ
    assert known.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE == _driver.READ_WRITE


def test_a_consumer_that_is_not_installed_is_named():
    with pytest.raises(poolbridge.UnavailableError, match="'tensorflow'"):
        _consumers.load("tensorflow")
