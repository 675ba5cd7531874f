package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a number of bytes on the command line, for example 1048576, 1MiB or 80GiB.
type byteSize uint64

var byteUnits = []struct {
	suffix string
	bytes  uint64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

// Set reads a size from text.
func (b *byteSize) Set(text string) error {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 64)
		if err != nil || n > math.MaxInt64/u.bytes {
			break
		}
		*b = byteSize(n * u.bytes)
		return nil
	}
	return fmt.Errorf("%q is no size: expected a number of bytes, or one with KiB, MiB, GiB or TiB", text)
}

// Type returns the name that --help shows for the type of the value.
func (b *byteSize) Type() string { return "bytes" }

// String returns the size as a whole number of the largest possible unit.
func (b *byteSize) String() string { return formatBytes(uint64(*b)) }

func formatBytes(n uint64) string {
	for _, u := range byteUnits[:4] {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatUint(n/u.bytes, 10) + " " + u.suffix
		}
	}
	return strconv.FormatUint(n, 10) + " B"
}
