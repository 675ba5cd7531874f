#!/usr/bin/env python3
"""Compile kernels.cu to kernels.ptx with NVRTC, a compiler that needs neither a GPU nor a CUDA toolkit.

The oldest driver that poolbridge works with accepts this PTX code. The code is for an old architecture, and the
driver compiles it for the GPU of the machine. The first line of kernels.ptx has the digest of kernels.cu. If
kernels.ptx is out of date, a test notices it by this digest.
"""

import argparse
import ctypes
import hashlib
import importlib.util
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
ARCHITECTURE = "compute_70"  # Volta
NEWEST_PTX = (8, 0)  # what the driver of CUDA 12.0 accepts


def find_nvrtc() -> str:
    """Return the path of NVRTC, or only its file name if nvidia-cuda-nvrtc-cu12 is not installed."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        spec = None
    for place in spec.submodule_search_locations or [] if spec else []:
        for found in sorted(pathlib.Path(place).glob("lib/libnvrtc.so.*")):
            return str(found)
    return "libnvrtc.so.12"


class Nvrtc:
    """The functions of NVRTC that this script needs."""

    def __init__(self, path: str) -> None:
        self.lib = ctypes.CDLL(path)
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *args: object) -> None:
        """Call the named function of NVRTC, and raise RuntimeError if it fails."""
        result = getattr(self.lib, name)(*args)
        if result:
            raise RuntimeError(f"{name}: {self.lib.nvrtcGetErrorString(result).decode()}")

    def text(self, what: str, program: ctypes.c_void_p) -> str:
        """Return a text of the program. The argument what is PTX or ProgramLog."""
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.value.decode()

    def compile(self, source: bytes, name: str, options: list[str]) -> str:
        """Return the PTX of a source."""
        program = ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(program), source, name.encode(), 0, None, None)
        array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        try:
            self.call("nvrtcCompileProgram", program, len(options), array)
        except RuntimeError:
            sys.stderr.write(self.text("ProgramLog", program))
            raise
        return self.text("PTX", program)


def main() -> None:
    """Compile the kernels, check the version of the PTX code, and write the output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvrtc", default=find_nvrtc(), help="the library to compile with")
    parser.add_argument("--source", type=pathlib.Path, default=HERE / "kernels.cu")
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "kernels.ptx")
    args = parser.parse_args()

    source = args.source.read_bytes()
    options = [f"--gpu-architecture={ARCHITECTURE}", "--std=c++17", "--fmad=false"]
    ptx = Nvrtc(args.nvrtc).compile(source, args.source.name, options)

    lines = ptx.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(".version"))
    version = tuple(int(part) for part in lines[start].split()[1].split("."))
    if version > NEWEST_PTX:
        sys.exit(f"PTX {version} is newer than {NEWEST_PTX}: use the NVRTC of CUDA 12.0")
    head = f"// Made from {args.source.name} by `make ptx`. Source: sha256 {hashlib.sha256(source).hexdigest()}\n"
    # NVRTC adds constants from its own headers. The kernels do not use these constants, so leave out their lines.
    kept = (line.rstrip() for line in lines[start:] if "2nv6target" not in line)
    body = "\n".join(kept).rstrip("\n\0 ")
    args.output.write_text(head + body + "\n")


if __name__ == "__main__":
    main()
