"""Tests that `make test` says which parts run, which tests failed, and why tests were skipped."""

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
known) printf -- "--- FAIL: TestA (0.1s)\n--- FAIL: TestX (0.1s)\nFAIL\tgithub.com/poolbridge/poolbridge/cuda\t0.1s\n"
  echo "FAILED a.py::test_b[c d] - AssertionError"; exit 1 ;;
none) exit 1 ;;
slow) echo "failed: test_a.py::test_b"; read -r line < end ;;
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
    assert out.endswith(
        "\n\n--- FAIL: TestX (0.1s)\nFAILED test_a.py::test_b\nFAILED: bad\n" + out[out.index("one again: ") :]
    )
    assert "TestX" in (tmp_path / "build/test/bad.log").read_text()


@pytest.mark.parametrize(
    ("part", "command"),
    [
        (
            "known",
            ".venv/bin/python -m pytest 'a.py::test_b[c d]'; tests/simcuda/machine go test -run '^TestA$' ./cuda",
        ),
        ("none", ".venv/bin/python -m pytest FILE::TEST; tests/simcuda/machine go test -run '^TEST$' ./PACKAGE"),
    ],
)
def test_parts_say_how_to_run_a_failed_test_again(tmp_path: Path, part: str, command: str) -> None:
    out = start(tmp_path, "sh make", part).communicate()[0]
    assert out.endswith(f"\nFAILED: {part}\none again: {command}\n")


def test_parts_say_what_still_runs_and_has_failed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "end")
    with start(tmp_path, "--alive", "0.01", "sh make", "slow") as process:
        assert process.stdout is not None
        assert any("slow: failed: test_a.py::test_b" in line for line in process.stdout)
        assert any("still running: slow" in line for line in process.stdout)
        (tmp_path / "end").write_text("now\n")
        assert process.stdout.read().endswith("every part passed\n")
    assert process.returncode == 0


TESTS = """
import pytest
def test_fails(): assert False
@pytest.mark.parametrize("n", range(3))
def test_skipped(n): pytest.skip("torch is not installed")
@pytest.mark.parametrize("why", "abcde")
def test_other(why): pytest.skip(why)
"""


def test_pytest_names_at_once_what_fails_and_at_the_end_why_tests_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [*command, tmp_path], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    at_once, _, rest = done.stdout.partition("= FAILURES =")
    assert "\nfailed: test_x.py::test_fails\n" in at_once, done.stdout + done.stderr
    assert "skipped:   3, as torch is not installed (make test-torch)\nskipped:   1, as a\n" in rest
    assert "skipped:   1 others, which `pytest -rs` explains" in rest
