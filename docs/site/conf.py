"""Configure Sphinx, which builds the documentation site when `make docs` runs."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from sphinx.ext.napoleon.docstring import NumpyDocstring

import poolbridge
import poolbridge.dask
import poolbridge.ray

project = "poolbridge"
author = "the poolbridge authors"
project_copyright = author
version = release = poolbridge.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_inline_tabs",
]
default_role = "py:obj"

myst_enable_extensions = ["attrs_block", "deflist"]
myst_heading_anchors = 5  # as a code host makes them

autodoc_mock_imports = ["torch"]
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "inherited-members": "ArrayExports,Exception,UserWarning,OSError"}
napoleon_google_docstring = False
# Napoleon takes text before a colon in the docstring of a property for its type, which is in its annotation.
NumpyDocstring._consume_inline_attribute = lambda self: ("", self._consume_to_end())  # noqa: SLF001

html_theme = "furo"
html_title = f"poolbridge {version.partition('+')[0]}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_theme_options = {
    "source_repository": "https://github.com/poolbridge/poolbridge/",
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": [],
}
copybutton_exclude = ".linenos, .gp, .go"


PUBLIC = [
    name for name in vars(poolbridge) if not name.startswith("_") and not inspect.ismodule(vars(poolbridge)[name])
]
for name in PUBLIC:  # so that types in signatures lead to the page of the name that users import
    if str(getattr(getattr(poolbridge, name), "__module__", "")).startswith("poolbridge."):
        getattr(poolbridge, name).__module__ = "poolbridge"


def undocumented() -> list[str]:
    """Return those public names of the package `poolbridge` that have no docstring."""
    found = []
    public = {name: getattr(poolbridge, name) for name in PUBLIC}
    for module in (poolbridge.dask, poolbridge.ray):
        public |= {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    for name, value in public.items():
        if inspect.isclass(value):
            fields = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
            text = inspect.getdoc(value) or ""
            for member in inspect.classify_class_attrs(value):
                if member.name.startswith("_") or not member.defining_class.__module__.startswith("poolbridge"):
                    continue
                if not (inspect.getdoc(member.object) if member.name not in fields else member.name in text):
                    found.append(f"{name}.{member.name}")
        if (inspect.isclass(value) or inspect.isfunction(value)) and not value.__doc__:
            found.append(name)
    return found


def check(app: Any) -> None:
    """Stop the build if a public name has no docstring."""
    names = undocumented()
    if names:
        raise SystemExit(f"public and without a docstring: {', '.join(names)}")


def signature(_app: Any, what: str, _name: str, value: Any, *_more: Any) -> tuple[str, str] | None:
    """Hide the parameters of each class except `LegacyHandle`: programs do not call the other classes themselves."""
    return ("", "") if what == "class" and value is not poolbridge.LegacyHandle else None


def setup(app: Any) -> None:
    """Make Sphinx call `check` before it builds, and `signature` for each name."""
    app.connect("builder-inited", check)
    app.connect("autodoc-process-signature", signature)
