package pattern

import (
	"encoding/binary"
	"math/bits"
	"strconv"
)

// Fibonacci is a pattern of uint64. Element i is F(i) modulo 2^64, where F(0) = 0 and F(1) = 1.
type Fibonacci struct{}

// At returns element i.
func (Fibonacci) At(i uint64) uint64 {
	f, _ := fibonacci(i)
	return f
}

// fibonacci returns F(n) and F(n+1) modulo 2^64. It uses the doubling formulas.
func fibonacci(n uint64) (a, b uint64) {
	b = 1
	for bit := bits.Len64(n) - 1; bit >= 0; bit-- {
		a, b = a*(2*b-a), a*a+b*b
		if n>>bit&1 != 0 {
			a, b = b, a+b
		}
	}
	return a, b
}

func (Fibonacci) String() string { return "Fibonacci" }

// Validate returns nil.
func (Fibonacci) Validate() error { return nil }

// ElementBytes is 8.
func (Fibonacci) ElementBytes() uint64 { return 8 }

// Bits returns At(i).
func (p Fibonacci) Bits(i uint64) uint64 { return p.At(i) }

// Format returns the number as text.
func (Fibonacci) Format(word uint64) string { return strconv.FormatUint(word, 10) }

func (Fibonacci) fill(mem []byte, first uint64) {
	for a, b := fibonacci(first); len(mem) >= 8; a, b = b, a+b {
		binary.NativeEndian.PutUint64(mem, a)
		mem = mem[8:]
	}
}

func (Fibonacci) check(mem []byte, first uint64, r *Report) {
	for a, b := fibonacci(first); len(mem) >= 8; a, b = b, a+b {
		if got := binary.NativeEndian.Uint64(mem); got != a {
			r.add(Mismatch{first, got})
		}
		mem = mem[8:]
		first++
	}
}

func (Fibonacci) kernel() (string, uint64, []any) { return "fibonacci_u64", 0, nil }
