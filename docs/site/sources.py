"""Write the sources of the documentation site: the Markdown pages of the repository, and the lists of public names.

In the repository, a link leads from a file to a file. If the file is a page of the site, the new link leads to this
page. If it is a picture, the new link leads to a copy on the site. Otherwise the new link leads to the file on
GitHub. If a link leads to no file, the script fails.

If a line is only a link to an example, the program follows it. A block of Python and a block of Go, one directly after
the other, become tabs. If a line of code is too wide for the page, the script fails; blocks
of text show what programs print.
"""

from __future__ import annotations

import ast
import inspect
import json
import mimetypes
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOST = "https://github.com/poolbridge/poolbridge"
PROJECT = {  # pages that do not lie in docs
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "tests/simcuda/README.md": "simulated-driver",
}
INDEX = ROOT / "docs" / "index.md"
LINK = re.compile(r"(?<=\]\()(?!#|[a-z]+:)([^)\s#]+)(#[^)\s]*)?(?=\))")
WIDTH = 88  # of code: so much fits the page
EXAMPLE = re.compile(r"^\[[^\]]*\]\(((?:\.\./)?examples/[^)]*\.(py|go|ipynb))\)$", re.MULTILINE)
PAIR = re.compile(r"(^```(python|go)\n[^`]*^```\n)\n(^```(?!\2)(python|go)\n[^`]*^```\n)", re.MULTILINE)
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def is_picture(path: Path) -> bool:
    """Return whether a file is a picture, which the site has a copy of."""
    return (mimetypes.guess_type(path.name)[0] or "").startswith("image/")


def pages() -> dict[Path, str]:
    """Return the file of every page, and the name of the page on the site."""
    found = {path: path.stem for path in sorted((ROOT / "docs").glob("*.md"))}
    return found | {ROOT / path: name for path, name in PROJECT.items() if (ROOT / path).is_file()}


def relinked(text: str, file: Path, site: dict[Path, str]) -> str:
    """Return the text of a page, with its links changed so that they work on the site."""

    def lead(match: re.Match[str]) -> str:
        to = (file.parent / match[1]).resolve()
        if to in site:
            return f"{site[to]}.md{match[2] or ''}"
        if not to.exists() or not to.is_relative_to(ROOT):
            raise SystemExit(f"{file.relative_to(ROOT)} links to {match[1]}, and there is no such file")
        if is_picture(to):
            return to.relative_to(ROOT / "docs").as_posix()
        place = to.relative_to(ROOT).as_posix()
        return f"{HOST}/{'tree' if to.is_dir() else 'blob'}/main/{place}{match[2] or ''}"

    parts = re.split(f"({FENCE.pattern})", text, flags=FENCE.flags)
    return "".join(part if i % 2 else LINK.sub(lead, part) for i, part in enumerate(parts))


def programs(text: str, file: Path) -> str:
    """Return the text of a page, with each example that has a line with only its link."""

    def shown(link: re.Match[str]) -> str:
        program = (file.parent / link[1]).read_text()
        if link[2] == "ipynb":
            cells = [cell for cell in json.loads(program)["cells"] if cell["cell_type"] == "code"]
            program = "\n\n".join("".join(cell["source"]) for cell in cells) + "\n"
        return f"{link[0]}\n\n```{'go' if link[2] == 'go' else 'python'}\n{program}```"

    text = EXAMPLE.sub(shown, text)
    for block in FENCE.findall(text):
        for line in block.splitlines() if re.match(r" *```(?!text)\w", block) else ():
            if len(line.expandtabs(4)) > WIDTH:
                raise SystemExit(f"{file.relative_to(ROOT)} has code wider than {WIDTH}: {line}")
    return text


def tabbed(text: str) -> str:
    """Return the text of a page in which a block of Python and the block of Go after it are two tabs."""
    title = {"python": "Python", "go": "Go"}
    return PAIR.sub(lambda m: f"````{{tab}} {title[m[2]]}\n{m[1]}````\n\n````{{tab}} {title[m[4]]}\n{m[3]}````\n", text)


def first(file: str, language: str) -> str:
    """Return the first block of a file in a language."""
    return re.findall(rf"^```{language}\n[^`]*^```\n", (ROOT / file).read_text(), re.MULTILINE)[0]


def contents(text: str, site: dict[Path, str], apart: dict[str, list[str]]) -> str:
    """Make the menu of the site: for each heading of the index page, a toctree of the pages that are linked below it.

    If the index page does not link to some page, that page goes into the toctree of the heading Guide. `apart` maps a
    heading to more pages for its toctree.
    """
    menu: dict[str, list[str]] = {}
    for heading, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL):
        linked = [site[to] for to in ((INDEX.parent / m[1]).resolve() for m in LINK.finditer(body)) if to in site]
        menu[heading] = linked + apart.pop(heading, [])
    if apart:
        raise SystemExit(f"docs/index.md has no heading {', '.join(apart)}")
    named = {name for names in menu.values() for name in names} | {"index"}
    menu["Guide"] += [name for name in site.values() if name not in named]
    trees = [
        f"```{{toctree}}\n:hidden:\n:caption: {heading}\n\n" + "\n".join(names) + "\n```\n"
        for heading, names in menu.items()
        if names
    ]
    return "\n" + "\n".join(trees)


def literals() -> str:
    """Make the page that lists, for each type of `_sys/literals.py`, the words that are its values."""
    lines = ["# Words that arguments take", ""]
    body = ast.parse((ROOT / "python/poolbridge/_sys/literals.py").read_text()).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        match statement:
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=value)
                | ast.Assign(targets=[ast.Name(id=name)], value=value)
            ):
                pass
            case _:
                continue
        match following:
            case ast.Expr(value=ast.Constant(value=str(doc))):
                words = ", ".join(f"``{ast.unparse(word)}``" for word in value.slice.elts)  # type: ignore[union-attr]
                lines += [
                    "```{eval-rst}",
                    f".. py:data:: poolbridge.{name}",
                    "",
                    textwrap.indent(f"{inspect.cleandoc(doc)}\n\nOne of {words}.", "   "),
                    "```",
                    "",
                ]
            case _:
                raise SystemExit(f"python/poolbridge/_sys/literals.py: {name} is public and has no docstring below it")
    return "\n".join(lines)


def check_names() -> None:
    """Stop the build unless the pages of the Python reference have every public name exactly once."""
    pages = sorted((ROOT / "docs/site/python").glob("*.rst"))
    text = "\n".join(page.read_text() for page in pages) + literals()
    named = sorted(re.findall(r"^\.\. (?:auto\w+|py:data):: poolbridge\.([\w.]+)$", text, flags=re.MULTILINE))
    package = ROOT / "python/poolbridge"
    public = [
        alias.asname or alias.name
        for statement in ast.parse((package / "__init__.py").read_text()).body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if not (alias.asname or alias.name).startswith("_")
    ] + [
        f"{path.parent.name}.{name}"
        for path in sorted(package.glob("[a-z]*/__init__.py"))
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"
        for name in ast.literal_eval(statement.value)
    ]
    public.append("__version__")
    if named != sorted(public):
        raise SystemExit(
            f"docs/site/python: missing {sorted(set(public) - set(named))}, not public or twice "
            f"{sorted(set(named) - set(public)) or [name for name in named if named.count(name) > 1]}"
        )


def main(out: Path) -> None:
    """Write all pages to the folder `out`. Its subfolder ``go`` already has the pages of the Go packages."""
    check_names()
    site = pages()
    go = sorted(f"go/{path.stem}" for path in (out / "go").glob("*.md"))
    python = [f"python/{path.stem}" for path in sorted((ROOT / "docs/site/python").glob("*.rst"))]
    for file, name in site.items():
        text = relinked(programs(file.read_text(), file), file, site)
        if file == INDEX:
            shown = [first("docs/install.md", "sh"), first("README.md", "python"), first("README.md", "go")]
            text = text.replace("![Who", "\n".join([*shown, "![Who"]))
            references = "- [Python](reference-python.md)\n- [Go](reference-go.md)"
            text = re.sub("^`make docs` builds.*", references, text, flags=re.MULTILINE)  # the reader has the site
            text += contents(file.read_text(), site, {"Reference": ["reference-python", "reference-go"]})
        (out / f"{name}.md").write_text(tabbed(text))
    programs((ROOT / "README.md").read_text(), ROOT / "README.md")
    (out / "python").mkdir(exist_ok=True)
    for path in (ROOT / "docs/site/python").glob("*.rst"):
        (out / "python" / path.name).write_text(path.read_text())
    for path in filter(is_picture, (ROOT / "docs").rglob("*")):
        copy = out / path.relative_to(ROOT / "docs")
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (out / "python" / "words.md").write_text(literals())
    for name, title, listed in (("python", "Python", [*python, "python/words"]), ("go", "Go", go)):
        text = f"# {title} reference\n\n```{{toctree}}\n:maxdepth: 2\n\n" + "\n".join(listed) + "\n```\n"
        (out / f"reference-{name}.md").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
