// Package count formats numbers of things for people.
package count

import "fmt"

// Of returns a number with its noun: "1 lease", "2 leases".
func Of[N ~int | ~uint64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
