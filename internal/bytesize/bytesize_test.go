package bytesize

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLargeNumbersOfBytesAreSaidInLargeUnitsToo(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 bytes", 512: "512 bytes", 1<<20 - 1: "1048575 bytes",
		1 << 20: "1 MiB", 64 << 20: "64 MiB", 3 << 29: "1.5 GiB",
		9 << 30: "9 GiB", 1<<30 + 1: "1073741825 bytes (1 GiB)", 1<<30 - 1: "1073741823 bytes (1024 MiB)",
		5 << 40: "5 TiB", math.MaxInt64: "9223372036854775807 bytes (8388608 TiB)",
	} {
		assert.Equal(t, want, Text(n))
	}
}
