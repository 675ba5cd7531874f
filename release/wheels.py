"""Lists the programs and libraries in wheels. Fails if a file is missing or is for another processor than the wheel."""

from __future__ import annotations

import struct
import sys
import zipfile
from pathlib import Path

MACHINES = {62: "x86_64", 183: "aarch64"}  # the key is e_machine of ELF


# Files that each wheel must have. An installation puts them below the folder `share` of the environment.
MANUAL = (
    "man/man1/poolsvc.1",
    "bash-completion/completions/poolsvc",
    "zsh/site-functions/_poolsvc",
    "fish/vendor_completions.d/poolsvc.fish",
)


def missing(wheel: Path) -> list[str]:
    """Return the files of the manual that a wheel does not have."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return [file for file in MANUAL if not any(name.endswith(f".data/data/share/{file}") for name in names)]


def contents(wheel: Path) -> dict[str, str]:
    """Return the processor of each program and library in a wheel, by file name."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                head = file.read(20)
            if head.startswith(b"\x7fELF"):
                found[name] = MACHINES.get(struct.unpack("<H", head[18:20])[0], "unknown")
    return found


def main() -> int:
    failed = False
    for wheel in map(Path, sys.argv[1:]):
        found = contents(wheel)
        print(f"{wheel.name}: {wheel.stat().st_size / (1 << 20):.1f} MiB")
        for name, machine in found.items():
            print(f"    {name}, {machine}")
        kinds = {name.rpartition("/")[2] for name in found}
        wrong = [name for name, machine in found.items() if not wheel.stem.endswith(machine)]
        if wrong or kinds != {"poolsvc", "_native.abi3.so"}:
            print(f"    WRONG: expected poolsvc and _native.abi3.so, for the processor that the name says; {wrong}")
            failed = True
        if lacks := missing(wheel):
            print(f"    WRONG: it lacks {', '.join(lacks)}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
