//go:build cgo && linux

package cuda_test

import "testing"

func skipWithoutCgo(testing.TB) {}
