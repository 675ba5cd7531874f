"""Shows counts and entries of lists to people: as text for `print`, and as tables in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Never


class Shown:
    """A dataclass that `print` shows one attribute a line, and a notebook as a table.

    An attribute with several entries becomes a table. The table leaves out the columns in which every entry has zero,
    None or an empty text. `repr` shows all.
    """

    __slots__ = ()

    def __str__(self) -> str:
        facts, tables = _parts(self)
        width = max((len(name) for name, _ in facts), default=0)
        lines = [f"{name:{width}}  {text}" for name, text in facts]
        for name, table in tables.items():
            lines.append(f"{name}:")
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            for row in table:
                cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
                lines.append(f"  {'  '.join(cells)}".rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        facts, tables = _parts(self)
        shown = [html_of(facts)] if facts else []
        for name, (head, *rows) in tables.items():
            cells = "".join(_row("td", row) for row in rows)
            shown.append(f"<p>{html.escape(name)}</p><table>{_row('th', head)}{cells}</table>")
        return "".join(shown)


class ShownPool(Shown):
    """Describes a pool. `with` does not end the pool."""

    __slots__ = ()

    def _no_block(self, *_error: object) -> Never:
        raise TypeError(
            "a pool is no context manager, because it stays for other programs: client.destroy_pool(pool) ends it for "
            "all clients; for a pool that ends with a block, start a service: with poolbridge.serve(pools=…)"
        )

    __enter__ = __exit__ = __aenter__ = __aexit__ = _no_block


def html_of(facts: Iterable[tuple[str, str]]) -> str:
    """Return a table in HTML with one row for each name and its text."""
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in facts)
    return f"<table>{rows}</table>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _parts(of: Any) -> tuple[list[tuple[str, str]], dict[str, list[list[str]]]]:
    """Return the names and texts of the attributes that have one value, and the tables of the other attributes."""
    facts, tables = [], {}
    for name, value in _values(of):
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            tables[name] = _table(value)
        else:
            facts.append((name, _text(value)))
    return facts, tables


def _values(of: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the attributes, with those of an attribute that is a dataclass itself."""
    for field in fields(of):
        value = getattr(of, field.name)
        if is_dataclass(value):
            yield from _values(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def _table(entries: tuple[Any, ...]) -> list[list[str]]:
    rows = [dict(_values(entry)) for entry in entries]
    names = [name for name in rows[0] if any(row[name] not in (None, 0, "", ()) for row in rows)]
    return [names, *([_text(row[name]) for name in names] for row in rows)]


def _text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return "none" if value is None or value == () else str(value)
