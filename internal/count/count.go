// Package count says how many there are of something.
package count

import "fmt"

// Of is a number of things, named by one of them: "1 lease", "2 leases".
func Of[N ~int | ~uint64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
