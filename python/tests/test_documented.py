"""Tests that each code block of README and of the guide runs or is checked, and that each error is documented."""

from __future__ import annotations

import functools
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from realservice import POOLSVC, RealService

import poolbridge

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *(ROOT / "docs" / f"{name}.md" for name in (
    "index", "install", "first-array", "cookbook", "streaming", "gpu-order", "pools", "arrays", "operating",
    "deploying", "troubleshooting", "events", "engines", "training"
))]  # fmt: skip

pytestmark = [
    pytest.mark.skipif(not README.is_file(), reason="not in a checkout"),
    pytest.mark.skipif(not os.access(POOLSVC, os.X_OK), reason="poolsvc is not built: make build"),
]


def blocks(*languages):
    """Return (page, text) of each block in the languages; if none is given, (page, language, text) of each block."""
    every = [
        (page.name, language, text)
        for page in PAGES
        for language, text in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    ]
    if languages:
        return [(page, text) for page, language, text in every if language in languages]
    return every


def test_every_block_is_of_a_language_that_has_a_test():
    # TestEveryDocumentedBlockOfGoCompiles in tests/integration checks the blocks of Go.
    assert {language for _, language, _ in blocks()} == {"python", "go", "sh", "yaml", "text"}


# Python

ALONE = "runs, with no service before it"
SERVED = "runs, beside a service"
CLUSTER = "runs, with Ray where that is installed"
PYTEST = "is a test"
TYPED = "is type-checked"
LOOP = "is type-checked; TestEveryDocumentedLoopSeesEveryFrameAndEnds in tests/integration runs it"
HOW = {  # page, and words that only one block of the page has: how the test runs or checks the block, and its output
    ("README.md", '"weights"'): (ALONE, "[[0. 1. 2.]\n [3. 4. 5.]]\n"),
    ("README.md", '"video"'): (ALONE, "1 0.0\n2 1.0\n3 2.0\n"),
    ("first-array.md", "poolbridge.serve("): (ALONE, "[3. 4. 5.]"),
    ("first-array.md", "service_pid"): (ALONE, ""),
    ("first-array.md", "poolbridge_client"): (PYTEST, "1 passed"),
    ("first-array.md", '"image"'): (ALONE, "307200.0"),
    ("first-array.md", "get_dict"): (TYPED, ""),
    ("first-array.md", "load_dict"): (TYPED, ""),
    ("first-array.md", "watch"): (TYPED, ""),
    ("streaming.md", 'mode="broadcast"'): (SERVED, ""),
    ("streaming.md", "ends when that is closed"): (LOOP, ""),
    ("streaming.md", "acknowledged at its end"): (LOOP, ""),
    ("streaming.md", "fast camera"): (SERVED, ""),
    ("streaming.md", "batches"): (SERVED, ""),
    ("gpu-order.md", "image[...] = 1.0"): (TYPED, ""),
    ("gpu-order.md", "lease.used_on("): (TYPED, ""),
    ("arrays.md", "cupy.from_dlpack, stream=stream"): (TYPED, ""),
    ("operating.md", "OpenTelemetryTracer"): (ALONE, ""),
    ("gpu-order.md", "lease.promise()"): (TYPED, ""),
    ("events.md", "client.event()"): (TYPED, ""),
    ("engines.md", "poolbridge.ray.start()"): (CLUSTER, "(7.0, 1)"),
    ("engines.md", "dask.array"): (ALONE, "2000000.0"),
    ("engines.md", "def weights("): (TYPED, ""),
    ("training.md", "TensorDataset"): (TYPED, ""),
    ("training.md", "ChannelDataset"): (TYPED, ""),
    ("pools.md", "arena.empty"): (TYPED, ""),
    ("pools.md", "cupy_allocator"): (TYPED, ""),
    ("pools.md", "begin again:"): (LOOP, ""),
}

NAMES = """\
from typing import Any
import cupy
import numpy as library
import numpy as np
import torch
import poolbridge
import poolbridge.dask
compute: Any
w: Any
b: Any
stream: Any
client: poolbridge.Client
channel: poolbridge.Channel
lease: poolbridge.Lease
"""


def of(page, words):
    """Return the Python block of a page that contains the text `words`; only one block may contain the text."""
    (found,) = [text for name, text in blocks("python") if name == page and words in text]
    return found


def test_every_shown_output_is_that_of_a_program():
    shown = [text for _, text in blocks("text")]
    assert sorted(shown) == sorted(output for (page, _), (_, output) in HOW.items() if page == "README.md")


def test_every_block_of_python_is_run_or_checked():
    assert sorted(blocks("python")) == sorted((page, of(page, words)) for page, words in HOW)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        pytest.param(*key, marks=pytest.mark.long if how == CLUSTER else ())
        for key, (how, _) in HOW.items()
        if how in {ALONE, SERVED, CLUSTER, PYTEST}
    ],
)
def test_a_documented_program_runs(page, words, tmp_path):
    how, output = HOW[page, words]
    if how == CLUSTER:
        pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
    path = tmp_path / "test_documented_program.py"
    path.write_text(of(page, words))
    socket = tmp_path / "run" / "s.sock"
    environment = os.environ | {"POOLBRIDGE_POOLSVC": POOLSVC, "POOLBRIDGE_SOCKET": str(socket), "RAY_ADDRESS": "local"}
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if how == PYTEST else []
    service = None
    if how == SERVED:
        socket.parent.mkdir(mode=0o700)
        service = RealService(str(socket))
    try:
        done = subprocess.run(
            [sys.executable, *options, str(path)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1000,
        )
    finally:
        if service is not None:
            service.close()
    assert done.returncode == 0, done.stdout + done.stderr
    assert output in done.stdout


def test_documented_programs_that_want_a_gpu_have_the_right_types(tmp_path):
    checked = [key for key, (how, _) in HOW.items() if how in {TYPED, LOOP}]
    for number, (page, words) in enumerate(checked):
        lines = "\n".join("    " + line for line in of(page, words).splitlines() if not line.startswith("import "))
        (tmp_path / f"block_{number}_{page.partition('.')[0].replace('-', '_')}.py").write_text(
            f"{NAMES}\ndef block() -> None:\n{lines}\n"
        )
    files = sorted(tmp_path.glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# The command line

MAKEFILE = (ROOT / "Makefile").read_text() if README.is_file() else ""
SHOWN = [
    (page, line)
    for page, text in (blocks("sh") if README.is_file() else [])
    for line in text.replace("\\\n", "").splitlines()
]
SPOKEN = [
    (page.name, " ".join(words.split()))
    for page in (PAGES if README.is_file() else [])
    for words in re.findall(r"(?<!`)`((?:bin/)?(?:poolsvc|make) [^`]+)`", page.read_text())
]


@functools.cache
def help_of(*command):
    done = subprocess.run([POOLSVC, *command, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_poolsvc(words):
    command: list[str] = []
    for word in words:
        if (
            word.startswith("-")
            or re.search(rf"^  poolsvc {' '.join([*command, word])}\b", help_of(*command, word), re.MULTILINE) is None
        ):
            break
        command.append(word)
    assert command, f"poolsvc has no command {words}"
    known = help_of(*command)
    assert "Available Commands" not in known, f"{command} wants another word than {words}"
    for word in words[len(command) :]:
        if word.startswith("--"):
            assert re.search(rf"(?<!\S){re.escape(word.partition('=')[0])}(?!\S)", known), f"{command} has no {word}"


def check_make(words):
    for word in words:
        if "=" not in word:
            assert re.search(rf"^{re.escape(word)}:", MAKEFILE, re.MULTILINE), f"the Makefile has no {word}"


def check_files(words):
    """Check that the checkout has the files that a command line names."""
    for word in words:
        if word.startswith(("deploy/", "bin/", "release/")):
            assert word == "bin/poolsvc" or list(ROOT.glob(word)), f"there is no {word}"


def check_pip(words):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[0] == "install"
    (what,) = words[1:]
    assert "poolbridge" in what or what.startswith(".[")
    for named in re.findall(r"\[([a-z,]+)\]", what):
        assert set(named.split(",")) <= set(extras)


def check_go(words):
    if words[0] == "mod" or words[:2] == ["run", "."]:  # TestAProgramOfOnesOwnUsesACheckout runs it
        return
    what = [word for word in words[1:] if not word.startswith("-ldflags")]
    folder = ROOT / what[0].replace("github.com/poolbridge/poolbridge/", "").partition("@")[0]
    assert words[0] in {"install", "get", "run"}
    assert list(folder.glob("*.go")), folder
    for flag in what[1:]:
        if flag.startswith("-"):
            assert f'("{flag[1:]}", ' in (folder / "main.go").read_text()


def check_python(words):
    match words:
        case ["-m", "pip", *rest]:
            check_pip(rest)
        case ["-m", "pytest", path] | [path, *_]:
            assert (ROOT / path).is_file()


CHECKS = {
    "poolsvc": check_poolsvc,
    "make": check_make,
    "pip": check_pip,
    "go": check_go,
    "python": check_python,
    "kill": check_files,
    "mkdir": check_files,
    "cp": check_files,
    "sudo": check_files,
    "podman": check_files,
    "kubectl": check_files,
    "ssh": check_files,
}


@pytest.mark.parametrize(("page", "line"), SHOWN + SPOKEN)
def test_a_documented_command_exists_with_its_options(page, line):
    words = shlex.split(line.removeprefix("~/poolbridge/"), comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    if words:
        assert words[0] == Path(words[0]).name or words[0] in {"bin/poolsvc", ".venv/bin/python"}
        CHECKS[Path(words[0]).name]([word for word in words[1:] if word != "&"])


def test_the_cells_of_the_comparison_have_at_most_four_words():
    rows = re.findall(r"^\| ?(.*) \|$", README.read_text(), re.MULTILINE)
    assert rows
    for cell in " | ".join(rows).split(" | "):
        assert len(re.sub(r"\]\([^)]*\)", "", cell).split()) <= 4, cell


def test_the_command_for_a_gpu_says_what_is_missing_and_how_to_get_it(tmp_path):
    alone = tmp_path / "python"  # has no packages
    alone.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    alone.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": ""}  # no GPU, real or simulated
    for python, wanted in ((alone, ()), (tmp_path / "none", ("make venv",))):
        done = subprocess.run(
            [sys.executable, ROOT / "tests/gpu/missing.py", python], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 1
        assert re.search(r"^  (NVIDIA's driver|a GPU)", done.stderr, re.MULTILINE)
        for words in (f"{python} -m pip install cupy", *wanted):
            assert words in done.stderr


def test_a_documented_configuration_has_nothing_wrong(tmp_path):
    for number, (_, text) in enumerate(blocks("yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        done = subprocess.run([POOLSVC, "config", "check", path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


# Errors

CLASSES = [
    value
    for value in vars(poolbridge).values()
    if isinstance(value, type) and issubclass(value, (poolbridge.PoolbridgeError, poolbridge.ReadOnlyWarning))
]


def test_the_site_has_each_picture_of_a_page_and_none_may_be_missing():
    relinked = runpy.run_path(str(ROOT / "docs/site/sources.py"))["relinked"]
    page = ROOT / "docs/operating.md"
    for name in ("page-light.png", "picture.svg"):
        assert relinked(f"![text]({name})", page, {}) == f"![text]({name})"
    with pytest.raises(SystemExit, match=r"operating.md links to gone.png, and there is no such file"):
        relinked("![text](gone.png)", page, {})


def sections():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    return dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, flags=re.MULTILINE | re.DOTALL))


def wire_codes():
    """Return (code, error of Go, error of Python) for each section that names a code and an error of Go."""
    rows = [
        (*found.groups(), python)
        for python, text in sections().items()
        if (found := re.search(r"Code `([\w-]+)`, `(Err\w+|context\.\w+)`", text))
    ]
    source = (ROOT / "bridge" / "wire" / "code.go").read_text()
    assert {code for code, _, _ in rows} == set(re.findall(r'Code = "([\w-]+)"', source))
    return rows


def test_the_protocol_lists_every_code():
    listed = re.search(
        r"^The codes .*?\n\n(.*?)\n\n", (ROOT / "docs" / "protocol.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert listed
    assert sorted(re.findall(r"^- `([\w-]+)`:", listed[1], re.MULTILINE)) == sorted(
        {code for code, _, _ in wire_codes()}
    )


def test_troubleshooting_has_a_section_for_every_error_and_no_other():
    assert set(sections()) == {one.__name__ for one in CLASSES}


def test_the_sections_name_the_code_and_the_error_of_go():
    go_source = "".join(path.read_text() for path in (ROOT / "bridge").glob("*.go"))
    for code, go, python in wire_codes():
        assert code in {getattr(poolbridge, python).code, "content-failed", "closed"}, python
        assert go.startswith("context.") or re.search(rf"^\s*(?:var )?{go}\s+(?:error )?=", go_source, re.MULTILINE), go
    codes = {code for code, _, _ in wire_codes()}
    for one in CLASSES:
        code = getattr(one, "code", "")
        assert (f"Code `{code}`" in sections()[one.__name__]) == (code in codes), one


def test_the_tables_of_performance_are_those_of_the_results():
    program = ROOT / "benchmarks" / "page.py"
    done = subprocess.run([sys.executable, program, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}run: python benchmarks/page.py"
