"""Say what `make test-gpu` lacks, and how to get it: ``missing.py PYTHON``. If something is missing, exit with 1."""

import ctypes
import subprocess
import sys
from pathlib import Path

python = sys.argv[1]
missing = []
try:
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        missing.append("a GPU: the driver shows none. Does nvidia-smi list it? Is CUDA_VISIBLE_DEVICES empty?")
except OSError:
    missing.append("NVIDIA's driver (libcuda.so.1): install it, or pass the GPU through to the container")
if not Path(python).exists():
    missing.append(f"{python}: run `make venv`")
if not Path(python).exists() or subprocess.run([python, "-c", "import cupy"], capture_output=True).returncode:
    missing.append(
        f"CuPy: run `{python} -m pip install cupy-cuda13x`, or cupy-cuda12x for a driver of CUDA 12 (see nvidia-smi)"
    )
if missing:
    print("make test-gpu needs a GPU and CuPy. Missing here:", *missing, sep="\n  ", file=sys.stderr)
    print("Without a GPU, `make test` runs the same tests on a simulated driver.", file=sys.stderr)
sys.exit(bool(missing))
