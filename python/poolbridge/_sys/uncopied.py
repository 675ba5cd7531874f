"""Refuses copies of objects whose finaliser gives something back, because the copy's end would end the original."""

from __future__ import annotations

from typing import Never


class Uncopied:
    """Base class of objects that can be neither copied nor pickled."""

    __slots__ = ()

    def __reduce__(self) -> Never:
        raise TypeError(
            f"a {type(self).__name__} can be neither copied nor pickled, because the end of the copy would end the "
            "original: share the object itself, or make another one"
        )
