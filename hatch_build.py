"""Compiles `poolbridge._native` when a wheel is built or the package is installed from its source.

Where it cannot be compiled, the package is built without it, and says so. The environment variable `POOLBRIDGE_NATIVE`
changes that: with 1 it is an error, with 0 nothing is compiled.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

# The limited API of CPython 3.11: one library serves that version and all later ones. Free-threaded builds have none.
_LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")
_VERSION = "0x030B0000"


def compile_native(root: Path, folder: Path) -> Path:
    """Compile the extension module; give the library, which is in `folder`."""
    source = root / "python" / "native"
    extension = Extension(
        "_native",
        sorted(str(path) for path in source.glob("*.c")),
        depends=sorted(str(path) for path in source.glob("*.h")),
        define_macros=[("_GNU_SOURCE", None), *([("Py_LIMITED_API", _VERSION)] if _LIMITED else [])],
        extra_compile_args=["-std=c11", "-O2", "-g0", "-fvisibility=hidden", "-pthread"],
        py_limited_api=_LIMITED,
    )
    command = build_ext(Distribution({"ext_modules": [extension]}))
    command.build_lib = str(folder)
    command.build_temp = str(root / "build" / "native" / sysconfig.get_platform())
    command.force = True
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath("_native"))


class NativeBuildHook(BuildHookInterface[Any]):
    """Adds the library to a wheel; to an editable installation beside the modules in Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it before the wheel is put together."""
        root = Path(self.root)
        package = root / "python" / "poolbridge"
        editable = version == "editable"
        wish = os.environ.get("POOLBRIDGE_NATIVE", "")
        if editable:
            for old in package.glob("_native.*.so"):
                old.unlink()
        if wish == "0":
            return
        try:
            library = compile_native(root, package if editable else root / "build" / "native")
        except Exception as error:
            if wish == "1":
                raise
            self.app.display_warning(
                f"poolbridge is built without its native module: {error}\n"
                "Channels cannot be used then. The module needs a C compiler and Python's headers."
            )
            return
        if editable:
            return
        build_data["force_include"][str(library)] = f"poolbridge/{library.name}"
        build_data["pure_python"] = False
        if _LIMITED:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp311-abi3-{platform}"
        else:
            build_data["infer_tag"] = True
