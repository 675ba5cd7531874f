"""Writes patterns of numbers into memory, and checks in another process that the memory contains the pattern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CHUNK = 1 << 22
_FIRST = 5
DTYPES = {"affine": "float32", "masked": "uint32", "fibonacci": "uint64"}
"""The element type of each kind of pattern."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of elements. Element i is ``scale * i + offset``, unless `kind` says otherwise.

    Attributes
    ----------
    scale, offset
        The two numbers of the formula.
    kind
        ``"affine"``: the elements are the formula's values, computed in float64 and rounded to the element type.
        ``"masked"``: the elements are ``value ^ mask``. `value` is the formula's value in whole numbers modulo 2**32.
        ``"fibonacci"``: the elements are the Fibonacci numbers modulo 2**64, from number `offset` on.
    tolerance
        The largest permitted difference between an element and its expected value, if `kind` is ``"affine"``.
    mask
        The number for the operation XOR, if `kind` is ``"masked"``.
    """

    scale: float
    offset: float
    kind: str = "affine"
    tolerance: float = 0.0
    mask: int = 0

    def __post_init__(self) -> None:
        if self.kind not in DTYPES:
            raise ValueError(f"unknown pattern {self.kind!r}: expected one of {', '.join(DTYPES)}")

    def expected(self, xp: Any, first: int, count: int, dtype: Any, **options: Any) -> Any:
        """Make `count` elements of the pattern from element `first` on. `xp` is the array library: NumPy or CuPy."""
        if self.kind == "fibonacci":
            return xp.asarray(fibonacci(int(self.offset) + first, count), **options)
        if self.kind == "masked":
            whole = xp.arange(first, first + count, dtype=xp.uint64, **options)
            whole *= int(self.scale)
            whole += int(self.offset)
            whole ^= self.mask
            return whole.astype(xp.uint32).astype(dtype)  # modulo 2**32
        values = xp.arange(first, first + count, dtype=xp.float64, **options)
        values *= self.scale
        values += self.offset
        return values.astype(dtype)

    def wrong(self, xp: Any, part: Any, expected: Any) -> Any:
        """Say for each element of `part` whether it differs from its element of `expected`. `xp` is NumPy or CuPy."""
        if self.tolerance:
            return ~(xp.abs(part.astype(xp.float64) - expected.astype(xp.float64)) <= self.tolerance)
        return part != expected


def fibonacci(first: int, count: int) -> np.ndarray[Any, Any]:
    """Make the Fibonacci numbers F(first), F(first + 1), … modulo 2**64; F(0) is 0 and F(1) is 1."""
    whole = (1 << 64) - 1
    a, b = 0, 1
    for bit in f"{first:b}":
        a, b = a * (2 * b - a) & whole, (a * a + b * b) & whole
        if bit == "1":
            a, b = b, (a + b) & whole
    numbers = np.empty(count, np.uint64)
    for index in range(count):
        numbers[index] = a
        a, b = b, (a + b) & whole
    return numbers


@dataclass(slots=True)
class Comparison:
    """The differences between an array and a pattern.

    Attributes
    ----------
    mismatches
        The number of elements that differ.
    first
        A text for each of the first few elements that differ.
    """

    mismatches: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, count: int, indices: Any, expected: Any, got: Any) -> None:
        """Add the `count` mismatches in one part of the array. The other arguments describe the first few of them."""
        self.mismatches += count
        for index, want, have in zip(indices, expected, got, strict=True):
            if len(self.first) == _FIRST:
                return
            self.first.append(f"element {int(index)}: expected {want}, got {have}")


def chunks(size: int) -> Iterator[tuple[int, int]]:
    """Split `size` elements into parts. Yield, for each part, its first element's index and its number of elements."""
    for first in range(0, size, CHUNK):
        yield first, min(CHUNK, size - first)


def compare(xp: Any, flat: Any, pattern: Pattern) -> Comparison:
    """Compare a flat array with a pattern, on the array's device. `xp` is the array library: NumPy or CuPy."""
    result = Comparison()
    for first, count in chunks(flat.size):
        part = flat[first : first + count]
        expected = pattern.expected(xp, first, count, part.dtype)
        wrong = pattern.wrong(xp, part, expected)
        mismatches = int(wrong.sum())
        if mismatches:
            at = xp.flatnonzero(wrong)[:_FIRST]
            result.add(mismatches, (at + first).tolist(), expected[at].tolist(), part[at].tolist())
    return result


def fill(xp: Any, flat: Any, pattern: Pattern) -> None:
    """Write a pattern into a flat array, on the array's device. `xp` is the array library: NumPy or CuPy."""
    for first, count in chunks(flat.size):
        flat[first : first + count] = pattern.expected(xp, first, count, flat.dtype)


def make(pattern: Pattern, size: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Make a NumPy array of a whole pattern."""
    flat = np.empty(size, dtype)
    fill(np, flat, pattern)
    return flat
