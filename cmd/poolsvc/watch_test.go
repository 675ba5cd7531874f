package main

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAWatchThatWouldNotPauseOrNotEndItsPauseIsNotUnderstood(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none")
	watch := func(seconds string) error {
		root := newRoot()
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		root.SetArgs([]string{"sessions", "--socket", socket, "--watch=" + seconds})
		return root.ExecuteContext(t.Context())
	}
	var misuse *usageError
	for _, seconds := range []string{"NaN", "Inf", "-Inf", "1e300", "86401", "0.09", "0", "-1"} {
		err := watch(seconds)
		require.ErrorAs(t, err, &misuse, seconds)
		assert.ErrorContains(t, err, "expected 0.1 to 86400 seconds")
	}
	for _, seconds := range []string{"0.1", "2", "86400"} {
		err := watch(seconds)
		require.Error(t, err, "no service listens")
		assert.NotErrorAs(t, err, &misuse, seconds)
	}
}
