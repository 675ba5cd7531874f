"""Loads models from files for several programs: the first one starts ``poolsvc load``, the others find its buffer."""

from __future__ import annotations

import math
import os
import select
import subprocess
import threading
import time
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import msgspec

from poolbridge._client.operations import check_timeout, get, wait
from poolbridge._client.service_process import find_program
from poolbridge._session.flow import Do, Flow
from poolbridge._sys.error_texts import shown
from poolbridge._wire.received_errors import exception
from poolbridge.errors import (
    AlreadyExistsError,
    ContentFailedError,
    InvalidArgumentError,
    NotFoundError,
    ProducerDiedError,
    ServiceStartError,
    StaleError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from poolbridge._client.entries import PoolInfo
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session

# A header has at most this many bytes. `poolsvc load` refuses a file whose header is longer.
_MOST_HEADER = 100_000_000
# A path of Linux has fewer bytes.
_MOST_PATH = 4096
# How often others may be faster, or fail, before their error is raised: perhaps the name stays with what is no model.
_MOST_TRIES = 10


def load(
    session: Session, socket: str, path: str | os.PathLike[str], pool: PoolInfo, *, timeout: float | None
) -> Flow[LeaseState]:
    """Lease the buffer of a model's files, and load them if no program has loaded them; see `Client.load`."""
    timeout = check_timeout(timeout)
    until = None if timeout is None else time.monotonic() + timeout
    try:
        text = os.fsdecode(path)
        valid = bool(os.fsencode(text)) and "\0" not in text
    except (TypeError, UnicodeError):
        valid = False
    if not valid:
        raise InvalidArgumentError(f"path {shown(path)} is no path of a file or a folder")
    path, tries = Path(text), 0
    while True:
        name = yield Do(partial(_name_of, path, pool.id))
        loader = None
        try:
            try:
                state = yield from get(session, name, write=False, known=(0, 0), timeout=0.0)
            except (NotFoundError, ContentFailedError):
                loader = _Loader(socket, path, name, pool.name)
                yield Do(partial(loader.publish, until))
                state = yield from get(session, name, write=False, known=(0, 0), timeout=0.0)
            try:
                # Programs that may use the pool trust each other. A stranger could use the name for a buffer elsewhere.
                if state.grant.pool != pool.id:
                    raise StaleError(
                        f"{name!r} is in pool {state.grant.pool}, not in {pool.name!r}, which is pool {pool.id}: if "
                        "that was made anew, open it again (open_pool); else another program has taken the name"
                    )
                yield from wait(state, None if until is None else max(until - time.monotonic(), 0.0))
                if loader is None or (yield Do(partial(_name_of, path, pool.id))) == name:
                    return state
            except BaseException:
                state.end()
                raise
            state.end()  # the files changed while they were loaded, so the buffer may have what is not of this name
        except (AlreadyExistsError, NotFoundError, ContentFailedError) as error:
            # Another program was faster, or failed. If the own program failed, it knows why.
            if loader is not None and not isinstance(error, AlreadyExistsError):
                yield Do(loader.explain)
                raise
            tries += 1
            if tries == _MOST_TRIES:
                raise
        finally:
            if loader is not None:
                loader.leave()


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _files_of(path: Path) -> list[Path]:
    """Return the files that ``poolsvc load`` reads. An index that it will refuse stands for itself."""
    index = path
    if path.is_dir():
        index = path / "model.safetensors.index.json"
        if not index.exists():
            return sorted(one for one in path.iterdir() if one.name.endswith(".safetensors"))
    if index.name.endswith(".index.json") and index.is_file():
        try:
            names = sorted(set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values()))
            if all(map(_is_local, names)):
                return [index.parent / name for name in names]
        except msgspec.MsgspecError:
            pass
    return [index]


def _is_local(name: str) -> bool:
    """Return whether `poolsvc load` takes a name of an index: that of a file in the index's folder."""
    return os.path.normpath(name or "/").split("/")[0] not in {"", ".."} and len(os.fsencode(name)) < _MOST_PATH


def _name_of(path: Path, pool: int) -> str:
    """Return the name of the buffer that has a model: other files, or files that have changed, have another name."""
    seen = blake2b(f"{pool}\0".encode(), digest_size=16)
    for one in _files_of(path):
        try:
            real = os.path.realpath(one, strict=True)
        except ValueError as error:
            raise InvalidArgumentError(f"{shown(str(one))} is no path of a file: {error}") from None
        if not Path(real).is_file():
            raise InvalidArgumentError(f"{one} is no regular file")
        with Path(real).open("rb") as file:
            status = os.fstat(file.fileno())
            prefix = file.read(8)
            header = file.read(min(int.from_bytes(prefix, "little"), _MOST_HEADER))
        # Files may have the same time of modification, as in images of containers. Nobody can set the time of change.
        about = f"\0{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {len(header)}\0"
        seen.update(os.fsencode(real) + about.encode() + prefix + header)
    name = Path(os.path.realpath(path)).name
    return f"{name[:200] if name.isascii() and name.isprintable() else 'model'}@{seen.hexdigest()}"


class _Loader:
    """A ``poolsvc load`` that this process has started.

    Its output says when the buffer has its name, or which error it has. It keeps the buffer until its input has a byte
    or ends: a process that was forked meanwhile keeps the pipe open.
    """

    def __init__(self, socket: str, path: Path, name: str, pool: str) -> None:
        program = find_program()
        command = [program, "load", "--while-used", "--socket", socket, "--name", name, "--pool", pool, "--", str(path)]
        self._said = os.memfd_create("poolsvc-load")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, bufsize=0
            )
        except OSError as error:
            os.close(self._said)
            raise ServiceStartError(f"{program!r} cannot be started: {error}") from error
        self._input, self._output = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)

    def publish(self, until: float | None) -> None:
        """Wait until the buffer has its name. The content may come later.

        Raises
        ------
        WaitTimeoutError
            `until`, a time of the monotonic clock, has passed.
        PoolbridgeError
            It failed; `ProducerDiedError`: it was killed.
        """
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        until = math.inf if until is None else until
        while not poll.poll(min(max(until - time.monotonic(), 0.0), 3600.0) * 1000):
            if time.monotonic() >= until:
                self._process.terminate()
                raise WaitTimeoutError("poolsvc load had not made the buffer of the model when the time was over")
        line = self._output.readline()
        if line != b"published\n":
            self._raise(line)

    def explain(self) -> None:
        """Raise the error of the loader. If it has none, return. Call this when its buffer has failed."""
        self._end_input()
        for line in self._output:
            self._raise(line)

    def _raise(self, line: bytes) -> None:
        word, _, code = line.decode(errors="replace").strip().partition(" ")
        if word not in {"", "error"}:
            return
        status = self._process.wait()
        said = os.pread(self._said, 4000, 0).decode(errors="replace").strip().removeprefix("poolsvc: ")
        if code:
            raise exception(code, said)
        failed = ContentFailedError if word else ProducerDiedError
        raise failed(f"poolsvc load ended with status {status}: {said or 'it said nothing'}")

    def _end_input(self) -> None:
        if not self._input.closed:
            with suppress(BrokenPipeError):
                self._input.write(b"\n")
            self._input.close()

    def leave(self) -> None:
        """Let the program end by itself. A thread waits for that, so that no zombie stays."""
        self._end_input()
        threading.Thread(target=self._reap, name="poolbridge-load", daemon=True).start()

    def _reap(self) -> None:
        self._process.wait()
        self._output.close()
        os.close(self._said)
