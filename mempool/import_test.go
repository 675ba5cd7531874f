package mempool

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostPool makes memory of the CPU, and returns the PoolInfo and the Export that a client gets.
func hostPool(t *testing.T, maxBytes uint64) (Backing, PoolInfo) {
	t.Helper()
	a := newHost(t, maxBytes)
	return a, PoolInfo{ID: 1, Name: "p", Kind: Host, Device: a.Device(), MaxBytes: maxBytes}
}

func TestAPoolAndABlockAreMappedOnceInAProcess(t *testing.T) {
	const size = 4096
	backing, info := hostPool(t, 1<<16)
	allocated, err := backing.Allocate(t.Context(), size)
	require.NoError(t, err)
	require.NoError(t, allocated.CopyFrom(0, []byte("hello")))
	x, err := allocated.Export()
	require.NoError(t, err)

	a, err := ImportPool(Epoch{1}, info, backing.Export(), "")
	require.NoError(t, err)
	b, err := ImportPool(Epoch{1}, info, Export{}, "")
	require.NoError(t, err, "it is open already")
	assert.Same(t, a, b)
	_, err = a.Block(1, size, nil)
	assert.ErrorIs(t, err, ErrNotFound)
	m, err := a.Block(1, size, &x)
	require.NoError(t, err)
	again, err := b.Block(1, size, nil)
	require.NoError(t, err)
	assert.Same(t, m, again)
	mem, err := m.Memory(false)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(mem.Bytes()[:5]))

	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.NoError(t, m.Close())
	assert.Equal(t, "hello", string(mem.Bytes()[:5]), "the second user has it still")
	require.NoError(t, again.Close())
	imports.mu.Lock()
	defer imports.mu.Unlock()
	assert.Empty(t, imports.pools)
}

func TestWhatIsNoExportIsRefused(t *testing.T) {
	backing, info := hostPool(t, 8192)
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	for what, x := range map[string]Export{
		"no file": {}, "two files": {Files: []*os.File{null, null}}, "no memfd": {Files: []*os.File{null}},
	} {
		_, err := ImportPool(Epoch{1}, info, x, "")
		assert.ErrorIs(t, err, ErrInvalid, what)
	}
	_, err = ImportPool(Epoch{1}, PoolInfo{ID: 9, Kind: "tape"}, Export{}, "")
	assert.ErrorIs(t, err, ErrInvalid)

	imported, err := ImportPool(Epoch{1}, info, backing.Export(), "")
	require.NoError(t, err)
	defer imported.Close()
	at := func(off uint64) []byte { return binary.LittleEndian.AppendUint64(nil, off) }
	for what, x := range map[string]Export{
		"no data": {}, "short data": {Data: at(0)[:7]}, "with a file": {Data: at(0), Files: []*os.File{null}},
		"behind the end": {Data: at(8192)}, "over the end": {Data: at(4097)}, "wrapped": {Data: at(^uint64(0))},
	} {
		_, err := imported.Block(1, 4096, &x)
		assert.ErrorIs(t, err, ErrInvalid, what)
	}
}
