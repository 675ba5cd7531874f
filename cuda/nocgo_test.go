//go:build !cgo || !linux

package cuda_test

import "testing"

func skipWithoutCgo(t testing.TB) { t.Skip("built without cgo: no driver is ever opened") }
