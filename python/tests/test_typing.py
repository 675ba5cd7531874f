"""Tests of the types that an editor or a type checker shows to a user's program."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parent.parent

PROGRAM = """\
from typing import Any, assert_type

import cupy
import jax
import numpy as np
import poolbridge


def blocking(client: poolbridge.Client) -> None:
    assert_type(client.get_array("a"), np.ndarray[Any, Any])
    assert_type(client.get_array("a", "numpy", timeout=1), np.ndarray[Any, Any])
    assert_type(client.get_array("a", library="cupy"), cupy.ndarray)
    assert_type(client.get_array("a", "jax", write=True), jax.Array)
    client.get_array("a", "torch").any_attribute  # PyTorch is not installed
    client.get_array("a").no_attribute  # wrong
    client.get_array("a", "pandas")  # wrong


async def asynchronous(client: poolbridge.AsyncClient) -> None:
    assert_type(await client.get_array("a"), np.ndarray[Any, Any])
    assert_type(await client.get_array("a", "cupy"), cupy.ndarray)
    assert_type(await client.get_array("a", "jax"), jax.Array)
    (await client.get_array("a", "torch")).any_attribute
    (await client.get_array("a", "cupy")).no_attribute  # wrong
"""

# Stands for the installed packages of the libraries.
STUBS = {"cupy": "class ndarray: ...\n", "jax": "class Array: ...\n"}
COMMANDS = {
    "mypy": ["-m", "mypy", "--config-file=", "--ignore-missing-imports"],
    "pyright": ["-m", "pyright", "--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", COMMANDS)
def test_get_array_has_the_type_of_its_library_and_any_type_without_it(checker, tmp_path):
    pytest.importorskip(checker)
    for name, text in STUBS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.pyi").write_text(text)
    settings = {"extraPaths": [str(PYTHON)], "reportMissingImports": "none", "reportUnusedExpression": "none"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    lines = PROGRAM.splitlines()
    if importlib.util.find_spec("torch") is not None:
        lines = ["" if '"torch"' in line else line for line in lines]
    (tmp_path / "program.py").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, *COMMANDS[checker], "program.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": f"{tmp_path}:{PYTHON}"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    found = re.findall(r"program\.py:(\d+):.*error:", done.stdout)
    wrong = [number for number, line in enumerate(lines, 1) if line.endswith("# wrong")]
    assert sorted({int(number) for number in found}) == wrong, done.stdout + done.stderr
