// Package sizeclass rounds sizes of memory, in bytes.
package sizeclass

import "math/bits"

// Least is the smallest size class.
const Least = 512

// Of rounds n up to the size that blocks for n bytes have: a multiple of granularity in steps of an eighth of the
// power of two below, so that at most an eighth of a block is lost and blocks of similar sizes serve each other.
// n is at most 2⁶³−1, granularity a power of two.
func Of(n, granularity uint64) uint64 {
	n = max(n, Least, granularity)
	step := max(uint64(1)<<(bits.Len64(n-1))>>4, granularity, 1)
	return RoundUp(n, step)
}

// RoundUp rounds n up to a multiple of step, a power of two.
func RoundUp(n, step uint64) uint64 { return (n + step - 1) &^ (step - 1) }
