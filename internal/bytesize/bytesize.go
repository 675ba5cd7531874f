// Package bytesize formats numbers of bytes in a form that people can read.
package bytesize

import (
	"fmt"
	"strconv"
	"strings"
)

// Text returns n with the unit, for example "512 bytes" or "1.5 GiB". If n is at least 1 MiB and has more digits in MiB, GiB or TiB, the text
// has both, for example "1610612737 bytes (1.5 GiB)".
func Text(n uint64) string {
	text := strconv.FormatUint(n, 10) + " bytes"
	for _, unit := range []struct {
		name  string
		shift uint
	}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}} {
		if n >= 1<<unit.shift {
			rounded := strings.TrimSuffix(strconv.FormatFloat(float64(n)/float64(uint64(1)<<unit.shift), 'f', 1, 64), ".0") + " " + unit.name
			if n%(1<<unit.shift)*10%(1<<unit.shift) == 0 {
				return rounded
			}
			return fmt.Sprintf("%s (%s)", text, rounded)
		}
	}
	return text
}
