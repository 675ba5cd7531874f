"""Tests that the examples without a service of their own beside them run: the notebook, and the tests with fixtures."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from realservice import POOLSVC

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.skipif(not (EXAMPLES / "notebook").is_dir(), reason="not in a checkout"),
    pytest.mark.skipif(not os.access(POOLSVC, os.X_OK), reason="poolsvc is not built: make build"),
]


def test_the_cells_of_the_notebook_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBRIDGE_POOLSVC", POOLSVC)
    cells = json.loads((EXAMPLES / "notebook" / "first.ipynb").read_text())["cells"]
    programs = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    text = "\n".join(programs).replace("weights.sum(axis=1)", "print(weights.sum())")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "first.ipynb", "exec"), {})
    assert printed.getvalue() == "6.0\n"


def test_the_tests_with_the_fixtures_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLES / "fixtures"],
        env=os.environ | {"POOLBRIDGE_POOLSVC": POOLSVC},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
