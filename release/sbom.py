"""Writes a CycloneDX bill of materials for `poolsvc`, which lists Go, and the modules with their checksums.

Usage: `sbom.py PROGRAM VERSION OUTPUT`. `go version -m` lists the modules from which the program was linked.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

MODULE = "github.com/poolbridge/poolbridge"


def components(said: str) -> list[Component]:
    """Return a component for Go's standard library, and a component for each module that `go version -m` names."""
    head, *lines = said.splitlines()
    release = head.rpartition(": go")[2]
    found = [_library("std", release)]
    for line in lines:
        match line.strip("\n").split("\t"):
            case ["", "dep", path, version, checksum]:
                found.append(_library(path, version, checksum))
    return found


def _library(path: str, version: str, checksum: str = "") -> Component:
    where, _, name = path.rpartition("/")
    hashes = []
    if checksum:  # the checksum of the module's files, as in go.sum
        content = base64.b64decode(checksum.removeprefix("h1:")).hex()
        hashes.append(HashType(alg=HashAlgorithm.SHA_256, content=content))
    url = PackageURL("golang", where or None, name, version)
    return Component(name=path, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=str(url), hashes=hashes)


def bill(said: str, version: str) -> str:
    """Return the bill of materials as JSON; `said` is the output of `go version -m` for the program."""
    url = PackageURL("golang", MODULE.rpartition("/")[0], "poolbridge", f"v{version}", None, "cmd/poolsvc")
    program = Component(name="poolsvc", version=version, type=ComponentType.APPLICATION, purl=url, bom_ref="poolsvc")
    bom = Bom(components=components(said))
    bom.metadata.component = program
    bom.register_dependency(program, bom.components)
    return str(JsonV1Dot6(bom).output_as_string(indent=2))


def main() -> int:
    program, version, output = sys.argv[1:]
    said = subprocess.run(["go", "version", "-m", program], check=True, capture_output=True, text=True).stdout
    text = bill(said, version)
    if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        print(f"what was written is no CycloneDX: {wrong}", file=sys.stderr)
        return 1
    Path(output).write_text(text + "\n", encoding="utf-8")
    print(f"{output}: {len(components(said))} modules")
    return 0


if __name__ == "__main__":
    sys.exit(main())
