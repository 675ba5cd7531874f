"""Tests the layers of the package.

A module imports only from its own layer and from lower rows of `ROWS`, even if only types need the import. Only `_wire`
names the keys of the protocol.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import poolbridge
from poolbridge._wire import messages

PACKAGE = Path(poolbridge.__file__).parent
# The rows of layers, from top to bottom. Layers of one row do not import each other. The layer `poolbridge` is the
# module with the public names.
ROWS = (
    ("__main__", "bench", "worker"),
    ("_bench", "_verify"),
    ("_libraries",),
    ("dask", "ray", "torch"),
    ("poolbridge",),
    ("_client",),
    ("_array",),
    ("_session",),
    ("_order",),
    ("_memory",),
    ("_wire",),
    ("_cuda",),
    ("_sys",),
    ("_native",),
    ("errors",),
)
DEPTHS = {layer: depth for depth, row in enumerate(ROWS) for layer in row}


def modules(package: Path) -> dict[str, Path]:
    """Return the modules of a package by their names."""
    found = {}
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST, known: dict[str, Path], *, types: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield each imported module of `poolbridge`, and whether only types need the import; look into functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, types) for alias in node.names if alias.name.partition(".")[0] == "poolbridge")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: an import says the whole name of what it imports"
            module = str(node.module)
            if module.partition(".")[0] == "poolbridge":
                for alias in node.names:
                    whole = f"{module}.{alias.name}"
                    yield whole if whole in known else module, types
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for part in node.body:
                yield from imports(ast.Module([part], []), known, types=True)
            for part in node.orelse:
                yield from imports(ast.Module([part], []), known, types=types)
        else:
            yield from imports(node, known, types=types)


def layer(module: str) -> str:
    """Return the layer of a module."""
    parts = module.split(".")
    return parts[0] if len(parts) == 1 else parts[1]


def upward(package: Path) -> list[str]:
    """Return the imports that the rows do not allow."""
    known = modules(package)
    found = []
    for module, path in known.items():
        own = layer(module)
        for other, _ in imports(ast.parse(path.read_text()), known):
            of = layer(other)
            if of != own and DEPTHS[of] <= DEPTHS[own]:
                found.append(f"{module} imports {other}")
    return found


def circles(package: Path) -> list[list[str]]:
    """Return circular imports, also those that only types need."""
    known = modules(package)
    graph = {}
    for module, path in known.items():
        # The worker of `_verify` lists the tasks, and each task describes its first argument, the worker, by its type.
        runs = layer(module) != "_verify"
        graph[module] = {other for other, types in imports(ast.parse(path.read_text()), known) if runs or not types}
    found: list[list[str]] = []
    done: set[str] = set()

    def follow(module: str, way: list[str]) -> None:
        if module in way:
            found.append([*way[way.index(module) :], module])
        elif module not in done:
            for other in sorted(graph.get(module, ())):
                follow(other, [*way, module])
            done.add(module)

    for module in graph:
        follow(module, [])
    return found


def keys(tree: ast.AST) -> set[str]:
    """Return the attributes and keyword arguments that are keys of the protocol, and are not also names of fields."""
    classes = [one for one in vars(messages).values() if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    fields = [field for one in classes for field in msgspec.structs.fields(one)]
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {str(node.arg) for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    return used & ({field.encode_name for field in fields} - {field.name for field in fields})


def test_every_module_is_in_a_layer():
    names = {layer(module) for module in modules(PACKAGE)}
    assert names == set(DEPTHS)


def test_nothing_imports_what_is_above_it():
    assert upward(PACKAGE) == []


def test_no_imports_go_round():
    assert circles(PACKAGE) == []


def test_only_the_wire_names_keys_of_the_protocol():
    named = {name: keys(ast.parse(path.read_text())) for name, path in modules(PACKAGE).items()}
    assert {name: found for name, found in named.items() if found and layer(name) != "_wire"} == {}
    assert keys(ast.parse("replace(grant, bf=fence.tl, buffer=fence.timeline)")) == {"bf", "tl"}


@pytest.mark.parametrize(
    "line",
    [
        "import poolbridge",
        "from poolbridge import Client",
        "import poolbridge._client.client",
        "from poolbridge._client import client as _client",
        "from poolbridge._client.client import Client",
        "def late():\n    from poolbridge._client.client import Client",
        "if TYPE_CHECKING:\n    from poolbridge._client.client import Client",
    ],
)
def test_an_import_upward_is_found_however_it_is_said(tmp_path, line):
    package = tmp_path / "poolbridge"
    for name, text in {"__init__": "", "_client/client": "Client = 1", "_wire/messages": line}.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert len(upward(package)) == 1


@pytest.mark.parametrize("late", ["def late()", "if TYPE_CHECKING"])
def test_imports_that_go_round_are_found(tmp_path, late):
    package = tmp_path / "poolbridge"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "worker.py").write_text(f"{late}:\n    from poolbridge import bench\n")
    (package / "bench.py").write_text("import poolbridge.worker\n")
    assert circles(package) == [["poolbridge.worker", "poolbridge.bench", "poolbridge.worker"]] or circles(package) == [
        ["poolbridge.bench", "poolbridge.worker", "poolbridge.bench"]
    ]
