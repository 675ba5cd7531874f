// Package gpus skips tests that the machine's GPU cannot run, and makes streams for tests.
package gpus

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
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

// Stream is a stream of a program on the first GPU.
type Stream struct {
	mempool.Queue
	gpu    *cuda.Context
	stream *cuda.Stream
}

// NewStream makes a stream, which ends with the test. It skips the test like [NeedWords].
func NewStream(t testing.TB) Stream {
	t.Helper()
	NeedWords(t)
	d, err := mempool.FindDevice("")
	require.NoError(t, err)
	gpu, err := d.Retain()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, gpu.Close()) })
	stream, err := gpu.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, stream.Close()) })
	return Stream{mempool.StreamQueue(gpu, stream), gpu, stream}
}

// Synchronize waits until the stream has done its work.
func (s Stream) Synchronize() error { return s.stream.Synchronize() }

// Read returns a function that returns n bytes of memory when the stream has read them.
func (s Stream) Read(t testing.TB, at uintptr, n int) func() []byte {
	t.Helper()
	p, err := s.gpu.NewPinned(uint64(n))
	require.NoError(t, err)
	require.NoError(t, s.stream.CopyDtoHAsync(p, 0, cuda.DevicePtr(at), uint64(n)))
	return func() []byte {
		require.NoError(t, s.Synchronize())
		b := bytes.Clone(p.Bytes()[:n])
		require.NoError(t, p.Close())
		return b
	}
}
