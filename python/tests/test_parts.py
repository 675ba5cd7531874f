"""Tests that `make test` says which parts run and which tests failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PARTS = Path(__file__).parents[2] / "tests" / "parts"

pytestmark = pytest.mark.skipif(not PARTS.is_file(), reason="not in a checkout")

MAKE = r"""
for target; do :; done
case $target in
bad) echo "--- FAIL: TestX (0.1s)"; echo "FAILED test_a.py::test_b"; exit 1 ;;
slow) read -r line < end ;;
esac
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "make").write_text(MAKE)
    command = [sys.executable, str(PARTS), *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def test_parts_print_what_failed_and_fail(tmp_path: Path) -> None:
    process = start(tmp_path, "sh make", "bad", "good")
    out = process.communicate()[0]
    assert process.returncode == 1
    assert "begins: good" in out
    assert "passed: good, after" in out
    assert "FAILED: bad, after" in out
    assert out.endswith("\n\n--- FAIL: TestX (0.1s)\nFAILED test_a.py::test_b\nFAILED: bad\n")
    assert "TestX" in (tmp_path / "build/test/bad.log").read_text()


def test_parts_say_what_still_runs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "end")
    with start(tmp_path, "--alive", "0.01", "sh make", "slow") as process:
        assert process.stdout is not None
        assert any("still running: slow" in line for line in process.stdout)
        (tmp_path / "end").write_text("now\n")
        assert process.stdout.read().endswith("every part passed\n")
    assert process.returncode == 0
