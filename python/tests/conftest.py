"""Define fixtures and settings for all tests, and check that no test leaks descriptors or mappings."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakeservice import Service
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir
from test_device import has_driver

import poolbridge
from poolbridge._cuda import cuda as _cuda
from poolbridge._memory.mappings import MAPPINGS
from poolbridge._sys.native import NATIVE

# In all tests, and in their child processes, services compare how clients describe their leases: see CONTRIBUTING.md.
os.environ["POOLBRIDGE_CHECK_LEASES"] = "1"

# A shell lets the programs that it starts in the background ignore SIGINT, but tests send this signal to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis stores the inputs with which a test fails. It stores them in the build folder, not in the source tree.
set_hypothesis_home_dir(Path(__file__).parents[2] / "build" / "hypothesis")

# A test must not fail because the machine is busy, so Hypothesis sets no deadline.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Without a driver, pytest skips the folder `oncuda`, and `test_device` runs the folder's tests on the simulated driver.
collect_ignore = [] if has_driver() else ["oncuda"]

# The key under which pytest stores the results of `test_libraries`: a set of results for each library, kind of memory,
# element type and layout.
OUTCOMES = pytest.StashKey[dict[tuple[str, ...], set[str]]]()


# The key under which pytest stores the lines of `test_array_matrix`.
MATRIX = pytest.StashKey[list[str]]()


# No further test begins after this time, in seconds since pytest has started.
LIMIT = float(os.environ.get("POOLBRIDGE_TEST_SECONDS", "inf"))
BEGIN = time.monotonic()


def pytest_report_header() -> str:
    native = "with" if NATIVE is not None else "without"
    return f"poolbridge: in {Path(poolbridge.__file__).parent}, {native} its native module"


ENGINES = ("test_ray", "test_dask")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the slowest tests first if pytest-xdist runs tests in parallel."""
    if config.pluginmanager.hasplugin("xdist"):
        items.sort(key=lambda item: not item.path.name.startswith((*ENGINES, "test_device")))


def pytest_collection_finish() -> None:
    """Let `gc.collect`, which `no_leaks` calls for each test, leave out what exists before the first test."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run all tests of Ray in one process, and all tests of Dask in one process; spread other tests over processes.

    So only one cluster of Ray, and only one cluster of Dask, runs at a time. The groups of pytest-xdist cannot do this:
    pytest-xdist 3.8 adds the name of a group to the node IDs of its tests, and pytest 9.2 does not allow this change.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByEngine(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            name = Path(nodeid.partition("::")[0]).name
            return next((engine for engine in ENGINES if name.startswith(engine)), nodeid)

    return ByEngine(config, log)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    if time.monotonic() - BEGIN > LIMIT:
        item.session.shouldstop = f"stopped after {LIMIT:g} s: POOLBRIDGE_TEST_SECONDS"


class Failures:
    """Names each test that fails at once, although pytest itself is quiet until the end."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self.reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.reporter.write_line(f"\nfailed: {report.nodeid}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if reporter := config.pluginmanager.get_plugin("terminalreporter"):  # not in a process of pytest-xdist
        config.pluginmanager.register(Failures(reporter))


# How to run tests that are skipped here, by a word of the reason.
CURES = {"GPU": "on one, tests/gpu/run python-arrays", "torch": "make test-torch"}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print why tests were skipped; without `-q`, also each result of each library, with its element types."""
    why = Counter(str(one.longrepr[2]).removeprefix("Skipped: ") for one in terminalreporter.stats.get("skipped", []))
    for reason, n in why.most_common(5):
        cure = next((f" ({cure})" for word, cure in CURES.items() if word in reason and ":" not in reason), "")
        terminalreporter.write_line(f"skipped: {n:3}, as {reason}{cure}")
    if len(why) > 5:
        terminalreporter.write_line(f"skipped: {sum(sorted(why.values())[:-5]):3} others, which `pytest -rs` explains")
    for line in config.stash.get(MATRIX, []) if config.get_verbosity() >= 0 else []:
        terminalreporter.write_line(line)
    outcomes = config.stash.get(OUTCOMES, {}) if config.get_verbosity() >= 0 else {}
    for library, kind in dict.fromkeys(key[:2] for key in outcomes):
        by_outcome: dict[str, list[tuple[str, ...]]] = {}
        for key, found in outcomes.items():
            if key[:2] == (library, kind):
                for outcome in found:
                    by_outcome.setdefault(outcome, []).append(key[2:])
        terminalreporter.section(f"{library}, {kind}", sep="-")
        for outcome, where in by_outcome.items():
            dtypes, layouts = (", ".join(dict.fromkeys(names)) for names in zip(*where, strict=True))
            terminalreporter.write_line(f"{outcome[:160]}\n    {len(where)} of: {dtypes}\n    as: {layouts}")


# The names of memory that NVIDIA's driver shares between processes for interprocess events begin with this text. The
# driver opens the memory for the first event of a process, and keeps it open until the process ends. Only the driver
# uses such names.
OF_THE_DRIVER = "/dev/shm/cuda.shm."


def open_descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # `listdir` itself used this descriptor, and has closed it
        if not target.startswith(OF_THE_DRIVER):
            found[fd] = target
    return found


@pytest.fixture(scope="session", autouse=True)
def driver() -> None:
    """Use every GPU once before the first test: the first use opens files, which `no_leaks` would report as a leak."""
    for ordinal in range(len(_cuda.devices()) if has_driver() else 0):
        _cuda.Allocation(ordinal, 64)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves descriptors or mappings behind."""
    gc.collect()
    before, mapped = open_descriptors(), len(MAPPINGS)
    yield
    deadline = time.monotonic() + 60
    while True:
        gc.collect()
        left = {fd: target for fd, target in open_descriptors().items() if before.get(fd) != target}
        if not left and len(MAPPINGS) <= mapped:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left open: {left}, mappings: {len(MAPPINGS) - mapped}")
        time.sleep(0.01)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    running = Service(str(tmp_path / "s.sock"))
    yield running
    running.close()


@pytest.fixture
def client(service: Service) -> Iterator[poolbridge.Client]:
    with poolbridge.connect(service.path, timeout=60) as connected:
        connected.create_pool("frames", max_bytes=1 << 22)
        yield connected


@pytest.fixture
def other(service: Service) -> Iterator[poolbridge.Client]:
    with poolbridge.connect(service.path, timeout=60) as connected:
        yield connected
