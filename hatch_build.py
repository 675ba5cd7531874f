"""Build the parts of a wheel that are not Python: `poolbridge._native` in C, and the program `poolsvc` in Go.

The wheel also has the man pages of `poolsvc`, and its completions for bash, zsh and fish. `poolsvc` itself writes these
files.

If a part cannot be built, the build prints a warning and leaves the part out. Environment variables change this:

``POOLBRIDGE_NATIVE``
    For `poolbridge._native`: with 1, the build fails if it cannot build the module; with 0, the wheel has no module.
``POOLBRIDGE_SERVICE``
    The same values do the same for `poolsvc`. An editable installation never has `poolsvc`: `make build` writes it to
    the folder ``bin``.
``POOLBRIDGE_TARGET``
    A target of Zig, such as ``aarch64-linux-gnu.2.17``: the build uses the compiler of the package ziglang for it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

# With the limited API, one library works in CPython 3.11 and all later versions. Free-threaded builds of CPython do not
# have the limited API.
_LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")
_VERSION = "0x030B0000"
_FLAGS = ["-std=c11", "-O2", "-g0", "-fvisibility=hidden", "-pthread"]
# For each shell, this is the path of the file with the completion for `poolsvc`, relative to the folder `share` of an
# installation prefix.
_COMPLETIONS = {
    "bash": "bash-completion/completions/poolsvc",
    "zsh": "zsh/site-functions/_poolsvc",
    "fish": "fish/vendor_completions.d/poolsvc.fish",
}
_GOARCH = {"x86_64": "amd64", "aarch64": "arm64"}


def compile_native(root: Path, folder: Path, target: str = "") -> Path:
    """Compile the extension module into `folder`, and return the path of the library."""
    source = root / "python" / "native"
    files = sorted(str(path) for path in source.glob("*.c"))
    macros = [("_GNU_SOURCE", None), *([("Py_LIMITED_API", _VERSION)] if _LIMITED else [])]
    if target:
        return _cross_compile(root, folder, target, files, macros)
    extension = Extension(
        "_native",
        files,
        depends=sorted(str(path) for path in source.glob("*.h")),
        define_macros=macros,
        extra_compile_args=_FLAGS,
        py_limited_api=_LIMITED,
    )
    command = build_ext(Distribution({"ext_modules": [extension]}))
    command.build_lib = str(folder)
    command.build_temp = str(root / "build" / "native" / sysconfig.get_platform())
    command.force = True
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath("_native"))


def _cross_compile(
    root: Path, folder: Path, target: str, files: list[str], macros: list[tuple[str, str | None]]
) -> Path:
    """Compile with Zig. Zig cannot use the system's header folder, so copy the headers of Python for it."""
    if not _LIMITED:
        raise OSError("a module for another machine needs the limited API, which free-threaded Python lacks")
    folder.mkdir(parents=True, exist_ok=True)
    headers = folder / "include"
    shutil.rmtree(headers, ignore_errors=True)
    shutil.copytree(sysconfig.get_path("include"), headers)
    # Some distributions keep the real pyconfig.h in another folder, and the copied pyconfig.h only includes the real
    # file. So the real file replaces the copied file. The sizes in pyconfig.h are the same for both processors (x86-64
    # and AArch64), so the file is right for both.
    shutil.copy(sysconfig.get_config_h_filename(), headers / "pyconfig.h")
    library = folder / "_native.abi3.so"
    defined = [f"-D{name}" + (f"={value}" if value else "") for name, value in macros]
    _run(root, [*_zig(root, target), "-shared", "-fPIC", *_FLAGS, *defined, f"-I{headers}", *files, "-o", str(library)])
    return library


def build_service(root: Path, folder: Path, version: str, target: str = "") -> Path:
    """Build `poolsvc` in the folder `folder`, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "poolsvc"
    environment = {"CGO_ENABLED": "1"}
    if target:
        environment |= {"GOOS": "linux", "GOARCH": _GOARCH[_machine(target)], "CC": " ".join(_zig(root, target))}
    # go-nvml works only in a program that resolves each symbol when it is first used. The linker makes such a program
    # with the option `-z lazy`.
    flags = f"-s -w -extldflags=-Wl,-z,lazy -X github.com/poolbridge/poolbridge/internal/program.linked={version}"
    go = shutil.which("go")
    if go is None:
        raise OSError("there is no Go: see https://go.dev/dl")
    command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(program), "./cmd/poolsvc"]
    _run(root, command, environment)
    return program


def write_manual(root: Path, folder: Path, program: Path) -> None:
    """Run `poolsvc` to write its man pages and completions into `folder`, in the layout of an installation prefix."""
    shutil.rmtree(folder, ignore_errors=True)
    _run(root, [str(program), "man", str(folder / "share" / "man" / "man1")])
    for shell, name in _COMPLETIONS.items():
        path = folder / "share" / name
        path.parent.mkdir(parents=True)
        path.write_text(_run(root, [str(program), "completion", shell]), encoding="utf-8")


def _zig(root: Path, target: str) -> list[str]:
    return [sys.executable, str(root / "release" / "zigcc"), target]


def _machine(target: str) -> str:
    return target.partition("-")[0]


def _run(root: Path, command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(  # noqa: S603 - our own compilers
        command, cwd=root, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"{command[0]} failed:\n{done.stderr[-4000:]}")
    return done.stdout


class BuildHook(BuildHookInterface[Any]):
    """Add the native module and `poolsvc` to a wheel, but only the module to an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the native module and `poolsvc` before hatchling makes the wheel."""
        root = Path(self.root)
        package = root / "python" / "poolbridge"
        target = os.environ.get("POOLBRIDGE_TARGET", "")
        folder = root / "build" / "wheel" / (target or sysconfig.get_platform())
        if version == "editable":
            for old in package.glob("_native.*.so"):
                old.unlink()
            self._try("NATIVE", lambda: compile_native(root, package))
            return
        library = self._try("NATIVE", lambda: compile_native(root, folder, target))
        program = self._try("SERVICE", lambda: self._service(root, folder, target))
        if library is not None:
            build_data["force_include"][str(library)] = f"poolbridge/{library.name}"
        if program is not None:
            build_data["shared_scripts"][str(program)] = "poolsvc"
            build_data["shared_data"][str(folder / "manual" / "share")] = "share"
        if library is None and program is None:
            return
        build_data["pure_python"] = False
        if library is not None and not _LIMITED:
            build_data["infer_tag"] = True
            return
        system = f"linux-{_machine(target)}" if target else sysconfig.get_platform()
        interpreter = "py3-none" if library is None else "cp311-abi3"
        build_data["tag"] = f"{interpreter}-{system.replace('-', '_').replace('.', '_')}"

    def _service(self, root: Path, folder: Path, target: str) -> Path:
        """Build `poolsvc` and its manual.

        If `target` is another processor, this machine cannot run the new `poolsvc`. So the method then builds a second
        `poolsvc` for this machine, and the second one writes the manual.
        """
        program = build_service(root, folder, self.metadata.version, target)
        runs = program
        if target and _machine(target) != platform.machine():
            native = target.replace(_machine(target), platform.machine(), 1)
            runs = build_service(root, folder / "here", self.metadata.version, native)
        write_manual(root, folder / "manual", runs)
        return program

    def _try(self, what: str, build: Any) -> Path | None:
        """Call `build`, which builds a part of the wheel, and return the path that `build` returns.

        Return None without a call if the part's environment variable is 0, and also if `build` fails and the variable
        is not 1.
        """
        wish = os.environ.get(f"POOLBRIDGE_{what}", "")
        if wish == "0":
            return None
        self.app.display_info(f"building {_WITHOUT[what].partition(':')[0]}")  # shown by `pip install -v`
        try:
            built: Path = build()
        except Exception as error:
            if wish == "1":
                raise
            self.app.display_warning(f"poolbridge is built without {_WITHOUT[what].format(error)}")
            return None
        return built


_WITHOUT = {
    "NATIVE": "its native module: {}\nIt can use no channels then. The module needs a C compiler and Python's headers.",
    "SERVICE": "the service's program, poolsvc: {}\nThe client is complete. The program needs Go and a C compiler.",
}
