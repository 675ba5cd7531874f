"""Tests every array library with every kind of memory, element type and way in, and what users do with the arrays.

`arraymatrix` tries the cells, in one process for each library. A test fails with a table of all wrong cells.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arraymatrix import LIBRARIES
from conftest import MATRIX
from test_device import has_driver
from test_libraries import POOLSVC

import poolbridge

HERE = Path(__file__).parent
NEEDS_GPU = {"cupy", "numba", "cuda.core", "stand-in"}


def missing(name: str) -> str:
    if not os.access(POOLSVC, os.X_OK):
        return "poolsvc is not built"
    if name in NEEDS_GPU and not has_driver():
        return "this process sees no GPU"
    try:
        installed = name == "stand-in" or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        installed = False
    return "" if installed else f"{name} is not installed"


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    path = str(folder / "p.sock")
    with subprocess.Popen([POOLSVC, "serve", "--socket", path]) as process:
        poolbridge.connect(path, wait=60).close()
        yield path
        process.terminate()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.skipif(bool(missing(name)), reason=missing(name))) for name in LIBRARIES],
)
def test_every_array_that_goes_in_comes_out_right_or_is_refused_and_users_can_work_with_it(
    name: str, socket: str, request: pytest.FixtureRequest
) -> None:
    path = os.pathsep.join([str(HERE), str(Path(poolbridge.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / "arraymatrix.py"), socket, name],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    said: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    cells = [one for one in said if "cell" in one]
    about = [one["about"] for one in said if "about" in one]
    lines = request.config.stash.setdefault(MATRIX, [])
    count = Counter(one["result"] for one in cells)
    lines.append(f"{name}: {', '.join(f'{number} {result}' for result, number in sorted(count.items()))}")
    lines += [f"    {text}" for text in about if text != "complete"]
    lines += [f"    refused by the driver: {one['cell']}" for one in cells if one["result"] == "refused by the driver"]
    wrong = [f"{one['cell']}: {one['why']}" for one in cells if one["result"] == "wrong"]
    lines += [f"    WRONG {text}" for text in wrong]
    if "complete" not in about:
        last = next((one["begin"] for one in reversed(said) if "begin" in one), "the first cell")
        wrong.append(f"the process ended ({done.returncode}) in: {last}\n{done.stderr[-3000:]}")
    assert cells
    assert not wrong, f"{len(wrong)} of {len(cells)} cells are wrong:\n" + "\n".join(wrong)
    right = [one["cell"] for one in cells if one["result"] == "right"]
    assert right or name == "cuda.core", "no cell was tried"
