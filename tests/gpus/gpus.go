// Package gpus skips tests that the machine's GPU cannot run.
package gpus

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// NeedWords skips the test if there is no GPU, or if streams of the first GPU cannot wait for words.
func NeedWords(t testing.TB) {
	t.Helper()
	if err := mempool.Device.Probe(""); err != nil {
		t.Skip(err)
	}
	d, err := mempool.FindDevice("")
	require.NoError(t, err)
	words, err := d.SupportsStreamMemOps()
	require.NoError(t, err)
	register, _, err := d.SupportsHostRegister()
	require.NoError(t, err)
	if !words || !register {
		t.Skip("streams of this GPU cannot wait for words: it needs stream memory operations and registered host memory")
	}
}
