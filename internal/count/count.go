// Package count formats a number together with its noun.
package count

import "fmt"

// Of returns the number n with its noun. The parameter `one` is the noun in the
// singular. Examples: "1 lease", "2 leases".
func Of[N ~int | ~uint64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
