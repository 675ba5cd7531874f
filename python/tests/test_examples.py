"""Tests that the examples without tests of their own beside them run: the notebook, the fixtures, those of PyTorch."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from realservice import POOLSVC

import poolbridge

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.skipif(not (EXAMPLES / "notebook").is_dir(), reason="not in a checkout"),
    pytest.mark.skipif(not os.access(POOLSVC, os.X_OK), reason="poolsvc is not built: make build"),
]

needs_torch = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torch", "transformers"))),
    reason="torch or transformers is not installed: make test-torch",
)


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


@pytest.fixture
def socket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The path of a service that programs find by the environment."""
    monkeypatch.setenv("POOLBRIDGE_POOLSVC", POOLSVC)
    with poolbridge.serve() as service:
        monkeypatch.setenv("POOLBRIDGE_SOCKET", str(service.path))
        yield str(service.path)


def run(*command: str | Path, fails: int = 0, **options: Any) -> str:
    """Run a program that ends with the exit status `fails`. Return its output, with its errors if that is not 0."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280, **options)
    assert done.returncode == fails, done.stdout + done.stderr
    said: str = done.stdout + done.stderr if fails else done.stdout
    return said


COMPARED = """
own = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
tokens = torch.tensor([[1, 2, 3]])
with torch.inference_mode():
    assert torch.equal(model(tokens).logits, own(tokens).logits)
by_transformers = type(model).from_pretrained(None, config=config, state_dict=weights)
for one in model, by_transformers:
    assert one.lm_head.weight is one.model.embed_tokens.weight
    assert all(it.data_ptr() == weights[key].data_ptr() for key, it in one.named_parameters()), "copied"
try:
    model(tokens, labels=tokens).loss.backward()
except RuntimeError as error:
    assert "does not require grad" in str(error)
    print("compared", flush=True)
"""


@needs_torch
def test_programs_share_a_model_of_transformers(socket: str, tmp_path: Path) -> None:
    make, answer = ((EXAMPLES / "huggingface" / name).read_text() for name in ("make.py", "answer.py"))
    put = "import poolbridge\npoolbridge.connect().put(model.state_dict(), 'put', keep=True)"
    with poolbridge.connect(socket) as client:
        client.create_pool("models", kind="host", max_bytes="64MiB")
        run(sys.executable, "-c", make + put, tmp_path)
        run(POOLSVC, "load", tmp_path, "--name", "llama", "--pool", "models", "--socket", socket)
        client.put({"other": np.ones(3)}, "other")
        tokens = "1 2 3\n4 5\n"
        ready, *answers, last = run(
            sys.executable, "-c", answer + COMPARED, tmp_path, "llama", input=tokens
        ).splitlines()
        assert (ready, last) == ("ready", "compared")
        assert [len(json.loads(line)) for line in answers] == [3 + 8, 2 + 8]
        write = "model.lm_head.weight[0] = 1"
        wrote = run(sys.executable, "-c", answer + write, tmp_path, "put", input=tokens, fails=-signal.SIGSEGV)
        assert wrote.splitlines()[:3] == [ready, *answers]
        other = run(sys.executable, "-c", answer, tmp_path, "other", input=tokens, fails=1)
        assert "the arrays of other are not those of the model" in other


@needs_torch
def test_the_plug_in_for_vllm_loads_a_model(socket: str) -> None:
    assert socket
    program = Path(__file__).parent / "vllmplugin.py"
    assert run(sys.executable, program, EXAMPLES / "vllm").splitlines()[-1] == "loaded"
