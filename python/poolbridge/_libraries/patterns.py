"""Makes patterns of numbers, and compares arrays with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_CHUNK = 1 << 22
_FIRST = 5
_DTYPES = {"affine": "float32", "masked": "uint32", "fibonacci": "uint64"}
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of elements. Element i is ``scale * i + offset``, unless `kind` says otherwise.

    Attributes
    ----------
    kind
        ``"affine"``: the elements are the formula's values, computed in float64 and rounded to float32.
        ``"masked"``: the elements are ``value ^ mask``, of type uint32. `value` is the formula's value modulo 2**32.
        ``"fibonacci"``: the elements are the Fibonacci numbers modulo 2**64, from number `offset` on, of type uint64.
    elements
        The number of elements.
    scale, offset
        The two numbers of the formula.
    tolerance
        The largest permitted difference between an element and its expected value, if `kind` is ``"affine"``.
    mask
        The number for the operation XOR, if `kind` is ``"masked"``.
    halves
        Whether the elements are in two arrays, ``"first"`` and ``"second"``.
    """

    kind: str
    elements: int
    scale: float
    offset: float
    tolerance: float = 0.0
    mask: int = 0
    halves: bool = False

    @property
    def dtype(self) -> str:
        """The element type."""
        return _DTYPES[self.kind]

    def values(self) -> np.ndarray[Any, Any]:
        """Make all elements, on the CPU."""
        if self.kind == "fibonacci":
            return fibonacci(int(self.offset), self.elements)
        made = np.empty(self.elements, self.dtype)
        for first in range(0, self.elements, _CHUNK):  # so that the wider numbers take little memory
            part = made[first : first + _CHUNK]
            if self.kind == "masked":
                whole = np.arange(first, first + part.size, dtype=np.uint64)
                part[:] = (whole * int(self.scale) + int(self.offset)).astype(np.uint32) ^ np.uint32(self.mask)
            else:
                part[:] = np.arange(first, first + part.size, dtype=np.float64) * self.scale + self.offset
        return made

    def compare(self, array: np.ndarray[Any, Any]) -> None:
        """Compare every element of an array on the CPU.

        Raises
        ------
        AssertionError
            Elements differ; the text names the first of them.
        """
        seen, expected = array.reshape(-1), self.values()
        if seen.size != expected.size:
            raise AssertionError(f"there are {seen.size} elements, not {expected.size}")
        wrong = ~(np.abs(seen - expected) <= self.tolerance) if self.tolerance else seen != expected
        count = int(wrong.sum())
        if count:
            at = np.flatnonzero(wrong)[:_FIRST]
            texts = (f"element {i}: expected {expected[i]}, got {seen[i]}" for i in at.tolist())
            raise AssertionError(f"{count} elements differ: {', '.join(texts)}")


def fibonacci(first: int, count: int) -> np.ndarray[Any, Any]:
    """Make the Fibonacci numbers F(first), F(first + 1), … modulo 2**64; F(0) is 0 and F(1) is 1."""
    a, b = 0, 1
    for bit in f"{first:b}":
        a, b = a * (2 * b - a) & _WORD, (a * a + b * b) & _WORD
        if bit == "1":
            a, b = b, (a + b) & _WORD
    numbers = np.empty(count, np.uint64)
    for index in range(count):
        numbers[index] = a
        a, b = b, (a + b) & _WORD
    return numbers
