// Package sizeclass rounds a number of bytes up to the size of a block.
package sizeclass

import "math/bits"

// Least is the smallest size class.
const Least = 512

// Of returns the size of a block for n bytes. The size is at least [Least], and a multiple of granularity. For a large n, the size is also
// a multiple of one eighth of the greatest power of two below n. So at most one eighth of a large block is unused, and one block can serve
// several similar sizes. n must be at most 2⁶³−1, and granularity must be a power of two.
func Of(n, granularity uint64) uint64 {
	n = max(n, Least, granularity)
	step := max(uint64(1)<<(bits.Len64(n-1))>>4, granularity, 1)
	return RoundUp(n, step)
}

// RoundUp rounds n up to a multiple of step. The parameter `step` must be a power of two.
func RoundUp(n, step uint64) uint64 { return (n + step - 1) &^ (step - 1) }
