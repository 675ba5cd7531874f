//go:build !failpoints

// Package failpoint names the steps at which tests kill the process that comes to them. A program has failpoints if it was built with
// -tags failpoints; otherwise At does nothing.
package failpoint

// At is a step with a name.
func At(string) {}
