// Package bytesize formats numbers of bytes in a form that people can read.
package bytesize

import (
	"fmt"
	"strconv"
	"strings"
)

// Text returns n with the unit, for example "512 bytes". If n is at least 1 MiB, Text adds the rounded value in MiB, GiB or TiB, for
// example "1610612736 bytes (1.5 GiB)".
func Text(n uint64) string {
	text := strconv.FormatUint(n, 10) + " bytes"
	for _, unit := range []struct {
		name  string
		shift uint
	}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}} {
		if n >= 1<<unit.shift {
			rounded := strconv.FormatFloat(float64(n)/float64(uint64(1)<<unit.shift), 'f', 1, 64)
			return fmt.Sprintf("%s (%s %s)", text, strings.TrimSuffix(rounded, ".0"), unit.name)
		}
	}
	return text
}
