"""The programs of README that have a service of their own run as they stand there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from realservice import POOLSVC

README = Path(__file__).parents[2] / "README.md"

pytestmark = [
    pytest.mark.skipif(not README.is_file(), reason="not in a checkout"),
    pytest.mark.skipif(not os.access(POOLSVC, os.X_OK), reason="poolsvc is not built: make build"),
]


def block(words):
    """Give the one block of Python that has these words."""
    blocks = [part.partition("```")[0] for part in README.read_text().split("```python\n")[1:]]
    (found,) = [one for one in blocks if words in one]
    return found


def run(folder, text, *command):
    path = folder / "test_documented_program.py"
    path.write_text(text)
    environment = os.environ | {
        "POOLBRIDGE_POOLSVC": POOLSVC,
        "POOLBRIDGE_SOCKET": str(folder / "run" / "s.sock"),
    }
    done = subprocess.run(
        [sys.executable, *command, str(path)], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_service_of_ones_own(tmp_path):
    assert "[3. 4. 5.]" in run(tmp_path, block("poolbridge.serve("))


def test_the_service_that_the_first_program_starts(tmp_path):
    assert int(run(tmp_path, block("start=True"))) > 0


def test_the_fixtures_of_pytest(tmp_path):
    assert "1 passed" in run(tmp_path, block("poolbridge_client"), "-m", "pytest", "-q", "-p", "no:cacheprovider")
